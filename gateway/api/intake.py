"""The one way in for a generation: from what a dialect has read to a job for the fleet.

A dialect says what is asked for in an ``Ask``; text, sampling, limits and room are alike for all.
"""

from __future__ import annotations

from dataclasses import dataclass

from alipes.gateway.api.errors import from_text, invalid, too_long
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
from alipes.gateway.api.wishes import Wished
from alipes.gateway.conversation.message import Conversation
from alipes.gateway.routing.identity import NO_CLAIM, Claim
from alipes.gateway.text.errors import TextError
from alipes.gateway.text.model import ModelText
from alipes.instance.contract import TokenIds

RawPrompt = str | list[str | int | list[int]]


@dataclass(frozen=True, slots=True)
class Raw:
    """Prompts that no template touches: a text, token ids, or a list of either."""

    prompt: RawPrompt


@dataclass(frozen=True, slots=True)
class Ask:
    """What a body asks for, in terms of no dialect. ``limit`` is the most tokens of an answer, None
    for the gateway's default; ``top_logprobs`` is that of ``contract.Sampling``; ``wished`` is the
    form that the answer must have, None for any."""

    prompt: Conversation | Raw
    sampling: SamplingFields
    limit: int | None
    claim: Claim = NO_CLAIM
    top_logprobs: int = -1
    wished: Wished | None = None


@dataclass(frozen=True, slots=True)
class Prompts:
    """Token ids, each int32 (n,), and how many of them a next prompt of the session begins with;
    ``opened`` where they end in what the model thinks."""

    tokens: tuple[TokenIds, ...]
    stems: tuple[int, ...]
    opened: bool = False


async def job_of(service: Service, ask: Ask, tenant: str) -> Job:
    """Raises ``ApiError`` that names the field: a model that is not served, a value that cannot be
    meant, a prompt that leaves no room for an answer."""
    fields, settings = ask.sampling, service.cluster.gateway
    text = service.text(fields.model)
    forced = forced_bytes(fields.forced_token_ids, settings.allow_forced_tokens, text)
    grammar = await _grammar(text, ask)
    # Forced ids win: a call that has them has no grammar.
    sampling = sampling_of(fields, text, ask.top_logprobs, "" if forced else grammar)
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
        tools=tuple(conversation.tools) if conversation else (),
        mute=conversation is not None and conversation.mute,
        opened=prompts.opened,
        chat=conversation is not None,
        claim=ask.claim,
        stems=prompts.stems,
        messages=conversation.messages if conversation else None,
    )


async def _grammar(text: ModelText, ask: Ask) -> str:
    wished = ask.wished
    if wished is None:
        return ""
    if isinstance(ask.prompt, Conversation) and ask.prompt.continues:
        # What is gone on with is the client's text, in no form that a grammar could take up.
        if not wished.wish.binding:
            return ""
        raise invalid(
            wished.field or "tool_choice",
            "cannot be kept to after a message of the assistant's: end with one of the user's",
            "unsupported",
        )
    try:
        return await text.grammar(wished.wish)
    except TextError as error:
        raise invalid(wished.field, error.message, error.code) from None


async def prompts_of(text: ModelText, prompt: Conversation | Raw, tenant: str) -> Prompts:
    """Raises ``ApiError`` that names the field, or ``TextError``, which does so too."""
    if isinstance(prompt, Raw):
        tokens = await _raw(text, prompt.prompt)
        return Prompts(tuple(tokens), tuple(map(len, tokens)))
    try:
        read = await text.chat(prompt, tenant)
    except TextError as error:
        if prompt.field:
            error.field = prompt.field
        raise from_text(error) from None
    return Prompts((read.tokens,), (read.stem,), read.opened)


async def _raw(text: ModelText, prompt: RawPrompt) -> list[TokenIds]:
    """A list of ids is one prompt, a list of lists or strings several."""
    if isinstance(prompt, str):
        return [(await text.text(prompt)).tokens]
    if not prompt:
        raise invalid("prompt", "is empty")
    if isinstance(prompt[0], int) and len(prompt) > text.context:
        raise too_long("prompt", len(prompt), text.context)
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
