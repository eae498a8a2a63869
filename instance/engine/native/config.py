"""What a model is, as frozen structs: a list of layers, each a mixer and a feed-forward. No torch
here, so that models can be planned for without it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from alipes.instance.engine.native.layout import Packer
from alipes.instance.engine.native.rope import Rope
from alipes.instance.engine.protocol import EngineError
from alipes.instance.memory.specs import StateSpec

if TYPE_CHECKING:
    import torch

    from alipes.instance.engine.native.parallel.share import Share
    from alipes.instance.engine.native.passes import Pass


class ModelError(EngineError):
    """A model folder that cannot be served; the message names the file, field and remedy."""


class Mixer(Protocol):
    """The half of a layer in which tokens see those before them. A frozen struct; what it keeps
    of them lies where ``state`` says, its weights under the names that ``pack`` gave them."""

    @property
    def state(self) -> StateSpec: ...

    @property
    def rope(self) -> Rope | None: ...

    def divided(self, share: Share) -> Mixer:
        """What one rank has of it: the results of all ranks add up to the whole one's. Raises
        ``ModelError`` where it cannot be divided so."""
        ...

    def pack(self, packer: Packer, source: str) -> None:
        """Add the tensors of checkpoint layer ``source`` (with its last dot)."""
        ...

    def forward(
        self,
        x: torch.Tensor,
        state: tuple[torch.Tensor, ...],
        weights: Mapping[str, torch.Tensor],
        step: Pass,
        rows: torch.Tensor | None,
    ) -> torch.Tensor:
        """Update the state with all of ``x`` (n, hidden) float32, which is normalized; return
        the result of ``rows`` (m,) int64 of it, (m, hidden): all where None, maybe none."""
        ...


class FeedForward(Protocol):
    """The half of a layer in which every token is alone."""

    def divided(self, share: Share) -> FeedForward: ...

    def pack(self, packer: Packer, source: str) -> None: ...

    def forward(
        self, x: torch.Tensor, weights: Mapping[str, torch.Tensor], step: Pass
    ) -> torch.Tensor:
        """(n, hidden) float32, normalized, to the same."""
        ...


@dataclass(frozen=True, slots=True)
class LayerConfig:
    mixer: Mixer
    feed_forward: FeedForward


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder. ``eps`` is that of the norms between its halves, whose weights are stored as
    what they are more than one where ``centred``; ``tied`` tells whether the embedding is the
    output layer too. ``note`` says what a user should know of how it is served."""

    family: str
    hidden: int
    vocab: int
    context: int
    eps: float
    tied: bool
    layers: tuple[LayerConfig, ...]
    centred: bool = False
    note: str = ""

    @property
    def states(self) -> tuple[StateSpec, ...]:
        return tuple(layer.mixer.state for layer in self.layers)

    def divided(self, share: Share) -> ModelConfig:
        """What one rank has of it: a part of every layer, all else. Raises ``ModelError``."""
        if share.ranks == 1:
            return self
        layers = (
            LayerConfig(layer.mixer.divided(share), layer.feed_forward.divided(share))
            for layer in self.layers
        )
        return replace(self, layers=tuple(layers))
