"""A trace as agentic Mooncake JSONL, for others to replay.

Prompts are told by hash ids: equal ids are equal content after an equal beginning, in this file
alone; the last block of a prompt may be a part. Text, agents' names and what a call waited for
beyond tool, user and branches are not kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from alipes.replay.traces.agentic import Row
from alipes.replay.traces.check import check
from alipes.replay.traces.form import Branch, Call, Session, Span, Trace, Wait, reply_stream
from alipes.replay.traces.hash_ids import BLOCK
from alipes.replay.traces.order import dependencies
from alipes.replay.traces.spans import blocks, cut, one

_Named = tuple[str, int]
"""A branch by its name, and the index of a call in it."""


@dataclass(frozen=True, slots=True)
class _Context:
    """A branch after a call: its prompt's full blocks with their digests, and what follows."""

    full: tuple[tuple[Span, ...], ...]
    digests: tuple[bytes, ...]
    rest: tuple[Span, ...]


NOTHING = _Context((), (), ())


def write(path: Path, trace: Trace, size: int = BLOCK) -> Iterator[bytes]:
    """The lines of a file for ``path``, blocks of ``size`` tokens. Raises ``TraceError`` before
    the first one."""
    check(trace, path)
    encode = msgspec.json.Encoder().encode
    ids: dict[bytes, int] = {}
    for session in trace.sessions:
        for row in _SessionRows(session, size, ids).rows():
            yield encode(row)


class _SessionRows:
    """The rows of one session; ``ids`` numbers the digests of the whole file's blocks."""

    def __init__(self, session: Session, size: int, ids: dict[bytes, int]) -> None:
        self._session, self._size, self._ids = session, size, ids
        self._branches = {branch.name: branch for branch in session.branches}
        self._requests = {
            (branch.name, index): f"{session.id}/{number}/{index}"
            for number, branch in enumerate(session.branches)
            for index in range(len(branch.calls))
        }
        self._spawned: dict[_Named, list[str]] = {}
        for branch in session.branches[1:]:
            children = self._spawned.setdefault((branch.parent, branch.spawned_by), [])
            children.append(self._requests[branch.name, 0])
        self._after: dict[_Named, _Context] = {}

    def rows(self) -> Iterator[Row]:
        """Each after those that it waits for."""
        for number, index in dependencies(self._session).static_order():
            yield self._row(self._session.branches[number], index)

    def _row(self, branch: Branch, index: int) -> Row:
        call = branch.calls[index]
        before = (branch.name, index - 1) if index else (branch.parent, branch.spawned_by)
        root = not index and not branch.parent
        waits = [] if root else [self._requests[before]]
        ends = [(name, len(self._branches[name].calls) - 1) for name in call.joins]
        waits += [self._requests[end] for end in ends]
        start = self._session.start
        tool = not root and call.wait is Wait.TOOL
        return Row(
            self._requests[branch.name, index],
            call.output,
            call.prompt,
            self._session.id if not branch.parent else f"{self._session.id}/{branch.name}",
            branch.model or self._session.model,
            self._hash_ids(branch.name, index, call, before),
            round(1000 * (start + call.gap), 6) if root and start is not None else None,
            None if tool or (root and start is not None) else round(1000 * call.gap, 6),
            round(1000 * call.gap, 6) if tool else None,
            wait_for=waits,
            branches=self._spawned.get((branch.name, index), []),
            prefix_reset=root or not self._goes_on(call, before),
        )

    def _goes_on(self, call: Call, before: _Named) -> bool:
        last = self._branches[before[0]].calls[before[1]]
        return call.kept == last.prompt + last.output

    def _hash_ids(self, name: str, index: int, call: Call, before: _Named) -> list[int]:
        context = self._after.get(before, NOTHING)
        size = self._size
        same = min(call.kept // size, len(context.full))
        known = (*(span for block in context.full[same:] for span in block), *context.rest)
        content = (*cut(known, 0, call.kept - same * size), *call.added)
        full, digests = list(context.full[:same]), list(context.digests[:same])
        for block in blocks(content, size):
            full.append(block)
            digests.append(self._digest(digests[-1] if digests else b"", block))
        hash_ids = [self._ids.setdefault(digest, len(self._ids)) for digest in digests]
        partial = call.prompt % size
        rest = full.pop() if partial else ()
        if partial:
            digests.pop()
        reply = one(reply_stream(name, index), call.output)
        self._after[name, index] = _Context(tuple(full), tuple(digests), (*rest, *reply))
        self._forget(before, name, index)
        return hash_ids

    def _forget(self, before: _Named, name: str, index: int) -> None:
        """Contexts that no later row begins with are dropped."""
        if before[0] == name and index and before not in self._spawned:
            self._after.pop(before, None)

    def _digest(self, before: bytes, block: tuple[Span, ...]) -> bytes:
        parts = [(self._owner(span), span.start, span.length) for span in block]
        return hashlib.blake2b(before + repr(parts).encode(), digest_size=16).digest()

    def _owner(self, span: Span) -> tuple[str, int]:
        return ("" if span.stream >= 0 else self._session.id, span.stream)
