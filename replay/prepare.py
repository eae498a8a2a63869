"""Fix what is sent before the first call: lengths as the endpoint counts them, prompts that fit."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from alipes.replay.conversation import Conversation, Exchange, conversation_of, has_text
from alipes.replay.endpoint import Endpoint, EndpointError
from alipes.replay.plan import Assignment, PlannedCall, PlannedSession, TextPrompts
from alipes.replay.shorten import (
    shorten_conversation,
    smaller_share,
    text_of,
    texts_of,
    tokens_needed,
)
from alipes.replay.tokens import TokenPrompts
from alipes.replay.traces.content import Content, Vocabulary
from alipes.replay.traces.form import Session

Contexts = Mapping[str, int | None]


@dataclass(frozen=True, slots=True)
class Sending:
    """How calls are sent. ``forced``: they draw what was recorded, so that the next prompt goes on
    from what the endpoint holds. ``plain``: bodies have fields of the OpenAI API only.
    ``vocabulary`` is what content without text is made of. The first ``warmup`` sessions count in
    no figure."""

    forced: bool = False
    plain: bool = False
    vocabulary: Vocabulary = field(default_factory=Vocabulary)
    warmup: int = 0


async def prepare(
    endpoint: Endpoint, assignments: Sequence[Assignment], sending: Sending
) -> tuple[PlannedSession, ...]:
    """Raises ``EndpointError`` where the endpoint cannot take the sessions."""
    contexts = await _contexts(endpoint, assignments)
    if sending.forced:
        for model in contexts:
            await endpoint.check_forced(model)
    planned = []
    for number, assignment in enumerate(assignments):
        make = _text if has_text(assignment.recorded) else _tokens
        warmup = number < sending.warmup
        planned.append(await make(endpoint, assignment, contexts, sending, warmup))
    return tuple(planned)


async def _contexts(endpoint: Endpoint, assignments: Sequence[Assignment]) -> Contexts:
    """Context length of every model in use. An error names the option that chose the model."""
    chosen: dict[str, None] = {}
    recorded: dict[str, None] = {}
    for assignment in assignments:
        own = any((assignment.recorded.model, *(b.model for b in assignment.recorded.branches)))
        (recorded if own else chosen).update(dict.fromkeys(assignment.models))
    contexts = await endpoint.contexts(chosen)
    return contexts | await endpoint.contexts(recorded, "--model-map") if recorded else contexts


async def _text(
    endpoint: Endpoint, assignment: Assignment, contexts: Contexts, sending: Sending, warmup: bool
) -> PlannedSession:
    """With its text as recorded, or shortened to what the models can hold."""
    whole, share = conversation_of(assignment.recorded), 1.0
    while True:
        short = shorten_conversation(whole, share)
        smaller = share
        for model in dict.fromkeys(assignment.models):
            exchanges = list(chain(*_on(model, assignment, short)))
            counts = await endpoint.counts(model, texts_of(exchanges))
            needed, context = tokens_needed(exchanges, counts), contexts[model]
            if context is not None and needed > context:
                smaller = min(smaller, _smaller(share, needed, context, assignment, model))
        if smaller == share:
            calls = await _calls(endpoint, assignment, short, sending.forced)
            return PlannedSession(
                assignment.session,
                assignment.models,
                assignment.recorded,
                TextPrompts(calls),
                share,
                sending.plain,
                warmup,
            )
        share = smaller


def _smaller(share: float, needed: int, context: int, assignment: Assignment, model: str) -> float:
    smaller = smaller_share(share, needed, context)
    if smaller is None:
        raise EndpointError(
            f"session {assignment.recorded.id}: cannot be shortened to the {context} tokens of"
            f" {model}; replay it on a model with a longer context"
        )
    return smaller


def _on(
    model: str, assignment: Assignment, conversation: Conversation
) -> Iterable[Iterable[Exchange]]:
    """The branches that one model answers."""
    pairs = zip(assignment.models, conversation, strict=True)
    return (branch for own, branch in pairs if own == model)


async def _calls(
    endpoint: Endpoint, assignment: Assignment, conversation: Conversation, forced: bool
) -> tuple[tuple[PlannedCall, ...], ...]:
    branches = []
    for model, branch in zip(assignment.models, conversation, strict=True):
        replies = [text_of(one.reply) for one in branch]
        counts = await endpoint.counts(model, replies)
        ids: Sequence[tuple[int, ...]] = [()] * len(replies)
        if forced:
            ids = await asyncio.gather(*(endpoint.tokens(model, text) for text in replies))
        branches.append(
            tuple(
                PlannedCall(one.prompt, max(1, counts[reply]), own)
                for one, reply, own in zip(branch, replies, ids, strict=True)
            )
        )
    return tuple(branches)


async def _tokens(
    endpoint: Endpoint, assignment: Assignment, contexts: Contexts, sending: Sending, warmup: bool
) -> PlannedSession:
    """As long as recorded: what does not fit is refused."""
    _check_fits(assignment.recorded, assignment.models, contexts)
    content = Content(assignment.session, sending.vocabulary)
    return PlannedSession(
        assignment.session,
        assignment.models,
        assignment.recorded,
        TokenPrompts(assignment.recorded, content, sending.forced),
        plain=sending.plain,
        warmup=warmup,
    )


def _check_fits(session: Session, models: Sequence[str], contexts: Contexts) -> None:
    for branch, model in zip(session.branches, models, strict=True):
        context = contexts[model]
        for index, call in enumerate(branch.calls):
            if context is not None and call.prompt + call.output > context:
                raise EndpointError(
                    f"session {session.id}: call {index} of branch {branch.name} has"
                    f" {call.prompt} + {call.output} tokens, more than the {context} of {model};"
                    " leave the session out, or replay it on a model with a longer context"
                )
