"""The obvious form of every tensor operation; runs on any device, and tests compare with it.

n rows of a batch, H query heads, K key-value heads, D head size. Activations are float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
import torch.nn.functional as F

from alipes.kernels.routing import Routing
from alipes.kernels.shapes import Move, PageTable, Segment, Workspace

_PRIME: Final = 2**31 - 1


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """(..., d) over the last dimension."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def rope(heads: torch.Tensor, angles: torch.Tensor) -> None:
    """Rotate (n, heads, D) in place; pairs are interleaved, ``angles`` (n, D/2) complex64."""
    even, odd = heads[..., 0::2].clone(), heads[..., 1::2].clone()
    cos, sin = angles.real.unsqueeze(1), angles.imag.unsqueeze(1)
    heads[..., 0::2] = even * cos - odd * sin
    heads[..., 1::2] = even * sin + odd * cos


def linear(x: torch.Tensor, weight: torch.Tensor, workspace: Workspace) -> torch.Tensor:
    """(n, i) float32 times (o, i) of any float dtype: (n, o) float32."""
    return F.linear(x, weight.float())


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """(n, 2i) with gates first: (n, i)."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def write_kv(pool: torch.Tensor, slots: torch.Tensor, kv: torch.Tensor) -> None:
    """Store (n, 2, K, D) at ``slots`` (n,) int64 of ``pool`` (slots, 2, K, D), or latents
    (n, dim) in a pool (slots, dim), rounded to the pool's float dtype."""
    pool[slots] = kv.to(pool.dtype)


def attend(
    q: torch.Tensor,
    kv: torch.Tensor,
    pool: torch.Tensor,
    segments: Sequence[Segment],
    workspace: Workspace,
) -> torch.Tensor:
    """Causal attention of (n, H, D) over what ``pool`` holds of each segment: (n, H * D) float32.

    ``kv`` (n, 2, K, D) is what ``pool`` already holds for the batch's own rows, before it was
    rounded to the pool's dtype: attention is over what is held.
    """
    out = torch.empty_like(q)
    for segment in segments:
        held = pool[segment.slots().to(pool.device)].float()
        group = q.shape[1] // pool.shape[2]
        keys, values = held.repeat_interleave(group, dim=2).unbind(1)
        rows = slice(segment.first, segment.first + segment.count)
        scores = torch.einsum("qhd,khd->hqk", q[rows], keys) * q.shape[-1] ** -0.5
        seen = torch.ones(scores.shape[1:], dtype=torch.bool, device=q.device).tril(segment.start)
        weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
        out[rows] = torch.einsum("hqk,khd->qhd", weights, values)
    return out.flatten(1)


def attend_latent(
    q: torch.Tensor,
    latents: torch.Tensor,
    pool: torch.Tensor,
    segments: Sequence[Segment],
    rank: int,
    scale: float,
    workspace: Workspace,
) -> torch.Tensor:
    """Causal attention of (n, H, dim) over what ``pool`` (slots, dim) holds of each segment, one
    vector a token for all heads: the whole of it is the key, its first ``rank`` elements are the
    value (MLA, absorbed). Scores are products times ``scale``: (n, H, rank).

    ``latents`` (n, dim) is what ``pool`` already holds for the batch's own rows, as in ``attend``.
    """
    out = q.new_empty(*q.shape[:2], rank)
    for segment in segments:
        held = pool[segment.slots().to(pool.device)].float()
        rows = slice(segment.first, segment.first + segment.count)
        scores = torch.einsum("qhd,kd->hqk", q[rows], held) * scale
        seen = torch.ones(scores.shape[1:], dtype=torch.bool, device=q.device).tril(segment.start)
        weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
        out[rows] = torch.einsum("hqk,kd->qhd", weights, held[:, :rank])
    return out


