"""What a gateway recorded (``gateway.record``): a header line, then a line for each call.

A session's calls become branches by the ids recorded. A branch was spawned by the last call of its
parent that had finished when it began. The parent's next call joins it if it came after the
branch's end while nothing else of the parent ran at that end. Content is known by full blocks:
what lies between the kept tokens and the first of them, and after the last, is the call's own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from alipes.replay.traces.form import (
    MAIN,
    Branch,
    Call,
    Session,
    Span,
    Trace,
    Turn,
    Wait,
    stream_id,
)
from alipes.replay.traces.gateway_lines import DIGITS, Line, Recorded, recorded
from alipes.replay.traces.model import Message
from alipes.replay.traces.spans import new_content, one


@dataclass(slots=True)
class Grown:
    """A branch as it is put together, its calls in order; ``joins`` by index of the call."""

    name: str
    calls: list[Recorded]
    parent: Grown | None = None
    spawned_by: int = -1
    whole: bool = True
    joins: defaultdict[int, list[Grown]] = field(default_factory=lambda: defaultdict(list))

    @property
    def ended(self) -> float:
        return self.calls[-1].ended


def read(path: Path, data: bytes) -> Trace:
    """Raises ``TraceError``."""
    sessions: defaultdict[str, list[Recorded]] = defaultdict(list)
    for call in recorded(path, data):
        sessions[call.line.session].append(call)
    built = [_session(name, calls) for name, calls in sessions.items()]
    return Trace(
        path.name, tuple(sorted(built, key=lambda session: (session.start or 0.0, session.id)))
    )


def _session(name: str, calls: Sequence[Recorded]) -> Session:
    branches = _grown(calls)
    main = branches[0]
    turns = [_turns(branch.calls) for branch in branches]
    text = None not in turns
    built = []
    for branch, own in zip(branches, turns, strict=True):
        model = branch.calls[0].line.model
        built.append(
            Branch(
                branch.name,
                tuple(_calls(branch, own if text else None)),
                branch.parent.name if branch.parent is not None else "",
                branch.spawned_by,
                model if model != main.calls[0].line.model else "",
            )
        )
    return Session(name, tuple(built), model=main.calls[0].line.model, start=main.calls[0].arrived)


# --- branches ------------------------------------------------------------------------------------


def _grown(calls: Sequence[Recorded]) -> list[Grown]:
    """The main branch first, parents before their children."""
    by_id: defaultdict[str, list[Recorded]] = defaultdict(list)
    for call in sorted(calls, key=lambda call: call.arrived):
        by_id[call.line.branch].append(call)
    known: dict[str, Grown] = {}
    for name, own in by_id.items():
        branch = Grown(name if known else MAIN, own)
        if known:
            _spawn(branch, known)
        known[name] = branch
    for branch in known.values():
        _join(branch)
    return list(known.values())


def _spawn(branch: Grown, known: Mapping[str, Grown]) -> None:
    """Find the call that spawned the branch. Where the one recorded is missing, the last call of
    the parent (or else of the main branch) that had ended stands for it; nothing is kept of it."""
    first = branch.calls[0]
    parent = known.get(first.line.parent or "")
    branch.parent = parent or next(iter(known.values()))
    ended = [i for i, call in enumerate(branch.parent.calls) if call.ended <= first.arrived]
    branch.spawned_by = ended[-1] if ended else 0
    wanted = first.line.parent_calls - 1
    spawner = branch.parent.calls[branch.spawned_by]
    branch.whole = parent is not None and bool(ended) and spawner.line.number == wanted


def _join(branch: Grown) -> None:
    """The parent's next call waited for the branch if it came after the branch's end, and the
    call before it had ended by then."""
    if branch.parent is None:
        return
    calls = branch.parent.calls
    for index in range(branch.spawned_by + 1, len(calls)):
        if calls[index].arrived >= branch.ended:
            if calls[index - 1].ended <= branch.ended:
                branch.parent.joins[index].append(branch)
            return


# --- calls ---------------------------------------------------------------------------------------


def _calls(branch: Grown, turns: Sequence[Turn] | None) -> Iterator[Call]:
    before = branch.parent.calls[branch.spawned_by] if branch.parent is not None else None
    whole = branch.whole
    for index, call in enumerate(branch.calls):
        line = call.line
        kept, ends = 0, [joined.ended for joined in branch.joins.get(index, [])]
        if before is not None:
            whole = whole if index == 0 else line.number == before.line.number + 1
            context = before.line.prompt + before.line.output
            kept = min(line.kept, context, line.prompt) if whole else 0
            ends.append(before.ended)
        yield Call(
            line.prompt,
            line.output,
            kept,
            tuple(_added(branch.name, index, call, kept)),
            max(0.0, call.arrived - max(ends)) if ends else 0.0,
            _wait(branch, index),
            tuple(joined.name for joined in branch.joins.get(index, [])),
            turns[index] if turns is not None else None,
        )
        before = call


def _wait(branch: Grown, index: int) -> Wait:
    if branch.joins.get(index):
        return Wait.BRANCH
    return Wait.START if index == 0 and branch.parent is None else Wait.TOOL


def _added(branch: str, index: int, call: Recorded, kept: int) -> Iterator[Span]:
    """The prompt after its ``kept`` tokens."""
    line, block, own = call.line, call.block, new_content(branch, index)
    hashes = hashes_of(line)
    known = min(-(-line.kept // block) * block, line.prompt)
    yield from one(own, known - kept)
    for digits in hashes:
        yield Span(stream_id("recorded", digits), 0, block)
    yield from one(own, line.prompt - known - len(hashes) * block, known - kept)


def hashes_of(line: Line) -> list[str]:
    return [line.blocks[i : i + DIGITS] for i in range(0, len(line.blocks), DIGITS)]


def _turns(calls: Sequence[Recorded]) -> list[Turn] | None:
    """The messages of a branch's calls; None where some are missing. How the client itself told a
    reply in its next prompt counts more than the text recorded."""
    turns: list[Turn] = []
    prompt = 0
    for call in calls:
        messages = call.line.messages
        if messages is None or messages.kept > prompt:
            return None
        kept, added = messages.kept, call.messages
        if turns and kept == prompt and added and added[0].role == "assistant":
            turns[-1] = msgspec.structs.replace(turns[-1], reply=added[0])
            turns.append(Turn(kept + 1, added[1:], Message("assistant", messages.reply)))
        else:
            turns.append(Turn(kept, added, Message("assistant", messages.reply)))
        prompt = kept + len(added)
    return turns
