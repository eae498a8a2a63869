"""Forms that are fast on CPUs: oneDNN products, experts, copies of rows.

Waking a second thread costs some 20 us, so what counts for few rows is the number of large
operations, and what counts for many is to keep weights that were just widened in cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import torch
import torch.nn.functional as F

from alipes.kernels.portable import silu_mul
from alipes.kernels.shapes import Workspace, runs

_FEW_ROWS: Final = 4
_ONEDNN: Final[bool] = torch._C._has_mkldnn

_Linear = Callable[[torch.Tensor, torch.Tensor, Workspace], torch.Tensor]


def _product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """float32 x (n, i) times (o, i). Of the ways to say it, these read the weights at the speed
    of memory for one row and for a few; beyond that oneDNN beats the default product by a
    third."""
    rows, outputs = x.shape[0], weight.shape[0]
    if rows == 1 and outputs % 2 == 0:
        halves = weight.view(2, outputs // 2, -1)
        return torch.bmm(halves, x.t().expand(2, -1, -1)).view(1, outputs)
    if rows <= _FEW_ROWS:
        return torch.mm(weight, x.t()).t().contiguous()
    if _ONEDNN:
        product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")
        return product
    return F.linear(x, weight)


def linear(x: torch.Tensor, weight: torch.Tensor, workspace: Workspace) -> torch.Tensor:
    """For many rows: widens ``weight`` into scratch, piece by piece where it is larger."""
    if weight.dtype == torch.float32:
        return _product(x, weight)
    scratch, (rows, width) = workspace.widen, weight.shape
    if weight.numel() <= scratch.numel():
        return _product(x, scratch[: weight.numel()].view(rows, width).copy_(weight))
    step = scratch.numel() // width
    out = x.new_empty(x.shape[0], rows)
    for first in range(0, rows, step):
        piece = weight[first : first + step]
        wide = scratch[: piece.numel()].view(-1, width).copy_(piece)
        out[:, first : first + step] = _product(x, wide)
    return out


def per_head(x: torch.Tensor, weight: torch.Tensor, workspace: Workspace) -> torch.Tensor:
    """Widens ``weight`` into scratch, as many heads at a time as fit: float16 products of
    batches of matrices are slower than that even for one row."""
    heads = x.transpose(0, 1)
    if weight.dtype == torch.float32:
        return torch.bmm(heads, weight).transpose(0, 1)
    out = x.new_empty(weight.shape[0], x.shape[0], weight.shape[2])
    step = max(1, workspace.widen.numel() // weight[0].numel())
    for first in range(0, len(weight), step):
        piece = slice(first, first + step)
        torch.bmm(heads[piece], _widened(weight[piece], workspace), out=out[piece])
    return out.transpose(0, 1)


def _widened(weight: torch.Tensor, workspace: Workspace) -> torch.Tensor:
    """In the order in which the elements lie, be it rows or columns first."""
    if weight.stride(-1) != 1:
        return _widened(weight.mT, workspace).mT
    return workspace.widen[: weight.numel()].view(weight.shape).copy_(weight)


def narrow_linear(x: torch.Tensor, weight: torch.Tensor, workspace: Workspace) -> torch.Tensor:
    """For few rows: multiplies in float16, whose time grows with the rows but which reads half
    the bytes."""
    if weight.dtype == torch.float32:
        return _product(x, weight)
    return F.linear(x.half(), weight).float()


def experts(
    x: torch.Tensor,
    weights: torch.Tensor,
    chosen: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    workspace: Workspace,
) -> torch.Tensor:
    return _experts(linear, x, weights, chosen, gate_up, down, workspace)


def narrow_experts(
    x: torch.Tensor,
    weights: torch.Tensor,
    chosen: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    workspace: Workspace,
) -> torch.Tensor:
    return _experts(narrow_linear, x, weights, chosen, gate_up, down, workspace)


def _experts(
    product: _Linear,
    x: torch.Tensor,
    weights: torch.Tensor,
    chosen: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    workspace: Workspace,
) -> torch.Tensor:
    """Sorts (row, expert) pairs by expert, so that each expert multiplies once."""
    order = chosen.flatten().argsort(stable=True)
    rows = order // chosen.shape[1]
    taken = x.index_select(0, rows)
    result = torch.empty_like(taken)
    first = 0
    for expert, count in enumerate(chosen.flatten().bincount().tolist()):
        if count:
            inner = silu_mul(product(taken[first : first + count], gate_up[expert], workspace))
            result[first : first + count] = product(inner, down[expert], workspace)
            first += count
    result.mul_(weights.flatten().index_select(0, order).unsqueeze(1))
    return torch.zeros_like(x).index_add_(0, rows, result)


def copy_out(
    pool: torch.Tensor, rows: torch.Tensor, host: torch.Tensor, slabs: torch.Tensor
) -> None:
    _copy_rows(pool, rows, host, slabs)


def copy_in(
    host: torch.Tensor, slabs: torch.Tensor, pool: torch.Tensor, rows: torch.Tensor
) -> None:
    _copy_rows(host, slabs, pool, rows)


def _copy_rows(
    source: torch.Tensor, rows: torch.Tensor, target: torch.Tensor, at: torch.Tensor
) -> None:
    """One ``take`` for each run of neighbouring target rows: it copies as fast as one thread
    can, holding no interpreter lock, and leaves the other threads to the engine's step."""
    at, order = at.sort()
    picked, taken, written = rows[order].numpy(), source.numpy(), target.numpy()
    for first, start, length in runs(at):
        wanted = picked[first : first + length]
        # Without a mode numpy would copy everything twice.
        np.take(taken, wanted, axis=0, out=written[start : start + length], mode="clip")
