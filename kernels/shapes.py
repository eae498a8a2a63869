"""What kernels need to know of a batch, apart from tensors."""

from __future__ import annotations

from dataclasses import dataclass

import torch

Move = tuple[int, int, int]
"""Of bytes within one memory: from where, to where, how many."""
KvHeads = tuple[str, int]
"""Keys and values that a model attends to: their dtype, and the elements of a head."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Rows first .. first + count - 1 of a batch: positions start .. start + count - 1 of one
    call. ``runs`` are (slot, length) pieces of the KV pool that hold positions 0 .. start +
    count - 1 in order. Slots, and lengths but the last, are multiples of ``page``, the same for all
    segments of a batch."""

    first: int
    count: int
    start: int
    runs: tuple[tuple[int, int], ...]
    page: int = 1

    def slots(self) -> torch.Tensor:
        """(start + count,) int64: the pool slot of every position."""
        return torch.cat([torch.arange(slot, slot + length) for slot, length in self.runs])


@dataclass(frozen=True, slots=True)
class PageTable:
    """One row each of n calls, all of it on the device: row i is at ``positions`` (n,) int64 and
    sees the positions up to that. Position p is in slot ``blocks[i, p // block_tokens] *
    block_tokens + p % block_tokens``; ``blocks`` (n, width) int32 holds any block of the pool
    beyond those."""

    blocks: torch.Tensor
    positions: torch.Tensor
    block_tokens: int


@dataclass(frozen=True, slots=True)
class Workspace:
    """float32 scratch of the runtime region: ``widen`` (elements,) for a weight matrix,
    ``gather`` (elements,) for one layer's paged state of a call whose blocks are scattered or
    whose state is of another dtype."""

    widen: torch.Tensor
    gather: torch.Tensor


def runs(indices: torch.Tensor) -> list[tuple[int, int, int]]:
    """The longest pieces of ``indices`` (n,) int64 that rise by one: (place in it, first index,
    length) each."""
    if not len(indices):
        return []
    breaks = (indices.diff() != 1).nonzero().flatten() + 1
    edges = [0, *breaks.tolist(), len(indices)]
    starts = indices[edges[:-1]].tolist()
    return [
        (place, start, end - place)
        for place, end, start in zip(edges[:-1], edges[1:], starts, strict=True)
    ]
