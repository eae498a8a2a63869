"""``claude-code-sessions.jsonl``: lengths and waits of real Claude Code sessions, one a line.

- ``kept`` counts tokens of the previous prompt there. A call that kept all of it goes on after the
  reply too: it keeps prompt and reply, or as much of them as fits (a reply's length is partly an
  estimate, so that a few prompts are shorter). Below it after a compaction, it is what it says.
- A call that waited for a branch waits for all sub-agents spawned before it and not waited for
  yet. Its gap is what the recording leaves after the last of them ended; where the recording has
  none of them, it is an ordinary call with its recorded gap.
- Sub-agents of one session begin alike. How far is not recorded, so the least is taken: the
  smallest count, above none, that the provider served from its cache for a first call of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from alipes.replay.traces.check import check_sessions
from alipes.replay.traces.form import Branch, Call, Session, Span, Trace, Wait, stream_id
from alipes.replay.traces.lines import Length, Prompt, Time, line_error, rows
from alipes.replay.traces.spans import new_content, one

REMEDY: Final = "expected claude-code-sessions JSONL (session, agent, branches[])"


class RecordedCall(msgspec.Struct, frozen=True):
    """Seconds and tokens."""

    gap: Time
    wait: Wait
    prompt: Prompt
    kept: Length
    output: Length
    latency: Time
    provider_cached: Length = 0


class RecordedBranch(msgspec.Struct, frozen=True):
    branch: str
    calls: list[RecordedCall]
    parent: str | None = None
    spawned_by_call: int | None = None
    spawn_delay: Time = 0.0

    @property
    def lasted(self) -> float:
        """Seconds from the end of the spawning call to that of the branch's last one."""
        return self.spawn_delay + _seconds(self.calls)


class Row(msgspec.Struct, frozen=True):
    session: str
    branches: list[RecordedBranch]
    agent: str = ""


DECODER = msgspec.json.Decoder(Row)


def read(path: Path, data: bytes) -> Trace:
    """Raises ``TraceError``."""
    sessions, lines = [], {}
    for number, row in rows(path, data, DECODER, REMEDY):
        if any(not branch.calls for branch in row.branches):
            raise line_error(path, number, "branches", "one has no calls", REMEDY)
        sessions.append(_session(row))
        lines[row.session] = number
    check_sessions(sessions, path, lines)
    return Trace(path.name, tuple(sessions))


def _session(row: Row) -> Session:
    shared = common_beginning(
        [branch.calls[0].provider_cached for branch in row.branches if branch.parent]
    )
    branches = tuple(
        Branch(
            branch.branch,
            _calls(branch, row.branches, shared),
            branch.parent or "",
            -1 if branch.spawned_by_call is None else branch.spawned_by_call,
        )
        for branch in row.branches
    )
    return Session(row.session, branches, agent=row.agent)


def common_beginning(cached: Sequence[int]) -> int:
    """Tokens with which all sub-agents of a session begin, from what a provider served from its
    cache for each one's first call."""
    return min(filter(None, cached), default=0)


def first_content(branch: str, prompt: int, shared: int) -> tuple[Span, ...]:
    """The first prompt of a sub-agent whose session's sub-agents share ``shared`` tokens."""
    common = min(shared, prompt)
    beginning = one(stream_id("sub-agents", local=True), common)
    return (*beginning, *one(new_content(branch, 0), prompt - common))


def _calls(
    branch: RecordedBranch, others: Sequence[RecordedBranch], shared: int
) -> tuple[Call, ...]:
    calls, context, before = [], 0, 0
    waiting = [other for other in others if other.parent == branch.branch]
    for index, call in enumerate(branch.calls):
        joins, waiting = _joined(call, index, waiting)
        kept = call.kept
        if index and kept == before:
            kept = min(context, call.prompt)
        added = one(new_content(branch.branch, index), call.prompt - kept)
        if not index and branch.parent:
            added = first_content(branch.branch, call.prompt, shared)
        gap, wait = _wait(branch, index, joins)
        names = tuple(other.branch for other in joins)
        calls.append(Call(call.prompt, max(1, call.output), kept, added, gap, wait, names))
        context, before = call.prompt + max(1, call.output), call.prompt
    return tuple(calls)


def _wait(
    branch: RecordedBranch, index: int, joins: Sequence[RecordedBranch]
) -> tuple[float, Wait]:
    call = branch.calls[index]
    if joins:
        return _gap_after(branch.calls, index, joins), Wait.BRANCH
    if not index:
        return (branch.spawn_delay, Wait.TOOL) if branch.parent else (call.gap, Wait.START)
    return call.gap, Wait.TOOL if call.wait is Wait.BRANCH else call.wait


def _joined(
    call: RecordedCall, index: int, waiting: list[RecordedBranch]
) -> tuple[list[RecordedBranch], list[RecordedBranch]]:
    """The branches that a call waits for, and those that no call has waited for yet."""
    if call.wait is not Wait.BRANCH or not index:
        return [], waiting
    ready = [other for other in waiting if _spawner(other) < index]
    return ready, [other for other in waiting if _spawner(other) >= index]


def _spawner(branch: RecordedBranch) -> int:
    return -1 if branch.spawned_by_call is None else branch.spawned_by_call


def _gap_after(calls: Sequence[RecordedCall], index: int, joins: Sequence[RecordedBranch]) -> float:
    """Seconds from the end of the last of ``joins``, or of the previous call if later, to a call,
    whole microseconds."""
    ended = [
        other.lasted - _seconds(calls[_spawner(other) + 1 : index], first=True) for other in joins
    ]
    return round(max(0.0, calls[index].gap - max(0.0, *ended)), 6)


def _seconds(calls: Sequence[RecordedCall], first: bool = False) -> float:
    """From the beginning of the first call (with ``first``: of its gap) to the end of the last."""
    gaps = sum(call.gap for call in calls[0 if first else 1 :])
    return gaps + sum(call.latency for call in calls)
