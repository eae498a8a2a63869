"""``/v1/completions``: raw prompts, as text or token ids."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from alipes.gateway.api.errors import OPENAI, ApiError, invalid
from alipes.gateway.api.exchange import Exchange
from alipes.gateway.api.generation import Generation, Job, Update
from alipes.gateway.api.intake import Ask, Raw, job_of
from alipes.gateway.api.openai.answer import (
    DONE,
    Form,
    GenerationBody,
    answer,
    completion_id,
    event,
    usage_object,
)
from alipes.gateway.api.openai.logprobs import TextLogprobs
from alipes.gateway.api.sampling import TokenId, TopLogprobs
from alipes.gateway.api.service import Service
from alipes.gateway.api.serving import Collected
from alipes.gateway.text.reply.deltas import TextDelta

_LEGACY_MAX_TOKENS: Final = 16


class CompletionBody(GenerationBody, kw_only=True):
    prompt: str | list[str | TokenId | list[TokenId]]
    logprobs: TopLogprobs | None = None
    echo: bool | None = None
    suffix: str | None = None
    best_of: int | None = None


_decoder: Final = msgspec.json.Decoder(CompletionBody)


async def completions(service: Service, exchange: Exchange) -> None:
    body = await exchange.json(_decoder, service.body_limit)
    _check_supported(body)
    ask = Ask(
        prompt=Raw(body.prompt),
        sampling=body,
        limit=body.max_tokens or _LEGACY_MAX_TOKENS,
        claim=body.claim(exchange.headers),
        top_logprobs=-1 if body.logprobs is None else body.logprobs,
    )
    job = await job_of(service, ask, exchange.record.tenant)
    form = Form("cmpl", "text_completion", CompletionStream, _choice)
    await answer(service, exchange, body, job, form)


def _check_supported(body: CompletionBody) -> None:
    if body.echo:
        raise invalid("echo", "is not supported", "unsupported")
    if body.suffix:
        raise invalid("suffix", "is not supported", "unsupported")
    if body.best_of not in (None, 1, body.n):
        raise invalid("best_of", "is not supported: use n", "unsupported")


class CompletionStream:
    """``text_completion`` events."""

    def __init__(self, created: int, job: Job, include_usage: bool) -> None:
        self._include_usage = include_usage
        self._logprobs = [TextLogprobs(job.text) for _ in range(job.choices)]
        self._head = {
            "id": completion_id("cmpl"),
            "object": "text_completion",
            "created": created,
            "model": job.text.name,
        }

    def opening(self, generation: Generation) -> bytes:
        return b""

    def silence(self) -> bytes:
        """A chunk as of a token that shows nothing, but for the word that tells it from one."""
        return self._chunk(0, "", None, None, keep_alive=True)

    def update(self, update: Update) -> bytes:
        text = "".join(delta.text for delta in update.deltas if isinstance(delta, TextDelta))
        logprobs = self._logprobs[update.index].next(update.drawn) if update.drawn else None
        reason = update.finish.reason if update.finish else None
        return self._chunk(update.index, text, logprobs, reason)

    def closing(self, generation: Generation) -> bytes:
        if not self._include_usage:
            return DONE
        usage = usage_object(generation.usage)
        return event({**self._head, "choices": [], "usage": usage}) + DONE

    def _chunk(
        self, index: int, text: str, logprobs: Any, reason: str | None, **more: bool
    ) -> bytes:
        choice = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}
        chunk: dict[str, Any] = {**self._head, "choices": [choice], **more}
        if self._include_usage:
            chunk["usage"] = None
        return event(chunk)

    def error(self, error: ApiError, request_id: str) -> bytes:
        return event(OPENAI.body(error, request_id))


def _choice(job: Job, choice: Collected) -> dict[str, Any]:
    wanted = job.sampling.top_logprobs >= 0
    return {
        "index": choice.index,
        "text": choice.text,
        "logprobs": TextLogprobs(job.text).next(choice.drawn) if wanted else None,
        "finish_reason": choice.reason,
    }
