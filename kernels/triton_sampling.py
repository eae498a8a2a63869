"""Penalties as Triton kernels: nothing waits for the device to tell which tokens there are."""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl

Tensor = torch.Tensor

_BLOCK: Final = 1024
# Counted in one place: generated tokens above, all below.
_GENERATED: Final = 1 << 32


@triton.jit
def count_kernel(
    history, length, prompt, counts, GENERATED: tl.constexpr, BLOCK: tl.constexpr
) -> None:
    """Program (piece of ``history``)."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    token = tl.load(history + at, mask=at < length, other=0)
    times = tl.where(at < prompt, 1, GENERATED + 1).to(tl.int64)
    tl.atomic_add(counts + token, times, mask=at < length)


@triton.jit
def penalize_kernel(
    logits,
    counts,
    vocab,
    repetition,
    frequency,
    presence,
    GENERATED: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Program (piece of the vocabulary)."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(logits + at, mask=at < vocab, other=0.0)
    times = tl.load(counts + at, mask=at < vocab, other=0)
    repeated = tl.where(value > 0, value / repetition, value * repetition)
    value = tl.where(times > 0, repeated, value)
    generated = times // GENERATED
    value = tl.where(generated > 0, value - (generated * frequency + presence), value)
    tl.store(logits + at, value, mask=at < vocab)


def penalize(
    logits: Tensor,
    history: Tensor,
    prompt_tokens: int,
    repetition: float,
    frequency: float,
    presence: float,
) -> None:
    vocab, length = logits.shape[0], history.shape[0]
    counts = torch.zeros(vocab, dtype=torch.int64, device=logits.device)
    count_kernel[(triton.cdiv(length, _BLOCK),)](
        history, length, prompt_tokens, counts, GENERATED=_GENERATED, BLOCK=_BLOCK
    )
    penalize_kernel[(triton.cdiv(vocab, _BLOCK),)](
        logits,
        counts,
        vocab,
        repetition,
        frequency,
        presence,
        GENERATED=_GENERATED,
        BLOCK=_BLOCK,
    )
