"""Brings a model's weights to the start of the arena: chunks that are on the device from where they
are, all others from the host."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from alipes.instance.memory.device import DeviceMemory
from alipes.instance.memory.moves import Move, order_copies
from alipes.kernels.table import kernels_for


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
    memory: DeviceMemory, moves: Sequence[Move], here: set[int], loading: Loading
) -> None:
    """Exchange pages, then load all chunks that are not ``here``. Not at the same time: whoever
    copies would be interrupted for every change of an address."""
    memory.exchange(moves)
    loading.load(set(range(loading.count)) - here)
