"""Copies of rows and of runs of bytes as one kernel each: no call to the driver for every piece."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import torch
import triton
import triton.language as tl

from alipes.kernels import portable
from alipes.kernels.intervals import waves
from alipes.kernels.shapes import Move, runs

Tensor = torch.Tensor

_BLOCK: Final = 1024
# Giving a copy to the driver takes some 5 us, in which the bus moves this much (at 25-50 GB/s):
# smaller pieces are for the kernel, which writes to the host by itself, larger ones for the copy
# engine, which leaves the processors alone.
_CALL_BYTES: Final = 128 << 10
# Programs for each run, which go through it together.
_SHARE: Final = 64


@triton.jit
def copy_rows_kernel(source, taken, target, written, width, BLOCK: tl.constexpr) -> None:
    """Program (row, block): row ``taken[i]`` of ``source`` to ``written[i]`` of ``target``."""
    row = tl.program_id(0)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    origin = source + tl.load(taken + row) * width
    place = target + tl.load(written + row) * width
    tl.store(place + at, tl.load(origin + at, mask=at < width), mask=at < width)


@triton.jit
def move_kernel(memory, table, SHARE: tl.constexpr, BLOCK: tl.constexpr) -> None:
    """Program (run, part): ``table`` (runs, 3) int64 has source, target and length in elements."""
    run = table + 3 * tl.program_id(0)
    origin, place, length = tl.load(run), tl.load(run + 1), tl.load(run + 2)
    for start in range(tl.program_id(1) * BLOCK, length, SHARE * BLOCK):
        at = start + tl.arange(0, BLOCK)
        tl.store(memory + place + at, tl.load(memory + origin + at, mask=at < length), at < length)


def copy_out(pool: Tensor, rows: Tensor, host: Tensor, slabs: Tensor) -> None:
    if _gains(pool, host, slabs):
        _copy_rows(pool, rows, host, slabs)
    else:
        portable.copy_out(pool, rows, host, slabs)


def copy_in(host: Tensor, slabs: Tensor, pool: Tensor, rows: Tensor) -> None:
    if _gains(pool, host, slabs):
        _copy_rows(host, slabs, pool, rows)
    else:
        portable.copy_in(host, slabs, pool, rows)


def _gains(pool: Tensor, host: Tensor, slabs: Tensor) -> bool:
    """Only pinned memory is within its reach, and only small pieces gain."""
    reachable = pool.device == host.device or host.is_pinned()
    return reachable and len(slabs) * pool.shape[1] < _CALL_BYTES * len(runs(slabs))


def _copy_rows(source: Tensor, rows: Tensor, target: Tensor, places: Tensor) -> None:
    device = source.device if source.device.type != "cpu" else target.device
    taken, written = (portable.beside(indices, device) for indices in (rows, places))
    if _whole(source) and _whole(target):
        source, target = source.view(torch.int64), target.view(torch.int64)
    width = source.shape[1]
    grid = len(rows), triton.cdiv(width, _BLOCK)
    copy_rows_kernel[grid](source, taken, target, written, width, BLOCK=_BLOCK)


def move(memory: Tensor, moves: Sequence[Move]) -> None:
    """Those that do not touch what another one reads or writes go together."""
    for wave in waves(moves):
        source, target, count = wave[0]
        if abs(source - target) < count:
            portable.move(memory, wave)
        else:
            _move_together(memory, wave)


def _move_together(memory: Tensor, moves: Sequence[Move]) -> None:
    table = portable.beside(torch.tensor(moves, dtype=torch.int64), memory.device)
    if _whole(memory, *(number for one in moves for number in one)):
        memory, table = memory.view(torch.int64), table // 8
    move_kernel[(len(moves), _SHARE)](memory, table, SHARE=_SHARE, BLOCK=_BLOCK)


def _whole(memory: Tensor, *places: int) -> bool:
    """Whether memory and ``places`` (bytes) lie on bounds of 8 bytes, to be copied as words."""
    own = memory.data_ptr(), int(memory.storage_offset()), int(memory.shape[-1])
    return math.gcd(*own, *places) % 8 == 0
