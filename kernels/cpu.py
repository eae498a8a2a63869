"""Forms that are fast on CPUs: oneDNN products, flash attention over views of the KV pool.

Waking a second thread costs some 20 us, so what counts for few rows is the number of large
operations, and what counts for many is to keep weights that were just widened in cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import torch
import torch.nn.functional as F

from alipes.kernels.portable import silu_mul
from alipes.kernels.shapes import Segment, Workspace, runs

# Scattered runs are attended one by one up to this many, and gathered beyond it.
_MAX_RUNS: Final = 8
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


def attend(
    q: torch.Tensor,
    kv: torch.Tensor,
    pool: torch.Tensor,
    segments: Sequence[Segment],
    workspace: Workspace,
) -> torch.Tensor:
    """Flash attention over contiguous runs of the pool, merged by their log-sum-exp."""
    n, heads, dim = q.shape
    groups = (pool.shape[2], heads // pool.shape[2])
    out = q.new_empty(n, *groups, dim)
    for segment in segments:
        rows = slice(segment.first, segment.first + segment.count)
        grouped = q[rows].view(segment.count, *groups, dim)
        if segment.count == 1:
            out[rows] = _attend_one(grouped[0], pool, segment, workspace)
        else:
            attended = _attend_chunk(grouped, kv[rows], pool, segment, workspace)
            out[rows] = attended.permute(2, 0, 1, 3)
    return out.view(n, heads * dim)


def attend_latent(
    q: torch.Tensor,
    latents: torch.Tensor,
    pool: torch.Tensor,
    segments: Sequence[Segment],
    rank: int,
    scale: float,
    workspace: Workspace,
) -> torch.Tensor:
    """Views of the pool as keys of all heads, and as values whose last elements are dropped."""
    out = q.new_empty(*q.shape[:2], rank)
    for segment in segments:
        rows = slice(segment.first, segment.first + segment.count)
        if segment.count == 1:
            pieces = _pieces(pool, segment.runs, workspace)
            out[rows] = _attend_one_latent(q[rows][0], pieces, rank, scale)
            continue
        query = q[rows].transpose(0, 1).unsqueeze(0)
        before = _pieces(pool, _clip(segment.runs, segment.start), workspace)
        parts = [_flash_latent(query, latents[rows], True, scale)]
        parts += [_flash_latent(query, piece, False, scale) for piece in before]
        out[rows] = _merge(parts)[0, ..., :rank].transpose(0, 1)
    return out


def _attend_one_latent(
    q: torch.Tensor, pieces: Sequence[torch.Tensor], rank: int, scale: float
) -> torch.Tensor:
    """(H, rank): for one token plain products beat flash attention."""
    scores = torch.cat([torch.mm(q, piece.t()) for piece in pieces], dim=1)
    weights = torch.split(scores.mul_(scale).softmax(-1), [len(piece) for piece in pieces], dim=1)
    out = torch.mm(weights[0], pieces[0][:, :rank])
    for weight, piece in zip(weights[1:], pieces[1:], strict=True):
        out.addmm_(weight, piece[:, :rank])
    return out


def _flash_latent(
    q: torch.Tensor, latents: torch.Tensor, causal: bool, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    shared = latents.expand(1, q.shape[1], -1, -1)
    return _flash(q, shared, shared, causal, scale)


def _pieces(
    pool: torch.Tensor, runs: Sequence[tuple[int, int]], workspace: Workspace
) -> list[torch.Tensor]:
    """(length, 2, K, D) or (length, dim) each, together the positions of ``runs``."""
    if len(runs) <= _MAX_RUNS:
        return [pool[slot : slot + length] for slot, length in runs]
    slots = torch.cat([torch.arange(slot, slot + length) for slot, length in runs])
    scratch = workspace.gather[: len(slots) * pool[0].numel()]
    gathered = scratch.view(len(slots), *pool.shape[1:])
    return [torch.index_select(pool, 0, slots, out=gathered)]


def _attend_one(
    q: torch.Tensor, pool: torch.Tensor, segment: Segment, workspace: Workspace
) -> torch.Tensor:
    """(K, G, D): the heads of a group share keys, so they stand in for query positions."""
    pieces = _pieces(pool, segment.runs, workspace)
    if len(pieces) == 1:
        keys, values = pieces[0].permute(1, 2, 0, 3).unsqueeze(1)
        return F.scaled_dot_product_attention(q.unsqueeze(0), keys, values)[0]
    return _merge([_flash(q.unsqueeze(0), *_one(piece), False) for piece in pieces])[0]


def _one(piece: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    keys, values = piece.permute(1, 2, 0, 3).unsqueeze(1)
    return keys, values


def _attend_chunk(
    q: torch.Tensor,
    kv: torch.Tensor,
    pool: torch.Tensor,
    segment: Segment,
    workspace: Workspace,
) -> torch.Tensor:
    """(K, G, n, D): the chunk over itself causally, and over all of what came before it."""
    query = q.permute(1, 2, 0, 3)
    parts = [_flash(query, *_shared(kv, q.shape[2]), True)]
    before = _clip(segment.runs, segment.start)
    parts += [
        _flash(query, *_shared(piece, q.shape[2]), False)
        for piece in _pieces(pool, before, workspace)
    ]
    return _merge(parts)


def _shared(piece: torch.Tensor, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values (K, G, length, D) without copying: the G heads of a group see the same."""
    keys, values = piece.permute(1, 2, 0, 3).unsqueeze(2).expand(-1, -1, group, -1, -1)
    return keys, values


def _clip(runs: Sequence[tuple[int, int]], tokens: int) -> list[tuple[int, int]]:
    """The first ``tokens`` positions of ``runs``."""
    clipped = []
    for slot, length in runs:
        if tokens <= 0:
            break
        clipped.append((slot, min(length, tokens)))
        tokens -= length
    return clipped


def _flash(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    causal: bool,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output (B, H, n, D) and log-sum-exp (B, H, n); ``scale`` is D ** -0.5 unless given."""
    out, total = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q, keys, values, 0.0, causal, scale=scale
    )
    return out, total


def _merge(parts: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    """Attention over the union of disjoint parts from attention over each of them."""
    out, total = parts[0]
    for other, other_total in parts[1:]:
        share = torch.sigmoid(other_total - total).unsqueeze(-1)
        out = torch.lerp(out, other, share)
        total = torch.logaddexp(total, other_total)
    return out


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
