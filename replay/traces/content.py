"""Token ids for content that is known by identity only.

The token at a position of a stream is a hash of both, so equal content is equal tokens wherever
and whenever it is asked for, and different content differs in its first block.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from alipes.replay.traces.form import Branch, Call, Session, Span, reply_stream, stream_id

TokenIds = NDArray[np.int32]
_MIX: Final = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_STEP: Final = np.uint64(0x9E3779B97F4A7C15)
_SHIFTS: Final = (np.uint64(30), np.uint64(27), np.uint64(31))


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Ids ``low`` to ``high`` - 1 are drawn from; those of special tokens lie outside."""

    low: int = 1_000
    high: int = 30_000


class Content:
    """The token ids of one session's content; int32."""

    def __init__(self, session: str, vocabulary: Vocabulary) -> None:
        self._session = session
        self._vocabulary = vocabulary

    def span(self, span: Span) -> TokenIds:
        """(span.length,)"""
        stream = span.stream
        seed = stream if stream >= 0 else stream_id("local", self._session, stream)
        positions = np.arange(span.start, span.start + span.length, dtype=np.uint64)
        mixed = positions * _STEP + np.uint64(seed)
        mixed = (mixed ^ (mixed >> _SHIFTS[0])) * _MIX[0]
        mixed = (mixed ^ (mixed >> _SHIFTS[1])) * _MIX[1]
        mixed ^= mixed >> _SHIFTS[2]
        low, high = self._vocabulary.low, self._vocabulary.high
        ids: TokenIds = (low + mixed % np.uint64(high - low)).astype(np.int32)
        return ids

    def reply(self, branch: str, index: int, length: int) -> TokenIds:
        """What call ``index`` of a branch draws."""
        return self.span(Span(reply_stream(branch, index), 0, length))

    def prompt(self, call: Call, context: TokenIds) -> TokenIds:
        """The prompt of a call whose branch (or parent) has ``context`` so far."""
        parts = [context[: call.kept], *map(self.span, call.added)]
        prompt = np.concatenate(parts) if len(parts) > 1 else parts[0]
        prompt.setflags(write=False)
        return prompt


def contexts(
    session: Session, branch: Branch, content: Content, known: Mapping[str, list[TokenIds]]
) -> Iterable[tuple[TokenIds, TokenIds]]:
    """(prompt, reply) of each call of a branch; ``known`` has by branch name the contexts after
    each call of those before it."""
    context = known[branch.parent][branch.spawned_by] if branch.parent else _NOTHING
    for index, call in enumerate(branch.calls):
        prompt = content.prompt(call, context)
        reply = content.reply(branch.name, index, call.output)
        context = np.concatenate((prompt, reply))
        yield prompt, reply


_NOTHING: Final = np.empty(0, np.int32)
