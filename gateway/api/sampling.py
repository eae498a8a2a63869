"""Sampling fields that dialects share, checked as far as the body alone allows."""

from __future__ import annotations

import re
import secrets
from typing import Annotated, Final

import msgspec
import numpy as np
from msgspec import Meta

from alipes.gateway.api.errors import invalid, too_long
from alipes.gateway.api.generation import SEED_MASK
from alipes.gateway.text.model import ModelText
from alipes.instance.contract import Sampling, TokenIds

Temperature = Annotated[float, Meta(ge=0.0, le=2.0)]
Fraction = Annotated[float, Meta(ge=0.0, le=1.0)]
TopK = Annotated[int, Meta(ge=-1, le=1 << 30)]
Penalty = Annotated[float, Meta(ge=-2.0, le=2.0)]
Repetition = Annotated[float, Meta(ge=0.01, le=10.0)]
Positive = Annotated[int, Meta(ge=1)]
TopLogprobs = Annotated[int, Meta(ge=0, le=20)]
TokenId = Annotated[int, Meta(ge=0, lt=1 << 31)]
StopString = Annotated[str, Meta(min_length=1, max_length=512)]
StopStrings = Annotated[list[StopString], Meta(max_length=16)]
MAX_CHOICES = 128
_TOKEN_ID: Final = re.compile(r"[0-9]{1,10}")


class SamplingFields(msgspec.Struct):
    """Fields of every OpenAI-style generation body; unknown ones are ignored, null is unset."""

    model: str
    temperature: Temperature | None = None
    top_p: Fraction | None = None
    top_k: TopK | None = None
    min_p: Fraction | None = None
    seed: int | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    stop: StopString | StopStrings | None = None
    max_tokens: Positive | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    repetition_penalty: Repetition | None = None
    logit_bias: dict[str, Annotated[float, Meta(ge=-100.0, le=100.0)]] | None = None
    ignore_eos: bool | None = None
    forced_token_ids: Annotated[list[TokenId], Meta(max_length=1 << 20)] | None = None


def sampling_of(
    body: SamplingFields, text: ModelText, top_logprobs: int, grammar: str = ""
) -> Sampling:
    """The contract's sampling; a seed is drawn where the client sends none. With ``top_p`` 0 only
    the likeliest token is left."""
    return Sampling(
        temperature=0.0 if body.top_p == 0.0 else _or_one(body.temperature),
        top_p=body.top_p or 1.0,
        top_k=max(0, body.top_k or 0),
        min_p=body.min_p or 0.0,
        seed=secrets.randbits(63) if body.seed is None else body.seed & SEED_MASK,
        frequency_penalty=body.frequency_penalty or 0.0,
        presence_penalty=body.presence_penalty or 0.0,
        repetition_penalty=body.repetition_penalty or 1.0,
        logit_bias=_bias(body.logit_bias or {}, text.vocab_size),
        top_logprobs=top_logprobs,
        grammar=grammar,
    )


def _or_one(value: float | None) -> float:
    return 1.0 if value is None else value


def stops_of(stop: str | list[str] | None) -> tuple[str, ...]:
    if stop is None:
        return ()
    return (stop,) if isinstance(stop, str) else tuple(stop)


def forced_bytes(ids: list[int] | None, allowed: bool, text: ModelText) -> bytes:
    """int32 bytes of ``forced_token_ids``; raises a 400 where the file does not allow them."""
    if not ids:
        return b""
    if not allowed:
        raise invalid(
            "forced_token_ids",
            "not allowed here: gateway.allow_forced_tokens is off",
            "not_allowed",
        )
    return check_ids("forced_token_ids", ids, text).astype("<i4").tobytes()


def check_ids(field: str, ids: list[int], text: ModelText) -> TokenIds:
    """Token ids as int32; raises a 400 for one outside the vocabulary."""
    highest = max(ids, default=0)
    if highest >= text.vocab_size:
        raise invalid(field, f"{highest} is not below the vocabulary {text.vocab_size}")
    return np.array(ids, dtype=np.int32)


def _bias(bias: dict[str, float], vocabulary: int) -> dict[int, float]:
    checked = {}
    for key, value in bias.items():
        if not _TOKEN_ID.fullmatch(key) or int(key) >= vocabulary:
            raise invalid(f"logit_bias.{key[:32]}", f"not a token id below {vocabulary}")
        checked[int(key)] = value
    return checked


def check_room(field: str, prompt_tokens: int, text: ModelText, context: int) -> None:
    """Raises a 400 for a prompt that is empty or leaves no room for an answer."""
    if prompt_tokens == 0:
        raise invalid(field, "is empty")
    if prompt_tokens >= context:
        raise too_long(field, prompt_tokens, context)
