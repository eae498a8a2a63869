"""Agentic Mooncake JSONL (as Dynamo's tools write and replay it): a request a line, with what it
waits for.

A row goes on its branch if it waits for that branch's last row so far, which has the same
``session_id``. One that waits for others begins a branch, spawned by the row that lists it in
``branches``, or else by the first that it waits for. One that waits for nothing begins a session
at its ``timestamp``. Whatever else a row waits for must be the end of another branch of its
session. It is due ``delay`` and ``tool_wait_ms`` (ms) after all that ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Final

import msgspec

from alipes.replay.traces.check import check_sessions
from alipes.replay.traces.clock import YEAR, check_clock
from alipes.replay.traces.form import MAIN, Branch, Call, Session, Trace, Wait, reply_stream
from alipes.replay.traces.hash_ids import BlockNames, Context, SessionBlocks
from alipes.replay.traces.lines import Length, Prompt, Time, line_error, rows, scope_of
from alipes.replay.traces.mooncake import check_blocks
from alipes.replay.traces.spans import new_content
from alipes.replay.traces.unused import unused

REMEDY: Final = "expected agentic Mooncake JSONL (request_id, input_length, output_length, ...)"


class Row(msgspec.Struct, frozen=True, omit_defaults=True):
    """Without ``input_length`` all blocks of ``hash_ids`` are full."""

    request_id: str
    output_length: Length
    input_length: Prompt | None = None
    session_id: str | None = None
    model: str = ""
    hash_ids: list[int] = []
    timestamp: Time | None = None
    delay: Time | None = None
    tool_wait_ms: Time | None = None
    tool_events: list[dict[str, object]] = []
    wait_for: list[str] = []
    branches: list[str] = []
    prefix_reset: bool | None = None


DEFINING: Final = frozenset({"wait_for", "branches", "prefix_reset", "tool_wait_ms", "tool_events"})
"""The fields that no other Mooncake row has."""
DECODER = msgspec.json.Decoder(Row)
Numbered = tuple[int, Row]


@dataclass(slots=True)
class _Branch:
    """A branch as it grows; ``contexts`` is after each of its calls."""

    root: _Root
    name: str
    first: Row
    parent: _Branch | None = None
    spawned_by: int = -1
    last: str = ""
    calls: list[Call] = field(default_factory=list)
    contexts: list[Context] = field(default_factory=list)


@dataclass(slots=True)
class _Root:
    """A session as it grows."""

    id: str
    blocks: SessionBlocks
    branches: dict[str, _Branch] = field(default_factory=dict)


def read(path: Path, data: bytes, size: int) -> Trace:
    """``size`` tokens a block. Raises ``TraceError``."""
    numbered = {}
    for number, row in rows(path, data, DECODER, REMEDY):
        if row.request_id in numbered:
            problem = f"{row.request_id!r} is there twice"
            raise line_error(path, number, "request_id", problem, "give each request its own id")
        if row.input_length is not None:
            check_blocks(path, number, row.input_length, row.hash_ids, size)
        elif not row.hash_ids:
            problem = "has neither a length nor hash ids"
            raise line_error(path, number, "input_length", problem, "give one")
        numbered[row.request_id] = (number, row)
    begins = [(number, row.timestamp) for number, row in numbered.values() if not row.wait_for]
    check_clock(path, [(line, time) for line, time in begins if time is not None], 0.001, YEAR)
    assembly = _Assembly(path, numbered, BlockNames(size, scope_of(data)))
    for request in _in_order(path, numbered):
        assembly.add(*numbered[request])
    sessions = assembly.sessions()
    check_sessions(sessions, path)
    return Trace(path.name, sessions)


def _in_order(path: Path, numbered: dict[str, Numbered]) -> Iterable[str]:
    """Request ids, each after those it waits for; the file's order where that is so already."""
    seen: set[str] = set()
    sorted_already = True
    for request, (number, row) in numbered.items():
        for name, others in (("wait_for", row.wait_for), ("branches", row.branches)):
            if unknown := [other for other in others if other not in numbered]:
                problem = f"no request {unknown[0]!r}"
                raise line_error(path, number, name, problem, "give the whole file")
        sorted_already &= seen.issuperset(row.wait_for)
        seen.add(request)
    if sorted_already:
        return numbered
    waits = {request: row.wait_for for request, (_, row) in numbered.items()}
    try:
        return list(TopologicalSorter(waits).static_order())
    except CycleError as error:
        number = numbered[error.args[1][0]][0]
        problem = f"{' and '.join(map(repr, error.args[1][1:]))} wait for each other"
        raise line_error(path, number, "wait_for", problem, "break the cycle") from None


