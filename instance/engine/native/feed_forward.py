"""The feed-forward halves of layers: one gated network, or a choice among many."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from alipes.instance.engine.native.layout import Packer, Part

if TYPE_CHECKING:
    import torch

    from alipes.instance.engine.native.passes import Pass


@dataclass(frozen=True, slots=True)
class Dense:
    """down(silu(gate(x)) * up(x))."""

    hidden: int
    intermediate: int

    def pack(self, packer: Packer, source: str) -> None:
        pack_gated(packer, "", source + "mlp.", self.hidden, self.intermediate)

    def forward(
        self, x: torch.Tensor, weights: Mapping[str, torch.Tensor], step: Pass
    ) -> torch.Tensor:
        return gated(x, weights["gate_up"], weights["down"], step)


@dataclass(frozen=True, slots=True)
class Experts:
    """Each token goes through ``top_k`` of ``count`` gated networks, by their probability."""

    hidden: int
    intermediate: int
    count: int
    top_k: int
    normalize: bool

    def pack(self, packer: Packer, source: str) -> None:
        mlp, inner = source + "mlp.", (self.intermediate, self.hidden)
        packer.exact("router", Part(mlp + "gate.weight", (self.count, self.hidden)))
        gate_up, down = [], []
        for expert in range(self.count):
            name = f"{mlp}experts.{expert}."
            gate_up += [Part(f"{name}{kind}_proj.weight", inner) for kind in ("gate", "up")]
            down.append(Part(name + "down_proj.weight", inner[::-1]))
        read = self.top_k / self.count
        shape = (self.count, 2 * self.intermediate, self.hidden)
        packer.stack("experts_gate_up", tuple(gate_up), shape, read)
        shape = (self.count, self.hidden, self.intermediate)
        packer.stack("experts_down", tuple(down), shape, read)

    def forward(
        self, x: torch.Tensor, weights: Mapping[str, torch.Tensor], step: Pass
    ) -> torch.Tensor:
        routing = step.kernels.route(x, weights["router"], self.top_k, self.normalize)
        stacks = weights["experts_gate_up"], weights["experts_down"]
        return step.kernels.experts(x, *routing, *stacks, step.workspace)


def pack_gated(packer: Packer, to: str, source: str, hidden: int, intermediate: int) -> None:
    """A gated network as ``to`` gate_up (2i, hidden) and ``to`` down (hidden, i)."""
    inner = (intermediate, hidden)
    gate_up = (Part(f"{source}{kind}_proj.weight", inner) for kind in ("gate", "up"))
    packer.matrix(to + "gate_up", *gate_up)
    packer.matrix(to + "down", Part(source + "down_proj.weight", inner[::-1]))


def gated(x: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor, step: Pass) -> torch.Tensor:
    inner = step.kernels.silu_mul(step.kernels.linear(x, gate_up, step.workspace))
    return step.kernels.linear(inner, down, step.workspace)
