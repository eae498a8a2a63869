"""Weka's agentic traces (InferenceX AgentX): one object for a user task, several a line each.

``t`` of a sub-agent's requests is from the task's beginning, or in the collector's raw files from
the sub-agent's: they are taken for the latter where they would begin before the sub-agent does.
The agent's model is the one that it calls most; each conversation with another one is a branch,
spawned by the agent's last request before it. A sub-agent is joined by its agent's first request
that begins after it ended; one that was launched to run on its own by none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

import msgspec

from alipes.replay.traces.check import check_sessions
from alipes.replay.traces.form import MAIN, Branch, Call, Session, Trace, Wait, reply_stream
from alipes.replay.traces.hash_ids import BlockNames, Context, SessionBlocks
from alipes.replay.traces.lines import Length, Prompt, Time, line_error, rows, scope_of
from alipes.replay.traces.parts import UNREADABLE, decode
from alipes.replay.traces.spans import new_content
from alipes.replay.traces.unused import unused

REMEDY: Final = "expected a Weka trace (id, models[], block_size, requests[])"
SLACK: Final = 0.001  # s; times are written to milliseconds


class Request(msgspec.Struct, frozen=True, tag_field="type", tag="n", rename={"prompt": "in"}):
    """Seconds and tokens."""

    t: Time
    prompt: Prompt
    out: Length
    model: str = ""
    hash_ids: list[int] = []
    stop: str | None = None
    api_time: Time | None = None
    think_time: Time | None = None

    @property
    def lasted(self) -> float:
        return self.api_time or 0.0


class Streamed(Request, frozen=True, tag="s"):
    """The same, with a recorded time to the first token."""


class Subagent(msgspec.Struct, frozen=True, tag_field="type", tag="subagent"):
    t: Time
    agent_id: str
    requests: list[Request | Streamed | Subagent] = []
    status: str | None = None


Entry = Request | Streamed | Subagent


class Task(msgspec.Struct, frozen=True):
    id: str
    requests: list[Entry]
    block_size: Annotated[int, msgspec.Meta(ge=1)] = 64
    hash_id_scope: str = "local"


DECODER = msgspec.json.Decoder(Task)
ANYTHING = msgspec.json.Decoder(msgspec.Raw)


@dataclass(slots=True)
class _Branch:
    """A branch as it grows; ``ends`` (s) and ``contexts`` are those of its calls."""

    name: str
    model: str
    parent: _Branch | None = None
    spawned_by: int = -1
    calls: list[Call] = field(default_factory=list)
    contexts: list[Context] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    stop: str | None = None


def read(path: Path, data: bytes) -> Trace:
    """Raises ``TraceError``."""
    try:
        ANYTHING.decode(data.lstrip().split(b"\n", 1)[0])
        tasks = list(rows(path, data, DECODER, REMEDY))
    except UNREADABLE:
        tasks = [(1, decode(path, data, DECODER, REMEDY))]
    scope, sessions, lines = scope_of(data), [], {}
    for number, task in tasks:
        if not any(isinstance(entry, Request) for entry in task.requests):
            raise line_error(path, number, "requests", "holds no request", REMEDY)
        local = task.hash_id_scope == "local"
        sessions.append(_Task(BlockNames(task.block_size, scope, local)).session(task))
        lines[task.id] = number
    check_sessions(sessions, path, lines)
    return Trace(path.name, tuple(sessions))


class _Task:
    """The branches of one task."""

    def __init__(self, names: BlockNames) -> None:
        self._blocks, self._size = SessionBlocks(names), names.size
        self._branches: dict[str, _Branch] = {}

    def session(self, task: Task) -> Session:
        model = _most_called(task.requests)
        self._walk(task.requests, 0.0, self._begin(MAIN, model, None))
        branches = tuple(
            Branch(
                branch.name,
                tuple(branch.calls),
                branch.parent.name if branch.parent else "",
                branch.spawned_by,
                branch.model if branch.model != model else "",
            )
            for branch in self._branches.values()
        )
        return Session(task.id, branches, model)

    def _begin(self, name: str, model: str, parent: _Branch | None) -> _Branch:
        index = len(parent.calls) - 1 if parent else -1
        branch = _Branch(unused(name, self._branches), model, parent, index)
        self._branches[branch.name] = branch
        return branch

    def _walk(self, entries: Sequence[Entry], shift: float, branch: _Branch) -> None:
        """Add an agent's requests, those to other models, and its sub-agents. What comes before
        its own first request is taken to follow it: somebody has to spawn it."""
        running: list[_Branch] = []
        early: list[Entry] = []
        for entry in entries:
            own = isinstance(entry, Request) and entry.model == branch.model
            if not own and not branch.calls:
                early.append(entry)
                continue
            if own:
                running = self._join(entry, shift, branch, running)
            for other in (*early, *(() if own else (entry,))):
                running += self._aside(other, shift, branch)
            early = []

    def _join(
        self, entry: Entry, shift: float, branch: _Branch, running: list[_Branch]
    ) -> list[_Branch]:
        """Add the agent's next request; gives the sub-agents that it did not wait for."""
        assert isinstance(entry, Request)
        ended = [other for other in running if max(other.ends) <= entry.t + shift + SLACK]
        joins = ended if branch.calls else []
        self._call(entry, shift, branch, joins)
        return [other for other in running if other not in joins]

    def _aside(self, entry: Entry, shift: float, branch: _Branch) -> list[_Branch]:
        """Add a request to another model, or a sub-agent; gives what has to be waited for."""
        if isinstance(entry, Subagent):
            return self._subagent(entry, shift, branch)
        name = f"{branch.name}@{entry.model}"
        for other in reversed(self._branches.values()):
            aside = other.parent is branch and other.model == entry.model
            if aside and self._extends(entry, other):
                self._call(entry, shift, other, [])
                return []
        self._call(entry, shift, self._begin(name, entry.model, branch), [])
        return []

    def _subagent(self, entry: Subagent, shift: float, parent: _Branch) -> list[_Branch]:
        start = entry.t + shift
        if entry.requests and entry.requests[0].t + shift < start - SLACK:
            shift = start
        if not any(isinstance(one, Request) for one in entry.requests):
            return [sub for one in entry.requests for sub in self._aside(one, shift, parent)]
        branch = self._begin(entry.agent_id, _most_called(entry.requests), parent)
        self._walk(entry.requests, shift, branch)
        return [] if entry.status == "async_launched" else [branch]

    def _extends(self, entry: Request, branch: _Branch) -> bool:
        context = branch.contexts[-1]
        kept = self._blocks.kept(context, self._ids(entry), entry.prompt)
        return bool(entry.hash_ids) and kept == context.prompt + context.output

    def _ids(self, entry: Request) -> list[int]:
        """A prompt's ids; where it was counted shorter than its blocks, those that it begins."""
        return entry.hash_ids[: -(-entry.prompt // self._size)]

    def _call(self, entry: Request, shift: float, branch: _Branch, joins: list[_Branch]) -> None:
        index, parent, start = len(branch.calls), branch.parent, entry.t + shift
        context, ended = None, start
        if index:
            context, ended = branch.contexts[-1], branch.ends[-1]
        elif parent:
            context, ended = parent.contexts[branch.spawned_by], parent.ends[branch.spawned_by]
        ids, output = self._ids(entry), max(1, entry.out)
        kept = self._blocks.kept(context, ids, entry.prompt)
        new = new_content(branch.name, index)
        added, tail = self._blocks.call(context, ids, kept, entry.prompt, new)
        gap = max(0.0, start - max([ended, *(max(other.ends) for other in joins)]))
        if index and not joins and entry.think_time is not None:
            gap = entry.think_time
        wait = Wait.USER if branch.stop == "end_turn" else Wait.TOOL
        if joins or not (index or parent):
            wait = Wait.BRANCH if joins else Wait.START
        names = tuple(other.name for other in joins)
        branch.calls.append(Call(entry.prompt, output, kept, added, round(gap, 6), wait, names))
        reply = reply_stream(branch.name, index)
        branch.contexts.append(Context(ids, entry.prompt, output, tail, reply))
        branch.ends.append(start + entry.lasted)
        branch.stop = entry.stop


def _most_called(entries: Sequence[Entry]) -> str:
    models = Counter(entry.model for entry in entries if isinstance(entry, Request))
    return models.most_common(1)[0][0]
