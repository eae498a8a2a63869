"""The gated delta rule as Triton kernels, which keep a state in registers from its first use to its
last; meanings as in ``delta_reference``."""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl

from alipes.kernels import delta

Tensor = torch.Tensor

# Elements of a value that a program takes: its part of the state is this times a key.
_STEP_WIDTH: Final = 32
_SCAN_WIDTH: Final = 16


@triton.jit
def step_kernel(
    q,
    k,
    v,
    g,
    beta,
    states,
    out,
    group,
    key_size,
    size,
    q_row,
    k_row,
    v_row,
    g_row,
    beta_row,
    KEY: tl.constexpr,
    WIDTH: tl.constexpr,
) -> None:
    """Program (call, head, part of its value); heads of a row lie together."""
    call, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    e, d = tl.arange(0, KEY), tl.program_id(2) * WIDTH + tl.arange(0, WIDTH)
    whole = (e < key_size)[:, None] & (d < size)[None, :]
    place = states + (call * tl.num_programs(1) + head) * key_size * size
    place = place + e[:, None] * size + d[None, :]
    shared = (head // group) * key_size + e
    key = tl.load(k + call * k_row + shared, mask=e < key_size, other=0.0)
    query = tl.load(q + call * q_row + shared, mask=e < key_size, other=0.0)
    value = tl.load(v + call * v_row + head * size + d, mask=d < size, other=0.0)
    write = tl.load(beta + call * beta_row + head)

    state = tl.load(place, mask=whole, other=0.0) * tl.exp(tl.load(g + call * g_row + head))
    error = (value - tl.sum(key[:, None] * state, 0)) * write
    state += key[:, None] * error[None, :]
    tl.store(place, state, mask=whole)
    found = tl.sum(query[:, None] * state, 0)
    tl.store(out + (call * tl.num_programs(1) + head) * size + d, found, mask=d < size)


@triton.jit
def scan_kernel(
    state,
    solved,
    within,
    query,
    key,
    decay,
    out,
    chunks,
    heads,
    key_size,
    size,
    CHUNK: tl.constexpr,
    KEY: tl.constexpr,
    WIDTH: tl.constexpr,
) -> None:
    """Program (head, part of its value): what ``delta.scan`` does, chunk after chunk."""
    head = tl.program_id(0).to(tl.int64)
    c, e = tl.arange(0, CHUNK), tl.arange(0, KEY)
    d = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    whole = (e < key_size)[:, None] & (d < size)[None, :]
    keyed, valued = (e < key_size)[None, :], (d < size)[None, :]
    place = state + head * key_size * size + e[:, None] * size + d[None, :]
    held = tl.load(place, mask=whole, other=0.0)
    for index in range(chunks):
        at = index * heads + head
        row = solved + (at * CHUNK + c[:, None]) * (size + key_size)
        own = (at * CHUNK + c[:, None]) * key_size + e[None, :]
        reads = tl.load(row + size + e[None, :], mask=keyed, other=0.0)
        written = -tl.dot(reads, held, input_precision="tf32x3")
        written += tl.load(row + d[None, :], mask=valued, other=0.0)
        queries = tl.load(query + own, mask=keyed, other=0.0)
        found = tl.dot(queries, held, input_precision="tf32x3")
        mixed = tl.load(within + (at * CHUNK + c[:, None]) * CHUNK + c[None, :])
        found = tl.dot(mixed, written, acc=found, input_precision="tf32x3")
        tokens = index * CHUNK + c[:, None]
        tl.store(out + (tokens * heads + head) * size + d[None, :], found, mask=valued)
        keys = tl.load(key + own, mask=keyed, other=0.0)
        held *= tl.load(decay + at)
        held = tl.dot(tl.trans(keys), written, acc=held, input_precision="tf32x3")
    tl.store(place, held, mask=whole)


def delta_step(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, states: Tensor) -> Tensor:
    calls, heads, size = v.shape
    q, k, v, g, beta = (_whole_rows(x) for x in (q, k, v, g, beta))
    out = torch.empty(calls, heads, size, device=v.device)
    step_kernel[(calls, heads, triton.cdiv(size, _STEP_WIDTH))](
        q,
        k,
        v,
        g,
        beta,
        states,
        out,
        heads // k.shape[1],
        k.shape[2],
        size,
        *(x.stride(0) for x in (q, k, v, g, beta)),
        KEY=_padded(k.shape[2]),
        WIDTH=_STEP_WIDTH,
    )
    return out


def delta_chunk(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor) -> Tensor:
    parts = delta.chunk_parts(q, k, v, g, beta) if len(v) else ()
    return scan(state, *parts)[: len(v)] if parts else torch.empty_like(v)


def scan(
    state: Tensor, solved: Tensor, within: Tensor, query: Tensor, key: Tensor, decay: Tensor
) -> Tensor:
    """As ``delta.scan``, with one kernel in place of several for every chunk."""
    chunks, heads, chunk, _ = solved.shape
    key_size, size = state.shape[1:]
    out = torch.empty(chunks * chunk, heads, size, device=state.device)
    scan_kernel[(heads, triton.cdiv(size, _SCAN_WIDTH))](
        state,
        *(part.contiguous() for part in (solved, within, query, key, decay)),
        out,
        chunks,
        heads,
        key_size,
        size,
        CHUNK=chunk,
        KEY=max(16, _padded(key_size)),
        WIDTH=_SCAN_WIDTH,
        num_stages=1,  # Reading ahead would take twice the shared memory that GPUs have.
    )
    return out


def _padded(size: int) -> int:
    return 1 << (size - 1).bit_length()


def _whole_rows(x: Tensor) -> Tensor:
    """With the elements of each row in one piece; rows may be apart."""
    return x if not len(x) or x[0].is_contiguous() else x.contiguous()