class _Assembly:
    """Sessions out of rows, each added after those it waits for."""

    def __init__(self, path: Path, numbered: dict[str, Numbered], names: BlockNames) -> None:
        self._path, self._numbered, self._names = path, numbered, names
        self._roots: dict[str, _Root] = {}
        self._places: dict[str, tuple[_Branch, int]] = {}
        self._joins: list[tuple[int, str]] = []
        self._listed = {
            child: request for request, (_, row) in numbered.items() for child in row.branches
        }

    def add(self, line: int, row: Row) -> None:
        branch = self._continued(row) or self._begun(line, row)
        index = len(branch.calls)
        context = branch.contexts[-1] if branch.contexts else None
        if context is None and branch.parent is not None:
            context = branch.parent.contexts[branch.spawned_by]
        joins = self._joined(line, row, branch, index)
        new, reply = new_content(branch.name, index), reply_stream(branch.name, index)
        blocks, output = branch.root.blocks, max(1, row.output_length)
        length = row.input_length or len(row.hash_ids) * self._names.size
        kept = blocks.kept(context, row.hash_ids, length, row.prefix_reset is True)
        added, tail = blocks.call(context, row.hash_ids, kept, length, new)
        gap = ((row.delay or 0.0) + (row.tool_wait_ms or 0.0)) / 1000
        wait = _wait(row, joins)
        branch.calls.append(Call(length, output, kept, added, gap, wait, joins))
        branch.contexts.append(Context(row.hash_ids, length, output, tail, reply))
        branch.last = row.request_id
        self._places[row.request_id] = (branch, index)

    def _continued(self, row: Row) -> _Branch | None:
        for request in row.wait_for:
            branch, _ = self._places[request]
            if branch.last == request and branch.first.session_id == row.session_id:
                return branch
        return None

    def _begun(self, line: int, row: Row) -> _Branch:
        spawner = self._listed.get(row.request_id, row.wait_for[0] if row.wait_for else None)
        if spawner is None:
            root = _Root(self._root_id(row), SessionBlocks(self._names))
            self._roots[root.id] = root
            branch = _Branch(root, MAIN, row)
        elif spawner in self._places:
            parent, index = self._places[spawner]
            root = parent.root
            name = (row.session_id or row.request_id).removeprefix(f"{root.id}/")
            branch = _Branch(root, unused(name, root.branches), row, parent, index)
        else:
            problem = f"{spawner!r} lists it in branches, but it does not wait for that"
            raise line_error(self._path, line, "wait_for", problem, f"add {spawner!r}")
        root.branches[branch.name] = branch
        return branch

    def _root_id(self, row: Row) -> str:
        return unused(row.session_id or row.request_id, self._roots)

    def _joined(self, line: int, row: Row, branch: _Branch, index: int) -> tuple[str, ...]:
        names: dict[str, None] = {}
        for request in row.wait_for:
            other, at = self._places[request]
            if other.root is not branch.root:
                problem = f"{request!r} belongs to another session"
                raise line_error(self._path, line, "wait_for", problem, "wait within a session")
            if not _precedes(other, at, branch, index):
                names[other.name] = None
                self._joins.append((line, request))
        return tuple(names)

    def sessions(self) -> tuple[Session, ...]:
        for line, request in self._joins:
            branch, _ = self._places[request]
            if branch.last != request:
                problem = f"{request!r} is not the last request of its branch"
                raise line_error(self._path, line, "wait_for", problem, f"use {branch.last!r}")
        return tuple(_session(root) for root in self._roots.values())


def _precedes(other: _Branch, at: int, branch: _Branch, index: int) -> bool:
    """Whether call ``at`` of ``other`` is over before call ``index`` of ``branch`` anyway."""
    place: _Branch | None = branch
    before = index - 1
    while place is not None:
        if place is other:
            return at <= before
        before = place.spawned_by
        place = place.parent
    return False


def _wait(row: Row, joins: Sequence[str]) -> Wait:
    if joins:
        return Wait.BRANCH
    if not row.wait_for:
        return Wait.START
    if row.delay is not None and row.tool_wait_ms is None and not row.tool_events:
        return Wait.USER
    return Wait.TOOL


def _session(root: _Root) -> Session:
    main = root.branches[MAIN].first
    branches = tuple(
        Branch(
            branch.name,
            tuple(branch.calls),
            branch.parent.name if branch.parent else "",
            branch.spawned_by,
            branch.first.model if branch.first.model != main.model else "",
        )
        for branch in root.branches.values()
    )
    start = None if main.timestamp is None else main.timestamp / 1000
    return Session(root.id, branches, main.model, start=start)
