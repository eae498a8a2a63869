"""Attention over the paged pool as one Triton kernel: keys and values are read where they lie.

A program takes a tile of query rows times the heads of a group, which see the same keys, and goes
through the positions that they see once, keeping a running maximum and sum. Rows that stand alone
(decode) have too few tiles to fill a device, so their positions are split among programs, and a
second kernel merges what those found by its log-sum-exp. Latents are keys and values at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
import triton
import triton.language as tl

from alipes.kernels.paging import Pager, Tiles
from alipes.kernels.shapes import PageTable, Segment, Workspace

Tensor = torch.Tensor

_LOG2_E: Final = 1.4426950408889634
# The matrix units multiply no fewer rows at a time.
_LEAST_ROWS: Final = 16
# Positions that a program goes through at least, and programs that share a row at most: beyond
# that, merging costs more than a split gains.
_SPAN: Final = 256
_SPLITS: Final = 64


@triton.jit
def attend_kernel(
    q,
    pool,
    slots,
    tiles,
    out,
    totals,
    group,
    dim,
    rest,
    scale,
    span,
    width,
    q_row,
    q_head,
    slot_size,
    head_size,
    values_at,
    out_row,
    out_head,
    out_split,
    ROWS: tl.constexpr,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    REST: tl.constexpr,
    STEP: tl.constexpr,
    SHARED: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """Program (tile, block of heads, split). A key has ``dim`` elements and ``rest`` more, a value
    ``dim``; all strides are in elements. ``out`` is by batch row, by tile where ``SPLIT``. With
    ``BLOCK`` tokens in one, ``slots`` holds ``width`` blocks a row in place of slots, ``tiles``
    each row's position, and a tile is a row."""
    tile, split = tl.program_id(0).to(tl.int64), tl.program_id(2)
    if BLOCK:
        first, count = tile, 1
        position, base = tl.load(tiles + tile), tile * width
    else:
        first, count = tl.load(tiles + 4 * tile), tl.load(tiles + 4 * tile + 1)
        position, base = tl.load(tiles + 4 * tile + 2), tl.load(tiles + 4 * tile + 3)
    blocks = tl.cdiv(group, HEADS)
    shared = tl.program_id(1) // blocks
    index = tl.arange(0, ROWS * HEADS)
    row, inner = index // HEADS, (tl.program_id(1) % blocks) * HEADS + index % HEADS
    used, head = (row < count) & (inner < group), shared * group + inner

    d = tl.arange(0, DIM)
    at = q + (first + row) * q_row + head * q_head
    query = tl.load(at[:, None] + d[None, :], mask=used[:, None] & (d < dim)[None, :], other=0.0)
    query *= scale
    if REST:
        r = tl.arange(0, REST)
        more = used[:, None] & (r < rest)[None, :]
        query_rest = tl.load(at[:, None] + dim + r[None, :], mask=more, other=0.0) * scale

    best = tl.full([ROWS * HEADS], float("-inf"), tl.float32)
    norm = tl.zeros([ROWS * HEADS], tl.float32)
    found = tl.zeros([ROWS * HEADS, DIM], tl.float32)
    high = tl.minimum((split + 1) * span, position + count)
    for start in range(split * span, high, STEP):
        j = start + tl.arange(0, STEP)
        inside = j < high
        if BLOCK:
            block = tl.load(slots + base + j // BLOCK, mask=inside, other=0).to(tl.int64)
            held = pool + (block * BLOCK + j % BLOCK) * slot_size
        else:
            held = pool + tl.load(slots + base + j, mask=inside, other=0) * slot_size
        held += shared * head_size
        whole = inside[:, None] & (d < dim)[None, :]
        keys = tl.load(held[:, None] + d[None, :], mask=whole, other=0.0).to(tl.float32)
        scores = tl.dot(query, tl.trans(keys), input_precision=PRECISION)
        if REST:
            further = inside[:, None] & (r < rest)[None, :]
            keys_rest = tl.load(held[:, None] + dim + r[None, :], mask=further, other=0.0)
            scores = tl.dot(
                query_rest,
                tl.trans(keys_rest.to(tl.float32)),
                acc=scores,
                input_precision=PRECISION,
            )
        seen = inside[None, :] & (j[None, :] <= (position + row)[:, None])
        scores = tl.where(seen, scores, float("-inf"))
        peak = tl.maximum(best, tl.max(scores, 1))
        # A row that saw nothing yet would subtract infinities.
        level = tl.where(peak == float("-inf"), 0.0, peak)
        weights, kept = tl.exp2(scores - level[:, None]), tl.exp2(best - level)
        norm = norm * kept + tl.sum(weights, 1)
        if SHARED:
            values = keys
        else:
            values = tl.load(held[:, None] + values_at + d[None, :], mask=whole, other=0.0)
            values = values.to(tl.float32)
        found = tl.dot(weights, values, acc=found * kept[:, None], input_precision=PRECISION)
        best = peak

    sums = tl.where(norm > 0, norm, 1.0)
    if SPLIT:
        part = tile * out_row + head * out_head + split * out_split
        place = out + part
        total = tl.where(norm > 0, best + tl.log2(sums), float("-inf"))
        tl.store(totals + part // dim, total, mask=used)
    else:
        place = out + (first + row) * out_row + head * out_head
    found = found / sums[:, None]
    # Where a call is much shorter than the longest, most splits have nothing that is ever read.
    used = used & (norm > 0)
    tl.store(place[:, None] + d[None, :], found, mask=used[:, None] & (d < dim)[None, :])


@triton.jit
def merge_kernel(
    parts,
    totals,
    tiles,
    out,
    heads,
    splits,
    dim,
    DIM: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Program (tile, head): ``parts`` (tiles, heads, splits, dim), ``totals`` (tiles, heads,
    splits) in powers of two, ``out`` (rows, heads, dim). With ``BLOCK`` a tile is a row."""
    tile, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    first = (tile * heads + head) * splits
    s, d = tl.arange(0, SPLITS), tl.arange(0, DIM)
    peak = tl.max(tl.load(totals + first + s, mask=s < splits, other=float("-inf")), 0)
    norm, found = 0.0, tl.zeros([DIM], tl.float32)
    for split in range(splits):
        weight = tl.exp2(tl.load(totals + first + split) - peak)
        if weight > 0:
            norm += weight
            part = parts + (first + split) * dim + d
            found += weight * tl.load(part, mask=d < dim, other=0.0)
    row = tile
    if not BLOCK:
        row = tl.load(tiles + 4 * tile)
    tl.store(out + (row * heads + head) * dim + d, found / norm, mask=d < dim)


def _padded(size: int) -> int:
    return 1 << (size - 1).bit_length()


@dataclass(frozen=True, slots=True)
class _Form:
    """How a pool is read: ``keys`` heads of ``dim`` elements and ``rest`` more, values ``dim``
    elements ``values_at`` behind them. The rest are the kernel's sizes, padded."""

    keys: int
    group: int
    dim: int
    rest: int
    values_at: int
    scale: float

    @property
    def padded(self) -> int:
        return max(16, _padded(self.dim))

    @property
    def tile(self) -> int:
        """Rows times heads of a program: more would not leave it its registers."""
        return max(_LEAST_ROWS, min(64, 4096 // self.padded))

    @property
    def heads(self) -> int:
        return min(self.tile, _padded(self.group))

    @property
    def step(self) -> int:
        """Positions read at a time: their keys and values stay within shared memory."""
        return 16 if self.wide else 32

    @property
    def wide(self) -> bool:
        """Whether products in three parts (float32 by matrix units) would not leave a program its
        registers, so that they are computed as float32."""
        return self.padded > 128


def _form(q: Tensor, pool: Tensor) -> _Form:
    dim = q.shape[2]
    return _Form(
        keys=pool.shape[2],
        group=q.shape[1] // pool.shape[2],
        dim=dim,
        rest=0,
        values_at=pool.stride(1),
        scale=dim**-0.5,
    )


def _latent_form(q: Tensor, rank: int, scale: float) -> _Form:
    return _Form(
        keys=1, group=q.shape[1], dim=rank, rest=q.shape[2] - rank, values_at=0, scale=scale
    )


class PagedAttention:
    """``attend`` and ``attend_latent`` of the table."""

    def __init__(self) -> None:
        self._pager = Pager()

    def attend(
        self, q: Tensor, kv: Tensor, pool: Tensor, segments: Sequence[Segment], workspace: Workspace
    ) -> Tensor:
        return self._attend(q, pool, segments, _form(q, pool)).flatten(1)

    def attend_latent(
        self,
        q: Tensor,
        latents: Tensor,
        pool: Tensor,
        segments: Sequence[Segment],
        rank: int,
        scale: float,
        workspace: Workspace,
    ) -> Tensor:
        return self._attend(q, pool, segments, _latent_form(q, rank, scale))

    def _attend(self, q: Tensor, pool: Tensor, segments: Sequence[Segment], form: _Form) -> Tensor:
        out = q.new_empty(*q.shape[:2], form.dim)
        q = q if q.stride(-1) == 1 else q.contiguous()
        pages = self._pager.pages(segments, form.tile // form.heads, q.device)
        if len(pages.several.table):
            _launch(q, pool, pages.slots, pages.several, form, out, None)
        if len(pages.single.table):
            _attend_single(q, pool, pages.slots, pages.single, form, out)
        return out


def attend_step(q: Tensor, pool: Tensor, pages: PageTable) -> Tensor:
    return _attend_step(q, pool, pages, _form(q, pool)).flatten(1)


def attend_latent_step(
    q: Tensor, pool: Tensor, pages: PageTable, rank: int, scale: float
) -> Tensor:
    return _attend_step(q, pool, pages, _latent_form(q, rank, scale))


def _attend_step(q: Tensor, pool: Tensor, pages: PageTable, form: _Form) -> Tensor:
    """What is launched depends on how many positions a table has room for, not on how many are
    used: programs that would begin beyond those end at once."""
    out = q.new_empty(*q.shape[:2], form.dim)
    q = q if q.stride(-1) == 1 else q.contiguous()
    longest = pages.blocks.shape[1] * pages.block_tokens
    tiles = Tiles(pages.positions, 1, longest, pages.block_tokens)
    _attend_single(q, pool, pages.blocks, tiles, form, out)
    return out


def _attend_single(
    q: Tensor, pool: Tensor, slots: Tensor, tiles: Tiles, form: _Form, out: Tensor
) -> None:
    heads = q.shape[1]
    splits = min(_SPLITS, triton.cdiv(tiles.longest, _SPAN))
    if splits == 1:
        _launch(q, pool, slots, tiles, form, out, None)
        return
    parts = q.new_empty(len(tiles.table), heads, splits, form.dim)
    totals = q.new_empty(len(tiles.table), heads, splits)
    _launch(q, pool, slots, tiles, form, parts, totals)
    merge_kernel[(len(tiles.table), heads)](
        parts,
        totals,
        tiles.table,
        out,
        heads,
        splits,
        form.dim,
        DIM=form.padded,
        SPLITS=_padded(splits),
        BLOCK=tiles.block,
    )


def _launch(
    q: Tensor,
    pool: Tensor,
    slots: Tensor,
    tiles: Tiles,
    form: _Form,
    out: Tensor,
    totals: Tensor | None,
) -> None:
    """``out`` (rows, H, dim); with ``totals``, (tiles, H, splits, dim)."""
    splits = 1 if totals is None else out.shape[2]
    heads = form.heads if tiles.rows > 1 else max(form.heads, _LEAST_ROWS)
    grid = len(tiles.table), form.keys * triton.cdiv(form.group, heads), splits
    attend_kernel[grid](
        q,
        pool,
        slots,
        tiles.table,
        out,
        out if totals is None else totals,
        form.group,
        form.dim,
        form.rest,
        form.scale * _LOG2_E,
        triton.cdiv(triton.cdiv(tiles.longest, splits), form.step) * form.step,
        slots.shape[-1],
        q.stride(0),
        q.stride(1),
        pool.stride(0),
        pool.stride(-2) if pool.dim() == 4 else 0,
        form.values_at,
        out.stride(0),
        out.stride(1),
        0 if totals is None else out.stride(2),
        ROWS=tiles.rows,
        HEADS=heads,
        DIM=form.padded,
        REST=max(16, _padded(form.rest)) if form.rest else 0,
        STEP=form.step,
        SHARED=form.values_at == 0,
        SPLIT=totals is not None,
        BLOCK=tiles.block,
        PRECISION="ieee" if form.wide else "tf32x3",
        num_warps=8 if form.wide else 4,
        num_stages=2,
    )
