"""Prompts of sessions without text: token ids that stand for the recorded content."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from alipes.replay.plan import COMPLETIONS
from alipes.replay.traces.content import Content, TokenIds, Vocabulary
from alipes.replay.traces.form import Session, Span, reply_stream

LOWEST: Final = 1_000
"""Ids below are left out where the vocabulary has room: special tokens and bytes lie there."""


def vocabulary(bound: int) -> Vocabulary:
    """Ids below ``bound``, as far as they are safe."""
    return Vocabulary(min(LOWEST, bound // 2), bound)


@dataclass(frozen=True, slots=True)
class TokenPrompts:
    """Completions of token ids. Prompts are made when they are asked for: all of them together
    would be much larger than the trace."""

    recorded: Session
    content: Content
    force: bool = False

    @property
    def path(self) -> str:
        return COMPLETIONS

    def fields(self, branch: int, index: int) -> dict[str, Any]:
        return {"prompt": self.prompt(branch, index).tolist()}

    def prompt(self, branch: int, index: int) -> TokenIds:
        """int32 (prompt,)"""
        spans = prompt_spans(self.recorded, branch, index)
        return np.concatenate([self.content.span(span) for span in spans])

    def expected(self, branch: int, index: int) -> int:
        return max(1, self.recorded.branches[branch].calls[index].output)

    def forced(self, branch: int, index: int) -> Sequence[int]:
        if not self.force:
            return ()
        recorded = self.recorded.branches[branch]
        length = recorded.calls[index].output
        ids: list[int] = self.content.reply(recorded.name, index, length).tolist()
        return ids


def prompt_spans(session: Session, branch: int, index: int) -> list[Span]:
    """What the prompt of a call holds, in order."""
    spans: list[Span] = []
    context = 0
    for number, last in _line(session, branch, index):
        own = session.branches[number]
        for place, call in enumerate(own.calls[: last + 1]):
            _cut(spans, context - call.kept)
            spans += call.added
            context = call.prompt + call.output
            if (number, place) != (branch, index):
                spans.append(Span(reply_stream(own.name, place), 0, call.output))
    return spans


def _line(session: Session, branch: int, index: int) -> list[tuple[int, int]]:
    """(branch, last call before the next one) from the main branch down to a call."""
    numbers = {other.name: number for number, other in enumerate(session.branches)}
    line = [(branch, index)]
    while parent := session.branches[line[-1][0]].parent:
        line.append((numbers[parent], session.branches[line[-1][0]].spawned_by))
    return line[::-1]


def _cut(spans: list[Span], excess: int) -> None:
    """Drop the last ``excess`` tokens."""
    while excess > 0:
        last = spans.pop()
        if last.length > excess:
            spans.append(Span(last.stream, last.start, last.length - excess))
        excess -= last.length
