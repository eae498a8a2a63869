"""The obvious forms of the gated delta rule and of what surrounds it, one token after another.

A call's state is a matrix for each value head: what it answers to a key. Every token makes it
forget, then corrects its answer to the token's key towards the token's value:

    S = exp(g) S;   S = S + k (beta (v - k S));   o = q S

n tokens, K key heads of size E, H value heads of size D: each key head serves H / K value heads
that lie together. All tensors are float32, and ``g`` is the logarithm of the decay.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F


def delta_gates(
    a: torch.Tensor, b: torch.Tensor, rate: torch.Tensor, bias: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """What tokens say of forgetting, ``a`` (n, H), and of writing, ``b`` (n, H), as log decay and
    beta, (n, H) each; ``rate`` (H,) is a logarithm."""
    return -rate.exp() * F.softplus(a + bias), b.sigmoid()


def l2_norm(x: torch.Tensor, eps: float) -> torch.Tensor:
    """(..., d) over the last dimension; ``eps`` is added to the sum of squares."""
    return x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + eps)


def gated_norm(
    x: torch.Tensor, weight: torch.Tensor, gate: torch.Tensor, eps: float
) -> torch.Tensor:
    """RMS norm of (..., d) over the last dimension, then times silu of ``gate`` (..., d)."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight * F.silu(gate)


def delta_chunk(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
) -> torch.Tensor:
    """n tokens of one call: q, k (n, K, E), v (n, H, D), g, beta (n, H). ``state`` (H, E, D) goes
    from before the first token to after the last in place. Returns (n, H, D)."""
    out = torch.empty_like(v)
    group = v.shape[1] // k.shape[1]
    for token in range(v.shape[0]):
        key = k[token].repeat_interleave(group, 0).unsqueeze(1)
        query = q[token].repeat_interleave(group, 0).unsqueeze(1)
        state.mul_(g[token].exp()[:, None, None])
        error = v[token].unsqueeze(1) - key @ state
        state.add_(key.mT @ (beta[token][:, None, None] * error))
        out[token] = (query @ state).squeeze(1)
    return out


def delta_step(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    states: torch.Tensor,
) -> torch.Tensor:
    """One token of each of n calls: as ``delta_chunk``, but ``states`` is (n, H, E, D)."""
    rows = [slice(row, row + 1) for row in range(v.shape[0])]
    parts = [delta_chunk(q[r], k[r], v[r], g[r], beta[r], states[r.start]) for r in rows]
    return torch.cat(parts) if parts else torch.empty_like(v)


def conv_chunk(x: torch.Tensor, weight: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    """Causal convolution of every channel, then silu. ``x`` (n, C) are a call's next inputs,
    ``weight`` (C, width) has the newest input's factor last, ``state`` (C, width - 1) holds the
    last inputs before ``x``, the oldest first, and moves on in place. Returns (n, C)."""
    out = torch.empty_like(x)
    for token in range(x.shape[0]):
        seen = torch.cat([state, x[token].unsqueeze(1)], 1)
        out[token] = (seen * weight).sum(1)
        state.copy_(seen[:, 1:])
    return F.silu(out)


def conv_step(x: torch.Tensor, weight: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
    """One input of each of n calls: as ``conv_chunk``, but ``states`` is (n, C, width - 1)."""
    rows = [conv_chunk(x[i : i + 1], weight, states[i]) for i in range(x.shape[0])]
    return torch.cat(rows) if rows else torch.empty_like(x)
