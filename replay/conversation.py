"""What the calls of a session with text sent and got, message by message."""

from __future__ import annotations

from dataclasses import dataclass

from alipes.replay.traces.form import Session
from alipes.replay.traces.model import Message


@dataclass(frozen=True, slots=True)
class Exchange:
    """One call: its whole prompt and what the model replied."""

    prompt: tuple[Message, ...]
    reply: Message


Conversation = tuple[tuple[Exchange, ...], ...]
"""The calls of a session, branch by branch."""


def has_text(session: Session) -> bool:
    return all(call.turn is not None for branch in session.branches for call in branch.calls)


def conversation_of(session: Session) -> Conversation:
    """The prompts and replies of a session of which every call has a turn."""
    contexts: dict[str, list[tuple[Message, ...]]] = {}
    branches = []
    for branch in session.branches:
        parent = contexts.get(branch.parent)
        context = parent[branch.spawned_by] if parent is not None else ()
        exchanges = []
        after = contexts.setdefault(branch.name, [])
        for call in branch.calls:
            assert call.turn is not None
            prompt = (*context[: call.turn.kept], *call.turn.added)
            exchanges.append(Exchange(prompt, call.turn.reply))
            context = (*prompt, call.turn.reply)
            after.append(context)
        branches.append(tuple(exchanges))
    return tuple(branches)
