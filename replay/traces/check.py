"""Whether a trace holds together. Every reader and writer asks before anything leaves it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from graphlib import CycleError
from pathlib import Path
from typing import Final

from alipes.replay.traces.columns import Requests, split
from alipes.replay.traces.form import Branch, Call, Session, Trace, Wait
from alipes.replay.traces.model import TraceError
from alipes.replay.traces.order import dependencies

REMEDY: Final = "correct it where it was recorded or made"
STREAMS: Final = 2**63
TOKENS: Final = 2**31
SECONDS: Final = 2**53
"""Beyond these a length or a time is a mistake, and would not fit where it is reckoned with."""


def check(trace: Trace, path: Path) -> None:
    """Raises ``TraceError`` for the first fault of the trace, which is or will be at ``path``."""
    sessions, columns = split(trace.sessions)
    check_sessions(sessions, path)
    for requests in columns:
        _check_requests(requests, path)


def check_sessions(
    sessions: Iterable[Session], path: Path, lines: Mapping[str, int] | None = None
) -> None:
    """``lines`` has, by session id, the line where a session stands."""
    lines = lines or {}
    seen: set[str] = set()
    for session in sessions:
        for place, problem in _faults(session, seen):
            at = f"line {lines[session.id]}: " if session.id in lines else ""
            raise TraceError(path, f"{at}session {session.id!r}{place}", problem, REMEDY)
        seen.add(session.id)


def _check_requests(requests: Requests, path: Path) -> None:
    """Columns hold nothing but starts and lengths, and name each request after its line."""
    wrong = (requests.prompts < 1) | (requests.outputs < 1) | (requests.starts < 0)
    if wrong.any():
        check_sessions((requests[int(wrong.argmax())],), path)


def _faults(session: Session, seen: set[str]) -> Iterator[tuple[str, str]]:
    """(place in the session, problem)"""
    if not session.id:
        yield "", "has no id"
    if session.id in seen:
        yield "", "is there twice"
    if session.start is not None and not 0 <= session.start < SECONDS:
        yield ": start", f"{session.start} is not a time"
    if not session.branches:
        yield "", "has no branch"
    earlier: dict[str, Branch] = {}
    for branch in session.branches:
        place = f": branch {branch.name!r}"
        for where, problem in _branch_faults(branch, earlier):
            yield place + where, problem
        earlier[branch.name] = branch
    yield from _wait_faults(session)


def _branch_faults(branch: Branch, earlier: Mapping[str, Branch]) -> Iterator[tuple[str, str]]:
    context, messages = 0, 0
    if not branch.name or branch.name in earlier:
        yield "", "has no name of its own"
    if not branch.calls:
        yield "", "has no call"
    if not earlier:
        if branch.parent or branch.spawned_by != -1:
            yield ": parent", "the first branch is the main one and has none"
    elif branch.parent not in earlier:
        yield ": parent", f"{branch.parent!r} is no earlier branch"
    elif not 0 <= branch.spawned_by < len(earlier[branch.parent].calls):
        yield ": spawned_by", f"{branch.parent!r} has no call {branch.spawned_by}"
    else:
        spawner = earlier[branch.parent].calls[branch.spawned_by]
        context, messages = _after(spawner)
    for index, call in enumerate(branch.calls):
        for where, problem in _call_faults(call, context):
            yield f": call {index}{where}", problem
        if call.turn is not None and not 0 <= call.turn.kept <= messages:
            yield f": call {index}: turn", f"{call.turn.kept} messages kept of {messages}"
        context, messages = _after(call)


def _after(call: Call) -> tuple[int, int]:
    """(tokens, messages) of the context after a call"""
    turn = call.turn
    return call.prompt + call.output, turn.kept + len(turn.added) + 1 if turn else 0


def _call_faults(call: Call, context: int) -> Iterator[tuple[str, str]]:
    if not 1 <= call.prompt < TOKENS:
        yield ": prompt", f"{call.prompt} tokens; a call needs at least 1, and below {TOKENS}"
    if not 1 <= call.output < TOKENS:
        yield ": output", f"{call.output} tokens; a call draws at least 1, and below {TOKENS}"
    if not 0 <= call.kept <= context:
        yield ": kept", f"{call.kept} tokens of a context of {context}"
    added = 0
    for span in call.added:
        added += span.length
        whole = span.length >= 1 and 0 <= span.start < STREAMS - span.length
        if not whole or not -STREAMS <= span.stream < STREAMS:
            yield ": added", f"{span} is not a span"
    if call.kept + added != call.prompt:
        yield ": prompt", f"{call.prompt} tokens, but {call.kept} are kept and {added} added"
    if not 0 <= call.gap < SECONDS:
        yield ": gap", f"{call.gap} is not a duration"


def _wait_faults(session: Session) -> Iterator[tuple[str, str]]:
    """Joins that name nothing or can never be over."""
    names = {branch.name for branch in session.branches}
    joining = False
    for branch in session.branches:
        for index, call in enumerate(branch.calls):
            if call.wait is not Wait.BRANCH and not call.joins:
                continue
            joining = True
            place = f": branch {branch.name!r}: call {index}: joins"
            if (call.wait is Wait.BRANCH) != bool(call.joins):
                yield place, "a call waits for branches and names them, or neither"
            if index == 0:
                yield place, "the first call of a branch waits for the call that spawned it alone"
            for name in call.joins:
                if name not in names:
                    yield place, f"{name!r} is no branch of the session"
    if joining and (stuck := _stuck(session)):
        yield "", f"branches {stuck} wait for each other"


def _stuck(session: Session) -> str:
    """Branches whose calls wait for each other; empty if every call can begin."""
    try:
        dependencies(session).prepare()
    except CycleError as error:
        names = {repr(session.branches[number].name) for number, _ in error.args[1]}
        return ", ".join(sorted(names))
    return ""
