"""Alibaba's Bailian (Qwen) usage traces, JSONL: a chat request a line, times in seconds.

A row is a whole prompt, told by the hash ids of its blocks of 16 tokens. It goes on from the row
that its ``parent_chat_id`` names (-1: none), the first to do so on that row's branch, another one
on a branch of its own, and keeps the full blocks that both have. Times are of arrival, so gaps hold
the call before too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from alipes.replay.traces.clock import begin_of, check_clock, unit_doubt
from alipes.replay.traces.form import MAIN, Branch, Call, Session, Trace, Wait
from alipes.replay.traces.hash_ids import BlockNames, Context, SessionBlocks
from alipes.replay.traces.lines import Length, Prompt, Time, line_error, rows, scope_of, stem
from alipes.replay.traces.mooncake import check_blocks
from alipes.replay.traces.spans import new_content

REMEDY: Final = "expected Bailian JSONL (chat_id, timestamp in s, input_length, output_length)"
BLOCK: Final = 16
NO_PARENT: Final = frozenset((None, -1, "-1", ""))
Id = int | str


class Row(msgspec.Struct, frozen=True):
    chat_id: Id
    timestamp: Time
    input_length: Prompt
    output_length: Length
    parent_chat_id: Id | None = None
    hash_ids: list[int] = []


DECODER = msgspec.json.Decoder(Row)
Numbered = tuple[int, Row]


@dataclass(slots=True)
class _Branch:
    """A branch as it grows; ``contexts`` and ``times`` (s) are of each of its calls."""

    name: str
    session: str
    start: float
    parent: str = ""
    spawned_by: int = -1
    calls: list[Call] = field(default_factory=list)
    contexts: list[Context] = field(default_factory=list)
    times: list[float] = field(default_factory=list)


def read(path: Path, data: bytes, warn: Callable[[Path, str], None]) -> Trace:
    """Raises ``TraceError``."""
    chats: dict[Id, Numbered] = {}
    for number, row in rows(path, data, DECODER, REMEDY):
        if row.chat_id in chats:
            problem = f"{row.chat_id!r} is also that of line {chats[row.chat_id][0]}"
            raise line_error(path, number, "chat_id", problem, "give each request its own")
        check_blocks(path, number, row.input_length, row.hash_ids, BLOCK)
        chats[row.chat_id] = (number, row)
    check_clock(path, [(number, row.timestamp) for number, row in chats.values()], 1)
    begin = begin_of(row.timestamp for _, row in chats.values())
    if doubt := unit_doubt(begin, 1):
        warn(path, doubt)
    begun = [one for one in chats.values() if _parent(one[1], chats) is None]
    if cut := [number for number, row in begun if row.parent_chat_id not in NO_PARENT]:
        warn(
            path,
            f"{len(cut)} requests (the first in line {cut[0]}) go on from one that is not in the"
            " file; each is read as the begin of a session",
        )
    assembly = _Assembly(stem(path), BlockNames(BLOCK, scope_of(data)), begin)
    for row in _in_order(path, chats):
        assembly.add(row, _parent(row, chats))
    return Trace(path.name, assembly.sessions())


def _parent(row: Row, chats: Mapping[Id, Numbered]) -> Id | None:
    """The chat that a row goes on from, if the file has it."""
    parent = row.parent_chat_id
    return parent if parent not in NO_PARENT and parent in chats else None


def _in_order(path: Path, chats: Mapping[Id, Numbered]) -> Iterable[Row]:
    """The rows in order of the file, but each after its parent."""
    done: set[Id] = set()
    for line, row in chats.values():
        waiting: dict[Id, Row] = {}
        one: Row | None = row
        while one is not None and one.chat_id not in done:
            if one.chat_id in waiting:
                problem = f"{one.chat_id!r} goes on from itself"
                raise line_error(path, line, "parent_chat_id", problem, "correct the parents")
            waiting[one.chat_id] = one
            parent = _parent(one, chats)
            one = None if parent is None else chats[parent][1]
        done.update(waiting)
        yield from reversed(waiting.values())


class _Assembly:
    """Sessions out of rows, each added after its parent."""

    def __init__(self, stem: str, names: BlockNames, begin: float) -> None:
        self._stem, self._begin = stem, begin
        self._blocks = SessionBlocks(names)
        self._branches: dict[str, list[_Branch]] = {}
        self._places: dict[Id, tuple[_Branch, int]] = {}

    def add(self, row: Row, parent: Id | None) -> None:
        branch = self._branch(row, parent)
        context, before = None, row.timestamp
        if parent is not None:
            at, place = self._places[parent]
            context, before = at.contexts[place], at.times[place]
        index = len(branch.calls)
        ids, prompt, output = row.hash_ids, row.input_length, max(1, row.output_length)
        kept = self._blocks.kept(context, ids, prompt, reset=True)
        added = self._blocks.content(ids, kept, prompt, new_content(branch.name, index))
        gap = round(max(0.0, row.timestamp - before), 9)
        wait = Wait.START if parent is None else Wait.USER
        branch.calls.append(Call(prompt, output, kept, added, gap, wait))
        branch.contexts.append(Context(ids, prompt, output, (), 0))
        branch.times.append(row.timestamp)
        self._places[row.chat_id] = (branch, index)

    def _branch(self, row: Row, parent: Id | None) -> _Branch:
        """The branch that a row goes on, or begins."""
        if parent is None:
            name = f"{self._stem}-{row.chat_id}"
            branch = _Branch(MAIN, name, round(row.timestamp - self._begin, 9))
            self._branches[name] = [branch]
            return branch
        at, index = self._places[parent]
        if index + 1 == len(at.calls):
            return at
        branch = _Branch(f"chat-{row.chat_id}", at.session, at.start, at.name, index)
        self._branches[at.session].append(branch)
        return branch

    def sessions(self) -> tuple[Session, ...]:
        return tuple(
            Session(
                name,
                tuple(Branch(b.name, tuple(b.calls), b.parent, b.spawned_by) for b in branches),
                start=branches[0].start,
            )
            for name, branches in self._branches.items()
        )
