"""The one way in for a generation: from what a dialect has read to a job for the fleet.

A dialect says what is asked for in an ``Ask``; text, sampling, limits and room are alike for all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from alipes.gateway.api.errors import invalid
from alipes.gateway.api.generation import Job
from alipes.gateway.api.sampling import (
    MAX_CHOICES,
    SamplingFields,
    check_ids,
    check_room,
    forced_bytes,
    sampling_of,
    stops_of,
)
from alipes.gateway.api.service import Service
from alipes.gateway.routing.identity import NO_CLAIM, Claim
from alipes.gateway.text.errors import TextError
from alipes.gateway.text.model import ModelText
from alipes.instance.contract import TokenIds

Message = dict[str, Any]
RawPrompt = str | list[str | int | list[int]]


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages and tools as chat templates take them. Errors name ``field`` where the messages are
    not those that the client sent, else the message."""

    messages: list[Message]
    tools: list[Message] | None
    field: str = ""


@dataclass(frozen=True, slots=True)
class Raw:
    """Prompts that no template touches: a text, token ids, or a list of either."""

    prompt: RawPrompt


@dataclass(frozen=True, slots=True)
class Ask:
    """What a body asks for, in terms of no dialect. ``limit`` is the most tokens of an answer, None
    for the gateway's default; ``top_logprobs`` is that of ``contract.Sampling``."""

    prompt: Conversation | Raw
    sampling: SamplingFields
    limit: int | None
    claim: Claim = NO_CLAIM
    top_logprobs: int = -1


@dataclass(frozen=True, slots=True)
class Prompts:
    """Token ids, each int32 (n,), and how many of them a next prompt of the session begins with."""

    tokens: tuple[TokenIds, ...]
    stems: tuple[int, ...]


async def job_of(service: Service, ask: Ask, tenant: str) -> Job:
    """Raises ``ApiError`` that names the field: a model that is not served, a value that cannot be
    meant, a prompt that leaves no room for an answer."""
    fields, settings = ask.sampling, service.cluster.gateway
    text = service.text(fields.model)
    forced = forced_bytes(fields.forced_token_ids, settings.allow_forced_tokens, text)
    sampling = sampling_of(fields, text, ask.top_logprobs)
    prompts = await prompts_of(text, ask.prompt, tenant)
    n = fields.n or 1
    if len(prompts.tokens) * n > MAX_CHOICES:
        count = len(prompts.tokens)
        raise invalid("prompt", f"{count} prompts times n {n} exceed {MAX_CHOICES}")
    conversation = ask.prompt if isinstance(ask.prompt, Conversation) else None
    return Job(
        text=text,
        prompts=prompts.tokens,
        context=_context(service, text, ask.prompt, prompts),
        max_tokens=settings.limits.default_max_tokens if ask.limit is None else ask.limit,
        sampling=sampling,
        n=n,
        stops=stops_of(fields.stop),
        ignore_eos=bool(fields.ignore_eos),
        forced=forced,
        tools=conversation.tools if conversation else None,
        chat=conversation is not None,
        claim=ask.claim,
        stems=prompts.stems,
        messages=conversation.messages if conversation else None,
    )


async def prompts_of(text: ModelText, prompt: Conversation | Raw, tenant: str) -> Prompts:
    """Raises ``ApiError`` that names the field, or ``TextError``, which does so too."""
    if isinstance(prompt, Raw):
        tokens = await _raw(text, prompt.prompt)
        return Prompts(tuple(tokens), tuple(map(len, tokens)))
    try:
        read = await text.chat(prompt.messages, prompt.tools, tenant)
    except TextError as error:
        raise invalid(prompt.field or error.field, error.message, error.code) from None
    return Prompts((read.tokens,), (read.stem,))


async def _raw(text: ModelText, prompt: RawPrompt) -> list[TokenIds]:
    """A list of ids is one prompt, a list of lists or strings several."""
    if isinstance(prompt, str):
        return [(await text.text(prompt)).tokens]
    if not prompt:
        raise invalid("prompt", "is empty")
    ids = [item for item in prompt if isinstance(item, int)]
    if len(ids) == len(prompt):
        return [check_ids("prompt", ids, text)]
    if len(prompt) > MAX_CHOICES:
        raise invalid("prompt", f"{len(prompt)} prompts exceed {MAX_CHOICES}")
    texts = [item for item in prompt if isinstance(item, str)]
    if len(texts) == len(prompt):
        return [(await text.text(item)).tokens for item in texts]
    lists = [item for item in prompt if isinstance(item, list)]
    if len(lists) == len(prompt):
        return [check_ids(f"prompt[{i}]", item, text) for i, item in enumerate(lists)]
    raise invalid("prompt", "mixes strings, token ids and lists of token ids")


def _context(
    service: Service, text: ModelText, prompt: Conversation | Raw, prompts: Prompts
) -> int:
    """Tokens that prompt and answer may have together; none of the prompts may fill them."""
    context = service.context(text, max(map(len, prompts.tokens)))
    field = "prompt" if isinstance(prompt, Raw) else prompt.field or "messages"
    for tokens in prompts.tokens:
        check_room(field, len(tokens), text, context)
    return context
