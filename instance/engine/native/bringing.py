"""Brings a model's weights to the start of the arena: chunks that are on the device from where they
are, all others from the host."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Final

import torch

from alipes.instance.memory.device import DeviceMemory
from alipes.instance.memory.moves import Cycle, Move, exchange_cycles, order_copies
from alipes.kernels.table import kernels_for

PARTS: Final = 4
"""In so many goes are pages exchanged where there is something to load meanwhile."""


@dataclass(frozen=True, slots=True)
class Loading:
    """From ``host`` to ``target``, both (weight_bytes,) uint8, in chunks of ``chunk`` bytes."""

    host: torch.Tensor
    target: torch.Tensor
    chunk: int

    @property
    def count(self) -> int:
        return -(-len(self.host) // self.chunk)

    def load(self, chunks: Iterable[int]) -> None:
        """Neighbours in one go."""
        runs: list[tuple[int, int]] = []
        for chunk in sorted(chunks):
            first = runs.pop()[0] if runs and runs[-1][1] == chunk else chunk
            runs.append((first, chunk + 1))
        for first, end in runs:
            part = slice(first * self.chunk, end * self.chunk)
            self.target[part].copy_(self.host[part], non_blocking=True)


def bring_by_copies(memory: DeviceMemory, needed: dict[int, Move], loading: Loading) -> set[int]:
    """Chunks by number and how they come to their places; those that really did. Some block one
    another, and are loaded."""
    ordered, dropped = order_copies(list(needed.values()), len(needed))
    runs = [(move.source, move.target, move.nbytes) for move in ordered]
    kernels_for(memory.data.device, None).move(memory.data, runs)
    lost = {move.target for move in dropped}
    here = {chunk for chunk, move in needed.items() if move.target not in lost}
    loading.load(set(range(loading.count)) - here)
    return here


def bring_by_exchange(
    memory: DeviceMemory,
    moves: Sequence[Move],
    here: set[int],
    loading: Loading,
    aside: Executor | None = None,
) -> None:
    """Exchange pages, and load all chunks that are not ``here`` afterwards. Those whose places are
    settled are loaded while others are exchanged, ``aside`` where that is given: then a switch
    that finds nothing on the device takes no longer for what it leaves there."""
    left = set(range(loading.count)) - here
    parts = _parts(moves, PARTS if left and aside is not None else 1)
    memory.exchange(parts[0])
    for number, part in enumerate(parts[1:], 1):
        assert aside is not None
        unsettled = {at // loading.chunk for moves in parts[number:] for at in _ends(moves)}
        exchanged = aside.submit(memory.exchange, part)
        try:
            loading.load(left - unsettled)
        finally:
            exchanged.result()
        left &= unsettled
    loading.load(left)


def _ends(moves: Iterable[Move]) -> Iterable[int]:
    for move in moves:
        yield from (move.source, move.target)


def _parts(moves: Sequence[Move], count: int) -> list[list[Move]]:
    """In so many parts of about one size, or fewer, none of which a cycle leads out of."""
    if count == 1:
        return [list(moves)]
    parts: list[list[Move]] = [[]]
    for cycle in exchange_cycles(moves):
        if len(parts[-1]) * count >= len(moves):
            parts.append([])
        parts[-1] += _moves(cycle)
    return parts


def _moves(cycle: Cycle) -> list[Move]:
    starts = cycle.starts
    targets = starts[1:] if cycle.open else (*starts[1:], starts[0])
    return [Move(s, t, cycle.nbytes) for s, t in zip(starts, targets, strict=False)]
