"""What the layers of one forward pass share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from alipes.instance.engine.native.batch import Batch
from alipes.instance.engine.native.carry import Move, carry
from alipes.instance.engine.native.rope import Rope
from alipes.kernels.shapes import Workspace
from alipes.kernels.table import Kernels

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class Pass:
    """``angles`` has the batch's rows, (n, dim / 2) complex64, for every rotary embedding of the
    model. Paged state may be written at once, for doing it again changes nothing; what would
    replace recurrent state waits in ``writes`` until the pass has succeeded. Where a model is
    divided, ``reduce`` replaces a result by the sum of what all ranks have for it."""

    batch: Batch
    angles: Mapping[Rope, Tensor]
    kernels: Kernels
    workspace: Workspace
    writes: list[tuple[Tensor, Tensor, Tensor]] = field(default_factory=list)
    reduce: Callable[[Tensor], None] | None = None

    def summed(self, x: Tensor) -> Tensor:
        """A result of this rank's part of a layer as that of the whole layer, in place."""
        if self.reduce is not None:
            self.reduce(x)
        return x

    def carry(self, pool: Tensor, inputs: Sequence[Tensor], step: Move, chunk: Move) -> Tensor:
        """Move the recurrent states of all rows on, see ``carry``."""
        assert self.batch.carries is not None
        return carry(self.batch.carries, self, pool, inputs, step, chunk)

    def save(self, state: Tensor, slots: Tensor, values: Tensor) -> None:
        """Have ``commit`` store ``values`` (m, *shape) at ``slots`` (m,) int64 of ``state``
        (slots, *shape)."""
        self.writes.append((state, slots, values))

    def store(self) -> None:
        """What ``commit`` does; may be done again."""
        for state, slots, values in self.writes:
            state.index_copy_(0, slots, values)

    def commit(self) -> None:
        self.store()
        self.writes.clear()
