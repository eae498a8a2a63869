"""Copies to the host that find out whether what is there is what was on the device."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch

from alipes.kernels.table import Kernels

PIECE_PARTS: Final = 256
"""Parts that are copied before they are looked at: what is on its way at a time."""


@dataclass(frozen=True, slots=True)
class Places:
    """One block: its rows on the device and its slabs on the host, (parts,) int64; which of them,
    (parts,) bool, hold what is the same in all ranks, and which of them this rank writes."""

    rows: torch.Tensor
    slabs: torch.Tensor
    common: torch.Tensor
    ours: torch.Tensor


class CheckedCopy:
    """Copies ``blocks`` from ``pool`` (rows, slab_bytes) uint8 to ``host``, of the same form.
    ``run`` may be called on another thread than ``take``, once."""

    def __init__(
        self, pool: torch.Tensor, host: torch.Tensor, blocks: Sequence[Places], kernels: Kernels
    ) -> None:
        self._pool: Final = pool
        self._host: Final = host
        self._blocks: Final = blocks
        self._kernels: Final = kernels
        self._marks: list[int] = []
        self._taken = 0

    def take(self) -> tuple[int, ...]:
        """A mark for every block, from the first, that was found intact since this was last asked:
        a checksum of what is the same in all ranks."""
        new = tuple(self._marks[self._taken :])
        self._taken += len(new)
        return new

    def run(self) -> None:
        """Ends at the first block that is not intact: nothing behind it would be of use."""
        size = max(1, PIECE_PARTS // max((len(block.rows) for block in self._blocks), default=1))
        with torch.inference_mode():
            for first in range(0, len(self._blocks), size):
                if not self._copy(self._blocks[first : first + size]):
                    return

    def _copy(self, blocks: Sequence[Places]) -> bool:
        rows = torch.cat([block.rows for block in blocks])
        slabs = torch.cat([block.slabs for block in blocks])
        ours = torch.cat([block.ours for block in blocks])
        sent = self._kernels.checksums(self._pool, rows)
        self._kernels.copy_out(self._pool, rows[ours], self._host, slabs[ours])
        # Of what others write, they say themselves whether it is what all ranks have.
        came = sent.clone()
        came[ours] = self._kernels.checksums(self._host, slabs[ours])
        counts = [len(block.rows) for block in blocks]
        each = torch.split(torch.stack((sent, came)), counts, dim=1)
        for block, (there, here) in zip(blocks, each, strict=True):
            if not torch.equal(there, here):
                return False
            self._marks.append(zlib.crc32(there[block.common].numpy().tobytes()))
        return True
