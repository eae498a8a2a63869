"""The gated delta rule in matrix form, fast on any device; meanings as in ``delta_reference``.

Tokens are taken in chunks. Within a chunk, what a token corrects depends on the corrections
before it through a triangular system, which is solved for all chunks at once; only the states
between chunks are computed one after another. Its inverse is put together from those of small
blocks: LAPACK would solve the systems one by one, and wake its threads for each.
"""

from __future__ import annotations

from typing import Final

import torch
import torch.nn.functional as F

CHUNK: Final = 64
_BLOCK: Final = 16


def gated_norm(
    x: torch.Tensor, weight: torch.Tensor, gate: torch.Tensor, eps: float
) -> torch.Tensor:
    return F.rms_norm(x, weight.shape, weight, eps).mul_(F.silu(gate))


def delta_chunk(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
) -> torch.Tensor:
    return scan(state, *chunk_parts(q, k, v, g, beta))[: len(v)] if len(v) else torch.empty_like(v)


def chunk_parts(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """All that does not depend on the state, for ``scan``."""
    tokens, heads, size = v.shape
    chunk = min(CHUNK, max(_BLOCK, 1 << (tokens - 1).bit_length()))
    groups = (k.shape[1], heads // k.shape[1])
    query, key = _cut(q.unsqueeze(2), chunk), _cut(k.unsqueeze(2), chunk)
    value = _cut(v.view(tokens, *groups, size), chunk)
    write = _cut(beta.reshape(tokens, *groups, 1), chunk)
    # Differences of long sums: float32 would lose what a weak decay after a strong one says.
    log = _cut(g.reshape(tokens, *groups, 1).double(), chunk).cumsum(-2)
    since = (log - log.mT).float().masked_fill_(_future(chunk, v.device), float("-inf")).exp_()
    begin, end = log.exp().float(), (log[..., -1:, :] - log).exp().float()

    system = (key @ key.mT) * since * write
    wanted = torch.cat([value * write, key * (write * begin)], -1)
    solved = unit_inverse(system) @ wanted
    within = (query @ key.mT) * since
    parts = (solved, within, query * begin, key * end, begin[..., -1:, :])
    return tuple(part.flatten(1, 2) for part in parts)


def scan(
    state: torch.Tensor,
    solved: torch.Tensor,
    within: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    decay: torch.Tensor,
) -> torch.Tensor:
    """(chunks, H, chunk, ...) each: (chunks * chunk, H, D). ``solved`` holds the corrections as
    if there had been no state, and then the keys under which they read it."""
    chunks, heads, chunk, _ = solved.shape
    size = state.shape[-1]
    out = solved.new_empty(chunks, chunk, heads, size)
    for index in range(chunks):
        wanted, reads = torch.split(solved[index], [size, key.shape[-1]], -1)
        written = torch.baddbmm(wanted, reads, state, alpha=-1)
        read = torch.bmm(query[index], state).baddbmm_(within[index], written)
        out[index] = read.transpose(0, 1)
        state.mul_(decay[index]).baddbmm_(key[index].mT, written)
    return out.view(chunks * chunk, heads, size)


def unit_inverse(system: torch.Tensor) -> torch.Tensor:
    """Of (..., m, m), lower triangular with ones on the diagonal, whatever it holds there and
    above; m is ``_BLOCK`` or that doubled any number of times."""
    flat = system.reshape(-1, *system.shape[-2:])
    inverse = _substitute(_diagonal(flat, _BLOCK))
    while (half := inverse.shape[-1]) < flat.shape[-1]:
        above, below = inverse[:, 0::2], inverse[:, 1::2]
        beside = _diagonal(flat, 2 * half)[..., half:, :half]
        inverse = flat.new_zeros(len(flat), above.shape[1], 2 * half, 2 * half)
        inverse[..., :half, :half], inverse[..., half:, half:] = above, below
        inverse[..., half:, :half] = (below @ beside @ above).neg_()
    return inverse.view(system.shape)


def _diagonal(flat: torch.Tensor, size: int) -> torch.Tensor:
    """The blocks (n, m / size, size, size) along the diagonal of (n, m, m)."""
    count = flat.shape[-1] // size
    return flat.view(-1, count, size, count, size).diagonal(dim1=1, dim2=3).movedim(-1, 1)


def _substitute(system: torch.Tensor) -> torch.Tensor:
    """The same for small ones, row by row: each takes away what the rows above it solved."""
    size = system.shape[-1]
    inverse = torch.eye(size, device=system.device).expand_as(system).clone()
    for row in range(1, size):
        before = system[..., row : row + 1, :row] @ inverse[..., :row, :row]
        inverse[..., row, :row] = -before.squeeze(-2)
    return inverse


def _cut(x: torch.Tensor, chunk: int) -> torch.Tensor:
    """(n, K, G, d) as (chunks, K, G, chunk, d). Zeros at the end neither decay nor write."""
    missing = -x.shape[0] % chunk
    if missing:
        x = F.pad(x, (0, 0) * 3 + (0, missing))
    return x.reshape(-1, chunk, *x.shape[1:]).permute(0, 2, 3, 1, 4)


def _future(chunk: int, device: torch.device) -> torch.Tensor:
    return torch.ones(chunk, chunk, dtype=torch.bool, device=device).triu_(1)


def delta_step(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    states: torch.Tensor,
) -> torch.Tensor:
    """Reads key and query in one pass over the states, before they change: what the query would
    find of the token's own correction is added to it."""
    calls, heads, size = v.shape
    flat = states.view(calls * heads, *states.shape[2:])
    both = torch.stack([k, q], 2).repeat_interleave(heads // k.shape[1], 1).flatten(0, 1)
    key, query = both[:, :1], both[:, 1:]
    decay = g.exp().view(-1, 1, 1)
    known, found = torch.split(torch.bmm(both, flat).mul_(decay), 1, 1)
    error = (v.reshape(-1, 1, size) - known).mul_(beta.reshape(-1, 1, 1))
    flat.mul_(decay).addcmul_(key.mT, error)
    found.addcmul_(error, (key * query).sum(-1, keepdim=True))
    return found.reshape(calls, heads, size)


def conv_chunk(x: torch.Tensor, weight: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    """Shifted products of whole rows: no channel is moved beside its own past first."""
    seen = torch.cat([state.t(), x])
    state.copy_(seen[len(x) :].t())
    out = seen[: len(x)] * weight[:, 0]
    for shift in range(1, weight.shape[1]):
        out.addcmul_(seen[shift : shift + len(x)], weight[:, shift])
    return F.silu(out, inplace=True)


def conv_step(x: torch.Tensor, weight: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
    seen = torch.cat([states, x.unsqueeze(2)], 2)
    states.copy_(seen[..., 1:])
    return F.silu((seen * weight).sum(2), inplace=True)
