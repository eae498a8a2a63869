"""A choice of experts as two Triton products, none of whose sizes depends on what was chosen.

Pairs of a row and an expert are sorted by expert and cut into tiles of pairs that share one, so
that a matrix is read once for each tile. There are as many programs as any choice could need; those
that have no tile end at once, and the host never has to know the choice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
import triton
import triton.language as tl

from alipes.kernels.portable import silu_mul
from alipes.kernels.shapes import Workspace

Tensor = torch.Tensor

# The matrix units multiply no fewer rows at a time; more than the latter would leave a program
# without registers.
_LEAST_ROWS: Final = 16
_MOST_ROWS: Final = 64
_OUTPUTS: Final = 64
_STEP: Final = 64


@triton.jit
def product_kernel(
    x,
    weight,
    sources,
    tiles,
    out,
    inner,
    outputs,
    x_row,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    STEP: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """Program (tile, part of its outputs): ``out`` (pairs, outputs) gets row ``sources[pair]`` of
    ``x`` times the matrix of the tile's expert, of ``weight`` (experts, outputs, inner)."""
    tile = tl.program_id(0)
    expert, first = tl.load(tiles + 3 * tile), tl.load(tiles + 3 * tile + 1)
    count = tl.load(tiles + 3 * tile + 2)
    if count > 0:
        row = tl.arange(0, ROWS)
        used = row < count
        source = tl.load(sources + first + row, mask=used, other=0)
        column = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
        own = weight + (expert * outputs + column) * inner
        total = tl.zeros([ROWS, OUTPUTS], tl.float32)
        for start in range(0, inner, STEP):
            i = start + tl.arange(0, STEP)
            taken = used[:, None] & (i < inner)[None, :]
            left = tl.load(x + source[:, None] * x_row + i[None, :], mask=taken, other=0.0)
            read = (column < outputs)[:, None] & (i < inner)[None, :]
            right = tl.load(own[:, None] + i[None, :], mask=read, other=0.0)
            left = left.to(weight.dtype.element_ty)
            total = tl.dot(left, tl.trans(right), acc=total, input_precision=PRECISION)
        place = out + (first + row)[:, None] * outputs + column[None, :]
        tl.store(place, total, mask=used[:, None] & (column < outputs)[None, :])


@dataclass(frozen=True, slots=True)
class Plan:
    """Pairs in the order of their experts: ``order`` (pairs,) says which each is, ``tiles``
    (tiles, 3) its expert, first pair and how many, at most ``rows``; all int64."""

    order: Tensor
    tiles: Tensor
    rows: int


def plan(chosen: Tensor, count: int) -> Plan:
    """For ``chosen`` (n, top_k) of ``count`` experts. Nothing here waits for the device."""
    pairs = chosen.numel()
    rows = min(_MOST_ROWS, max(_LEAST_ROWS, 1 << (pairs // count).bit_length()))
    sorted_, order = chosen.flatten().sort(stable=True)
    ends = torch.searchsorted(sorted_, torch.arange(count, device=chosen.device), right=True)
    begins = torch.cat([ends.new_zeros(1), ends[:-1]])
    last = ((ends - begins + rows - 1) // rows).cumsum(0)
    # No more tiles than this, however the pairs are spread.
    most = torch.arange(min(pairs, count) + pairs // rows, device=chosen.device)
    expert = torch.searchsorted(last, most, right=True)
    # Tiles that nothing is left for belong to the last expert, behind its end.
    expert = expert.clamp_max_(count - 1)
    before = torch.cat([last.new_zeros(1), last[:-1]])
    first = begins[expert] + (most - before[expert]) * rows
    left = (ends[expert] - first).clamp_(0, rows)
    return Plan(order, torch.stack([expert, first, left], 1), rows)


def experts(
    x: Tensor,
    weights: Tensor,
    chosen: Tensor,
    gate_up: Tensor,
    down: Tensor,
    workspace: Workspace,
) -> Tensor:
    planned = plan(chosen, len(gate_up))
    sources = planned.order // chosen.shape[1]
    inner = silu_mul(_product(x, gate_up, sources, planned))
    pairs = torch.arange(len(sources), device=x.device)
    parts = _product(inner, down, pairs, planned)
    out = torch.empty_like(parts).index_copy_(0, planned.order, parts)
    return out.view(*chosen.shape, -1).mul_(weights.unsqueeze(2)).sum(1)


def _product(x: Tensor, weight: Tensor, sources: Tensor, planned: Plan) -> Tensor:
    """(pairs, outputs) float32, by the experts' order."""
    outputs, inner = weight.shape[1:]
    out = torch.empty(len(sources), outputs, device=x.device)
    product_kernel[(len(planned.tiles), triton.cdiv(outputs, _OUTPUTS))](
        x,
        weight,
        sources,
        planned.tiles,
        out,
        inner,
        outputs,
        x.stride(0),
        ROWS=planned.rows,
        OUTPUTS=_OUTPUTS,
        STEP=_STEP,
        PRECISION="tf32x3",
    )
    return out
