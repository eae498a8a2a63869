"""What the OpenAI dialects of generation share: the two forms of an answer, events, usage."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from alipes.gateway.api.claims import claim_of
from alipes.gateway.api.exchange import Exchange
from alipes.gateway.api.generation import Generation, Job, Usage
from alipes.gateway.api.sampling import SamplingFields
from alipes.gateway.api.service import Service
from alipes.gateway.api.serving import (
    Collected,
    StreamFormat,
    collect,
    placement_headers,
    stream,
)
from alipes.gateway.routing.identity import Claim

DONE: Final = b"data: [DONE]\n\n"


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class GenerationBody(SamplingFields):
    """Fields of every body that asks for a completion; those by which it may name its session
    count for nothing where they are of a wrong type."""

    stream: bool | None = None
    stream_options: StreamOptions | None = None
    session_id: Any = None
    session_params: Any = None
    prompt_cache_key: Any = None

    def claim(self, headers: Mapping[str, str], previous: Claim | None = None) -> Claim:
        """``previous`` is the claim of the response that the request continues."""
        params = self.session_params
        nested = params.get("id") if isinstance(params, dict) else None
        session = self.session_id if isinstance(self.session_id, str) else nested
        return claim_of(
            headers,
            body_session=session,
            cache_key=self.prompt_cache_key,
            previous=previous,
        )


@dataclass(frozen=True, slots=True)
class Form:
    """One dialect: the prefix of its ids, the ``object`` of a whole answer, how it streams
    (time of creation, job, whether usage is asked for), and how it tells a choice."""

    prefix: str
    kind: str
    events: Callable[[int, Job, bool], StreamFormat]
    choice: Callable[[Job, Collected], dict[str, Any]]


async def answer(
    service: Service, exchange: Exchange, body: GenerationBody, job: Job, form: Form
) -> None:
    """Run the job and tell it, streamed or whole."""
    generation = Generation(job, service.dispatcher, exchange.record)
    if body.stream:
        exchange.record.stream = True
        include_usage = bool(body.stream_options and body.stream_options.include_usage)
        events = form.events(service.now_seconds(), job, include_usage)
        await stream(exchange, generation, events, service.cluster.gateway.limits.keep_alive)
        return
    choices = await collect(exchange, generation)
    await exchange.reply(
        {
            "id": completion_id(form.prefix),
            "object": form.kind,
            "created": service.now_seconds(),
            "model": job.text.name,
            "choices": [form.choice(job, choice) for choice in choices],
            "usage": usage_object(generation.usage),
        },
        placement_headers(generation),
    )


def event(value: object) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


def completion_id(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex}"


def usage_object(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "prompt_tokens_details": {
            "cached_tokens": usage.cached,
            "restored_tokens": usage.restored,
        },
    }
