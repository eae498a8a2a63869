"""From logits to tokens. The noise at a position is a function of (seed, position) alone, so a
call that was moved, resumed or batched otherwise draws what it would have drawn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from alipes.instance.contract import Sampling, TopLogprob
from alipes.instance.engine.grammar import NOTHING_MASKED, Allowed
from alipes.instance.engine.protocol import Draw, EngineError, Row, Sampled
from alipes.kernels.table import Kernels

GREEDY_BELOW: Final = 1e-5
"""Temperatures under it leave the largest logit alone, and dividing by some would overflow."""


def arrivals(seed: int, position: int, count: int) -> NDArray[np.float64]:
    """(count,) independent exponential times, one for each token: a counter-based generator
    with the seed as its key and the position in its counter."""
    bits = np.random.Philox(key=seed & (2**64 - 1), counter=(0, 0, 0, position)).random_raw(count)
    times: NDArray[np.float64] = -np.log(((bits >> np.uint64(11)) + 0.5) * 2.0**-53)
    return times


def sample(
    rows: Sequence[Row], logits: torch.Tensor, kernels: Kernels, allowed: Allowed = NOTHING_MASKED
) -> tuple[Sampled, ...]:
    """``logits`` (draws, vocab) float32 belong to the rows that draw, in order; ``allowed`` are the
    tokens that grammars let them draw. Logprobs know nothing of that."""
    drawing = [(row.call_id, row.draw) for row in rows if row.draw is not None]
    if all(_is_plain(draw) for _, draw in drawing):
        best = _masked(logits, allowed).argmax(-1).tolist()
        return tuple(
            Sampled(call, token if draw.forced is None else draw.forced)
            for (call, draw), token in zip(drawing, best, strict=True)
        )
    return tuple(
        _sample_one(call, draw, row, kernels, allowed.get(at))
        for at, ((call, draw), row) in enumerate(zip(drawing, logits, strict=True))
    )


def _masked(logits: torch.Tensor, allowed: Allowed) -> torch.Tensor:
    """``logits`` (draws, vocab), in a copy where something is masked."""
    if not allowed:
        return logits
    masked = logits.clone()
    for at, tokens in allowed.items():
        masked[at] = _only(masked[at], tokens)
    return masked


def _only(logits: torch.Tensor, tokens: NDArray[np.bool_]) -> torch.Tensor:
    """``logits`` (vocab,) of these tokens (vocab,), and minus infinity for the others."""
    return logits.masked_fill(~torch.from_numpy(tokens).to(logits.device), -math.inf)


def check_finite(model: str, rows: Sequence[Row], logits: torch.Tensor) -> None:
    """For state in float16. Raises ``EngineError`` with the calls whose logits are no numbers."""
    broken = (~logits.isfinite().all(1)).tolist()
    drawing = (row.call_id for row in rows if row.draw is not None)
    at_fault = tuple(call for call, bad in zip(drawing, broken, strict=True) if bad)
    if at_fault:
        raise EngineError(
            f"model {model}: logits are no numbers, its keys or values may be beyond what float16"
            " holds; set its kv_dtype: float32",
            at_fault,
        )


def _is_plain(draw: Draw) -> bool:
    """Whether the largest logit decides and nothing else is asked for."""
    sampling = draw.sampling
    return (
        sampling.temperature < GREEDY_BELOW
        and sampling.top_logprobs < 0
        and not _is_adjusted(sampling)
    )


def _is_adjusted(sampling: Sampling) -> bool:
    return bool(
        sampling.logit_bias
        or sampling.frequency_penalty
        or sampling.presence_penalty
        or sampling.repetition_penalty != 1.0
    )


def _sample_one(
    call: bytes,
    draw: Draw,
    logits: torch.Tensor,
    kernels: Kernels,
    allowed: NDArray[np.bool_] | None,
) -> Sampled:
    sampling = draw.sampling
    if _is_adjusted(sampling):
        logits = logits.clone()
        _adjust(logits, draw, kernels)
    open_ones = logits if allowed is None else _only(logits, allowed)
    token = _draw_token(open_ones, draw, kernels) if draw.forced is None else draw.forced
    if token >= logits.shape[0]:
        reason = f"call {call.hex()}: its logits are no numbers; is the model sound?"
        raise EngineError(reason, (call,))
    if sampling.top_logprobs < 0:
        return Sampled(call, token)
    logprobs = logits.log_softmax(-1)
    best = logprobs.topk(min(sampling.top_logprobs, logprobs.shape[0]))
    top = tuple(
        TopLogprob(int(other), float(value))
        for value, other in zip(best.values.tolist(), best.indices.tolist(), strict=True)
    )
    return Sampled(call, token, float(logprobs[token]), top)


def _adjust(logits: torch.Tensor, draw: Draw, kernels: Kernels) -> None:
    sampling = draw.sampling
    kernels.penalize(
        logits,
        torch.from_numpy(draw.history.astype("int64")).to(logits.device),
        draw.prompt_tokens,
        sampling.repetition_penalty,
        sampling.frequency_penalty,
        sampling.presence_penalty,
    )
    for token, bias in sampling.logit_bias.items():
        if 0 <= token < logits.shape[0]:
            logits[token] += bias


def _draw_token(logits: torch.Tensor, draw: Draw, kernels: Kernels) -> int:
    """The vocabulary's size where the logits are not finite."""
    sampling = draw.sampling
    if sampling.temperature < GREEDY_BELOW:
        return int(logits.argmax())
    scaled = logits / sampling.temperature
    probs = kernels.restrict(scaled, sampling.top_k, sampling.top_p, sampling.min_p)
    if not math.isfinite(float(probs.sum())):
        return logits.shape[0]
    times = torch.from_numpy(arrivals(sampling.seed, len(draw.history), logits.shape[0]))
    return kernels.race(probs, times.to(logits.device))
