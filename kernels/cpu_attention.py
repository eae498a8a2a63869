"""Attention on CPUs: flash attention and plain products over views of the paged pool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
import torch.nn.functional as F

from alipes.kernels.shapes import Segment, Workspace

# Scattered runs are attended one by one up to this many, and gathered beyond it.
_MAX_RUNS: Final = 8


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
            own = _as_held(kv[rows], pool)
            attended = _attend_chunk(grouped, own, pool, segment, workspace)
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
        parts = [_flash_latent(query, _as_held(latents[rows], pool), True, scale)]
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
    """(length, 2, K, D) or (length, dim) each, float32, together the positions of ``runs``."""
    if pool.dtype != torch.float32:
        return _widened(pool, runs, workspace)
    if len(runs) <= _MAX_RUNS:
        return [pool[slot : slot + length] for slot, length in runs]
    slots = torch.cat([torch.arange(slot, slot + length) for slot, length in runs])
    scratch = workspace.gather[: len(slots) * pool[0].numel()]
    gathered = scratch.view(len(slots), *pool.shape[1:])
    return [torch.index_select(pool, 0, slots, out=gathered)]


def _widened(
    pool: torch.Tensor, runs: Sequence[tuple[int, int]], workspace: Workspace
) -> list[torch.Tensor]:
    count, at = sum(length for _, length in runs), 0
    if not count:
        return []
    wide = workspace.gather[: count * pool[0].numel()].view(count, *pool.shape[1:])
    for slot, length in runs:
        wide[at : at + length].copy_(pool[slot : slot + length])
        at += length
    return [wide]


def _as_held(own: torch.Tensor, pool: torch.Tensor) -> torch.Tensor:
    """Rows of the batch as a later step will find them, float32."""
    return own if pool.dtype == own.dtype else own.to(pool.dtype).float()


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