def attend_step(q: torch.Tensor, pool: torch.Tensor, pages: PageTable) -> torch.Tensor:
    """As ``attend`` for rows of one token, (n, H, D) to (n, H * D), but that nothing of where they
    read is known to the host. Goes through all positions that ``pages`` has room for."""
    held, seen = _paged(pool, pages)
    keys, values = held.repeat_interleave(q.shape[1] // pool.shape[2], dim=3).unbind(2)
    scores = torch.einsum("nhd,nphd->nhp", q, keys) * q.shape[-1] ** -0.5
    weights = scores.masked_fill(~seen.unsqueeze(1), float("-inf")).softmax(-1)
    return torch.einsum("nhp,nphd->nhd", weights, values).flatten(1)


def attend_latent_step(
    q: torch.Tensor, pool: torch.Tensor, pages: PageTable, rank: int, scale: float
) -> torch.Tensor:
    """As ``attend_latent`` for rows of one token: (n, H, dim) to (n, H, rank)."""
    held, seen = _paged(pool, pages)
    scores = torch.einsum("nhd,npd->nhp", q, held) * scale
    weights = scores.masked_fill(~seen.unsqueeze(1), float("-inf")).softmax(-1)
    return torch.einsum("nhp,npd->nhd", weights, held[..., :rank])


def _paged(pool: torch.Tensor, pages: PageTable) -> tuple[torch.Tensor, torch.Tensor]:
    """(n, positions, ...) of the pool, and which of them each row sees, (n, positions). The others
    are zeros: what lies there may be no number."""
    inside = torch.arange(pages.block_tokens, device=pool.device)
    slots = (pages.blocks.long().unsqueeze(2) * pages.block_tokens + inside).flatten(1)
    at = torch.arange(slots.shape[1], device=pool.device)
    seen = at <= pages.positions.unsqueeze(1)
    held = pool[slots].float()
    return held.masked_fill_(~seen.view(*seen.shape, *[1] * (held.dim() - 2)), 0.0), seen


def per_head(x: torch.Tensor, weight: torch.Tensor, workspace: Workspace) -> torch.Tensor:
    """(n, H, i) times a matrix of its own for each head, (H, i, o) of any float dtype and any
    strides: (n, H, o) float32."""
    return torch.einsum("nhi,hio->nho", x, weight.float())


def route(
    x: torch.Tensor, router: torch.Tensor, bias: torch.Tensor | None, routing: Routing
) -> tuple[torch.Tensor, torch.Tensor]:
    """(n, d) by (experts, d): weights (n, top_k) float32 and expert ids (n, top_k) int64. ``bias``
    (experts,) is added to the scores for the choice alone."""
    logits = F.linear(x, router)
    scores = logits.sigmoid() if routing.sigmoid else logits.softmax(-1)
    ranks = scores if bias is None else scores + bias
    if routing.groups > 1:
        grouped = ranks.view(len(x), routing.groups, -1)
        best = grouped.topk(routing.group_best, dim=-1).values.sum(-1)
        chosen = best.topk(routing.top_groups, dim=-1).indices
        closed = torch.ones_like(best, dtype=torch.bool).scatter_(1, chosen, False)
        ranks = grouped.masked_fill(closed.unsqueeze(-1), float("-inf")).flatten(1)
    chosen = ranks.topk(routing.top_k, dim=-1).indices
    weights = scores.gather(1, chosen)
    if routing.normalize:
        weights = weights / weights.sum(-1, keepdim=True)
    return weights * routing.scale, chosen


def experts(
    x: torch.Tensor,
    weights: torch.Tensor,
    chosen: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    workspace: Workspace,
) -> torch.Tensor:
    """Sum over the chosen experts of weight times feed-forward; ``gate_up`` (experts, 2i, d),
    ``down`` (experts, d, i): (n, d)."""
    out = torch.zeros_like(x)
    for row in range(x.shape[0]):
        for weight, expert in zip(weights[row], chosen[row], strict=True):
            inner = silu_mul(linear(x[row : row + 1], gate_up[expert], workspace))
            out[row] += weight * linear(inner, down[expert], workspace)[0]
    return out


def copy_out(
    pool: torch.Tensor, rows: torch.Tensor, host: torch.Tensor, slabs: torch.Tensor
) -> None:
    """Copy ``rows`` of ``pool`` (rows, bytes) to ``slabs`` of ``host`` (slabs, bytes), both
    uint8; the indices (n,) are int64 on the CPU, each slab there once."""
    for row, slab in zip(rows.tolist(), slabs.tolist(), strict=True):
        host[slab].copy_(pool[row])


def copy_in(
    host: torch.Tensor, slabs: torch.Tensor, pool: torch.Tensor, rows: torch.Tensor
) -> None:
    """The inverse of ``copy_out``: each row is there once."""
    for row, slab in zip(rows.tolist(), slabs.tolist(), strict=True):
        pool[row].copy_(host[slab])


def checksums(memory: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Of ``rows`` (n,) int64 of ``memory`` (rows, bytes) uint8, bytes a multiple of 4: (n,) int64
    on the CPU. Rows that differ in one 32-bit word, or by two that changed places, have different
    ones; others are taken for the same hardly ever."""
    at = torch.arange(1, memory.shape[1] // 4 + 1, device=memory.device)
    # Fifth powers modulo the prime: all different, and no sum of few of them is that of others.
    weights = (at**2 % _PRIME) ** 2 % _PRIME * at % _PRIME
    picked = memory.index_select(0, rows.to(memory.device)).view(torch.int32)
    return (picked.to(torch.int64) * weights).sum(1).cpu()


def move(memory: torch.Tensor, moves: Sequence[Move]) -> None:
    """Within ``memory`` (bytes,) uint8, one after another: each finds what those before it left,
    and may overlap itself."""
    for source, target, count in moves:
        memory[target : target + count] = memory[source : source + count].clone()


def penalize(
    logits: torch.Tensor,
    history: torch.Tensor,
    prompt_tokens: int,
    repetition: float,
    frequency: float,
    presence: float,
) -> None:
    """Change (vocab,) in place: repetition divides positive and multiplies negative logits of
    every token of ``history`` (n,) int64; the other two subtract for generated tokens only."""
    for token in set(history.tolist()):
        value = logits[token]
        logits[token] = torch.where(value > 0, value / repetition, value * repetition)
    for token in history[prompt_tokens:].tolist():
        logits[token] -= frequency
    for token in set(history[prompt_tokens:].tolist()):
        logits[token] -= presence


def restrict(logits: torch.Tensor, top_k: int, top_p: float, min_p: float) -> torch.Tensor:
    """Probabilities (vocab,) after top-k, then top-p, then min-p, each over what the one before
    kept; not renormalized. Tokens as probable as the last one kept are kept too."""
    if 0 < top_k < logits.shape[0]:
        least = logits.sort(descending=True).values[top_k - 1]
        logits = logits.masked_fill(logits < least, float("-inf"))
    probs = logits.softmax(-1)
    least = probs.max() * min_p
    if top_p < 1.0:
        ranked = probs.sort(descending=True).values
        before = ranked.double().cumsum(0) - ranked
        kept = int((before < top_p).sum())
        least = torch.maximum(least, ranked[max(kept, 1) - 1])
    return probs.masked_fill(probs < least, 0.0)


def race(probs: torch.Tensor, arrivals: torch.Tensor) -> int:
    """The token (of vocab) that a race in which each runs at the speed of its probability gives:
    ``arrivals`` (vocab,) float64 are independent and exponential, which makes the winner a draw
    from ``probs``. Other than inverting a cumulative sum, small changes of all probabilities
    move the winner only where two are nearly level."""
    return int((probs / arrivals).argmax())
