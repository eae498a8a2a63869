"""Torch forms that are fast on any device: fewer passes, no loops over rows or tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
import torch.nn.functional as F

from alipes.kernels import reference
from alipes.kernels.routing import Routing
from alipes.kernels.shapes import Move, Workspace, runs

# Bytes at which a copy over the bus is as fast as it gets, by far.
_STAGED: Final = 32 << 20


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return F.rms_norm(x, weight.shape, weight, eps)


def rope(heads: torch.Tensor, angles: torch.Tensor) -> None:
    """Interleaved pairs are complex numbers, and rotating is multiplying."""
    pairs = torch.view_as_complex(heads.view(*heads.shape[:-1], -1, 2))
    pairs.mul_(angles.unsqueeze(1))


def linear(x: torch.Tensor, weight: torch.Tensor, workspace: Workspace) -> torch.Tensor:
    return F.linear(x.to(weight.dtype), weight).float()


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)


def write_kv(pool: torch.Tensor, slots: torch.Tensor, kv: torch.Tensor) -> None:
    pool.index_copy_(0, slots, kv.to(pool.dtype))


def per_head(x: torch.Tensor, weight: torch.Tensor, workspace: Workspace) -> torch.Tensor:
    heads = x.to(weight.dtype).transpose(0, 1)
    return torch.bmm(heads, weight).transpose(0, 1).float()


def route(
    x: torch.Tensor, router: torch.Tensor, bias: torch.Tensor | None, routing: Routing
) -> tuple[torch.Tensor, torch.Tensor]:
    """Where weights of a softmax are normalized, that over the chosen logits is enough."""
    if routing.sigmoid or bias is not None or routing.groups > 1 or not routing.normalize:
        return reference.route(x, router, bias, routing)
    best, chosen = F.linear(x, router).topk(routing.top_k, dim=-1)
    return best.softmax(-1) * routing.scale, chosen


def copy_out(
    pool: torch.Tensor, rows: torch.Tensor, host: torch.Tensor, slabs: torch.Tensor
) -> None:
    """Gathers on the device, so that neighbouring slabs cross the bus together."""
    for part, of in zip(_parts(rows, pool), _parts(slabs, pool), strict=True):
        gathered = pool.index_select(0, beside(part, pool.device))
        for first, start, length in runs(of):
            host[start : start + length].copy_(gathered[first : first + length], non_blocking=True)


def copy_in(
    host: torch.Tensor, slabs: torch.Tensor, pool: torch.Tensor, rows: torch.Tensor
) -> None:
    for part, of in zip(_parts(rows, pool), _parts(slabs, pool), strict=True):
        gathered = pool.new_empty(len(part), pool.shape[1])
        for first, start, length in runs(of):
            gathered[first : first + length].copy_(host[start : start + length], non_blocking=True)
        pool.index_copy_(0, beside(part, pool.device), gathered)


def _parts(indices: torch.Tensor, pool: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Pieces whose rows fit the bytes that may be staged on the device at a time."""
    return torch.split(indices, max(1, _STAGED // pool.shape[1]))


def beside(indices: torch.Tensor, device: torch.device) -> torch.Tensor:
    """On the pool's device; plain memory would have to wait for all that the device has to do."""
    if device == indices.device:
        return indices
    return indices.pin_memory().to(device, non_blocking=True)


def move(memory: torch.Tensor, moves: Sequence[Move]) -> None:
    """One copy each; only those that overlap themselves are kept aside."""
    for source, target, count in moves:
        kept = memory[source : source + count]
        kept = kept.clone() if abs(source - target) < count else kept
        memory[target : target + count].copy_(kept)


def penalize(
    logits: torch.Tensor,
    history: torch.Tensor,
    prompt_tokens: int,
    repetition: float,
    frequency: float,
    presence: float,
) -> None:
    if repetition != 1.0:
        seen = torch.unique(history)
        values = logits[seen]
        logits[seen] = torch.where(values > 0, values / repetition, values * repetition)
    generated = history[prompt_tokens:]
    if len(generated) and (frequency or presence):
        seen, counts = torch.unique(generated, return_counts=True)
        logits[seen] -= counts * frequency + presence


def restrict(logits: torch.Tensor, top_k: int, top_p: float, min_p: float) -> torch.Tensor:
    """As the reference, but ranks only as many tokens as top-p needs."""
    if 0 < top_k < logits.shape[0]:
        least = logits.topk(top_k).values[-1]
        logits = logits.masked_fill(logits < least, float("-inf"))
    probs = logits.softmax(-1)
    least = probs.max() * min_p
    if top_p < 1.0:
        least = torch.maximum(least, _nucleus_edge(probs, top_p))
    return probs.masked_fill(probs < least, 0.0)


def _nucleus_edge(probs: torch.Tensor, top_p: float) -> torch.Tensor:
    """Probability of the last token that top-p keeps."""
    count = min(64, probs.shape[0])
    while True:
        ranked = probs.topk(count).values
        total = ranked.double().cumsum(0)
        if float(total[-1]) >= top_p or count == probs.shape[0]:
            kept = int((total - ranked < top_p).sum())
            return ranked[max(kept, 1) - 1]
        count = min(count * 8, probs.shape[0])
