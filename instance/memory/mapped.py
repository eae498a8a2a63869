"""Process memory whose pages change places under live tensors.

Linux moves page tables from one address to another (``mremap``): the pages, huge ones too, stay as
they are, nothing is copied and nothing is faulted in again. With shared memory (``memfd``) every
page that was mapped elsewhere would be faulted in once more, which takes as long as a copy.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from functools import cache
from typing import Any, Final

import torch

from alipes.instance.memory.device import private_region
from alipes.instance.memory.moves import Move, exchange_cycles
from alipes.instance.memory.staging_plan import GRANULE

SPARE: Final = 16 << 20
_HUGE_PAGE: Final = 2 << 20
_MAYMOVE, _FIXED, _DONTUNMAP = 1, 2, 4
_FAILED: Final = ctypes.c_void_p(-1).value


class MappedMemory:
    """Implements ``DeviceMemory``. Raises ``EngineError`` when the machine refuses so much."""

    kind = "mapped"
    granule = GRANULE

    def __init__(self, nbytes: int) -> None:
        region = torch.frombuffer(private_region(nbytes + _HUGE_PAGE), dtype=torch.uint8)
        start = -region.data_ptr() % _HUGE_PAGE
        self.data = region[start : start + nbytes]
        # Room for what stands in the way of a cycle of moves; its pages are always elsewhere.
        self._spare = torch.frombuffer(private_region(SPARE + _HUGE_PAGE), dtype=torch.uint8)
        self._aside = self._spare.data_ptr() + -self._spare.data_ptr() % _HUGE_PAGE

    def exchange(self, moves: Sequence[Move]) -> None:
        cycles = exchange_cycles(moves)
        frame = moves[0].nbytes if moves else 0
        if frame % GRANULE:
            raise ValueError(f"frames of {frame} bytes are not in whole units of {GRANULE}")
        base = self.data.data_ptr()
        for at in range(0, frame, SPARE):
            places = [[base + at + start for start in cycle.starts] for cycle in cycles]
            unwanted = [cycle.open for cycle in cycles]
            self._turn(places, unwanted, min(SPARE, frame - at))

    def _turn(self, cycles: list[list[int]], unwanted: list[bool], nbytes: int) -> None:
        """Move so many bytes at each address of a cycle to the next one. Of an unwanted last one
        all that matters is that its pages stay: they fill the gap that the cycle before left, so
        that only those of one are set aside."""
        gap = 0
        for places, is_unwanted in zip(cycles, unwanted, strict=True):
            if gap and not is_unwanted:
                _shift(self._aside, gap, nbytes)
                gap = 0
            _shift(places[-1], gap or self._aside, nbytes)
            for source, target in zip(places[-2::-1], places[:0:-1], strict=True):
                _shift(source, target, nbytes)
            gap = places[0]
            if not is_unwanted:
                _shift(self._aside, gap, nbytes)
                gap = 0
        if gap:
            _shift(self._aside, gap, nbytes)


def _shift(source: int, target: int, nbytes: int) -> None:
    """Move pages; ``source`` stays mapped, without any, so that no other mapping can slip in. The
    kernel may refuse a range that it keeps as several mappings: then its halves are moved, and in
    the end bytes are copied."""
    libc = _libc()
    moved = libc.mremap(source, nbytes, nbytes, _MAYMOVE | _FIXED | _DONTUNMAP, target)
    if moved == target:
        return
    if moved != _FAILED:
        raise RuntimeError(f"the kernel moved pages to {moved:#x} instead of {target:#x}")
    if nbytes == GRANULE:
        ctypes.memmove(target, source, nbytes)
        return
    half = nbytes // 2 // GRANULE * GRANULE
    _shift(source, target, half)
    _shift(source + half, target + half, nbytes - half)


@cache
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    size, pointer = ctypes.c_size_t, ctypes.c_void_p
    libc.mremap.restype = pointer
    libc.mremap.argtypes = [pointer, size, size, ctypes.c_int, pointer]
    return libc


@cache
def can_exchange() -> bool:
    """Whether pages can be moved here: Linux 5.7 or newer, and nothing that forbids it."""
    if not sys.platform.startswith("linux"):
        return False
    pages = torch.frombuffer(private_region(2 * GRANULE), dtype=torch.uint8)
    pages[GRANULE:] = 1
    moved = _libc().mremap(
        pages.data_ptr() + GRANULE,
        GRANULE,
        GRANULE,
        _MAYMOVE | _FIXED | _DONTUNMAP,
        ctypes.c_void_p(pages.data_ptr()),
    )
    return bool(moved == pages.data_ptr()) and bool(pages[:GRANULE].all())
