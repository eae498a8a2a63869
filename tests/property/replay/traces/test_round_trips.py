"""Random workloads written and read back, against what their prompts hold token by token."""

from __future__ import annotations

import tempfile
from itertools import takewhile
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alipes.replay.traces.agentic import Row
from alipes.replay.traces.check import check
from alipes.replay.traces.form import (
    Branch,
    Call,
    Session,
    Span,
    Trace,
    Turn,
    Wait,
    reply_stream,
)
from alipes.replay.traces.lines import bytes_of
from alipes.replay.traces.load import load, save
from alipes.replay.traces.model import Message, ToolCall, TraceError

Token = tuple[object, ...]
SIZE = 4
TEXTS = st.text(max_size=5)
MESSAGES = st.builds(
    Message,
    st.sampled_from(["system", "user", "assistant", "tool"]),
    TEXTS,
    st.lists(st.builds(ToolCall, TEXTS, TEXTS, TEXTS), max_size=1).map(tuple),
    TEXTS,
)
SPANS = st.builds(Span, st.integers(-3, 3), st.integers(0, 6), st.integers(1, 9))
GAPS = st.integers(0, 10_000).map(lambda ms: ms / 1000)


@st.composite
def sessions(draw: st.DrawFn, name: str) -> Session:
    branches: list[Branch] = []
    text = draw(st.booleans())
    for number in range(draw(st.integers(1, 4))):
        parent = draw(st.sampled_from(branches)) if branches else None
        spawned_by = draw(st.integers(0, len(parent.calls) - 1)) if parent else -1
        before = parent.calls[spawned_by] if parent else None
        calls: list[Call] = []
        for index in range(draw(st.integers(1, 4))):
            before = calls[-1] if calls else before
            wait = draw(st.sampled_from([Wait.TOOL, Wait.USER])) if index or parent else Wait.START
            calls.append(draw(call(before, wait, text)))
        own = draw(st.sampled_from(["", "small"])) if parent else ""
        name_ = f"b/{number}" if number else "main"
        branches.append(Branch(name_, tuple(calls), parent.name if parent else "", spawned_by, own))
    joined = tuple(draw(with_joins(branch, branches)) for branch in branches)
    start = draw(st.none() | GAPS)
    return Session(name, joined, draw(st.sampled_from(["", "large"])), start=start)


@st.composite
def call(draw: st.DrawFn, before: Call | None, wait: Wait, text: bool) -> Call:
    context = before.prompt + before.output if before else 0
    kept = context if draw(st.booleans()) else draw(st.integers(0, context))
    added = tuple(draw(st.lists(SPANS, min_size=0 if kept else 1, max_size=3)))
    prompt = kept + sum(span.length for span in added)
    turn = None
    if text:
        known = len(before.turn.added) + before.turn.kept + 1 if before and before.turn else 0
        new = tuple(draw(st.lists(MESSAGES, max_size=2)))
        turn = Turn(draw(st.integers(0, known)), new, draw(MESSAGES))
    return Call(prompt, draw(st.integers(1, 9)), kept, added, draw(GAPS), wait, turn=turn)


@st.composite
def with_joins(draw: st.DrawFn, branch: Branch, branches: list[Branch]) -> Branch:
    """Calls after the first may wait for sub-agents that their branch spawned before."""
    calls = []
    for index, one in enumerate(branch.calls):
        ready = [b.name for b in branches if b.parent == branch.name and b.spawned_by < index]
        joins = draw(st.lists(st.sampled_from(ready), unique=True)) if ready else []
        wait = Wait.BRANCH if joins else one.wait
        calls.append(msgspec.structs.replace(one, joins=tuple(joins), wait=wait))
    return msgspec.structs.replace(branch, calls=tuple(calls))


TRACES = st.integers(1, 3).flatmap(
    lambda count: st.builds(
        Trace, TEXTS, st.tuples(*(sessions(f"s/{number}") for number in range(count)))
    )
)


def prompts(trace: Trace) -> dict[tuple[str, str, int], list[Token]]:
    """The tokens of every prompt, one by one."""
    found: dict[tuple[str, str, int], list[Token]] = {}
    for session in trace.sessions:
        contexts: dict[tuple[str, int], list[Token]] = {}
        for branch in session.branches:
            context = contexts.get((branch.parent, branch.spawned_by), [])
            for index, one in enumerate(branch.calls):
                reply = Span(reply_stream(branch.name, index), 0, one.output)
                prompt = context[: one.kept] + tokens(session.id, one.added)
                found[session.id, branch.name, index] = prompt
                context = prompt + tokens(session.id, (reply,))
                contexts[branch.name, index] = context
    return found


def tokens(session: str, spans: tuple[Span, ...]) -> list[Token]:
    return [
        ("" if span.stream >= 0 else session, span.stream, position)
        for span in spans
        for position in range(span.start, span.start + span.length)
    ]


def shared_blocks(one: list[Token], other: list[Token]) -> int:
    """How many full blocks two prompts have in common at their beginnings."""
    pairs = zip(one, other, strict=False)
    return len(list(takewhile(lambda pair: pair[0] == pair[1], pairs))) // SIZE


@settings(max_examples=50, deadline=None)
@given(TRACES, st.sampled_from(["t.jsonl", "t.jsonl.gz"]))
def test_own_format_gives_back_what_it_took(trace: Trace, name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        save(path, trace)
        first = path.read_bytes()
        assert load([path]) == trace
        save(path, load([path]))
        assert path.read_bytes() == first
        assert [file.name for file in Path(folder).iterdir()] == [name]


@settings(max_examples=50, deadline=None)
@given(TRACES)
def test_agentic_hash_ids_are_equal_where_content_is(trace: Trace) -> None:
    rows = {tuple(row.request_id.rsplit("/", 2)): row for row in agentic_rows(trace)}
    truth = {
        (session, str(number), str(index)): prompt
        for (session, name, index), prompt in prompts(trace).items()
        for number in [0 if name == "main" else int(name.removeprefix("b/"))]
    }
    assert set(rows) == set(truth)
    for place, prompt in truth.items():
        assert rows[place].input_length == len(prompt)
        assert len(rows[place].hash_ids) == -(-len(prompt) // SIZE)
        for other, text in truth.items():
            full = min(len(prompt), len(text)) // SIZE
            pairs = zip(rows[place].hash_ids[:full], rows[other].hash_ids[:full], strict=True)
            same = len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
            assert same == shared_blocks(prompt, text)


def agentic_rows(trace: Trace) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.jsonl"
        save(path, trace, "agentic-mooncake", SIZE)
        return [msgspec.json.decode(line, type=Row) for line in path.read_bytes().splitlines()]


@settings(max_examples=50, deadline=None)
@given(TRACES)
def test_agentic_traces_keep_lengths_order_waits_and_prefixes(trace: Trace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.jsonl"
        save(path, trace, "agentic-mooncake", SIZE)
        back = load([path], block=SIZE)
    assert [session.id for session in back.sessions] == [session.id for session in trace.sessions]
    for session, again in zip(trace.sessions, back.sessions, strict=True):
        assert again.model == session.model
        first, first_again = session.branches[0].calls[0], again.branches[0].calls[0]
        if session.start is not None:
            # An arrival and the gap after it are one number there.
            due = (again.start or 0.0) + first_again.gap
            assert due == pytest.approx(session.start + first.gap)
        by_name = {branch.name: branch for branch in again.branches}
        assert set(by_name) == {branch.name for branch in session.branches}
        for branch in session.branches:
            other = by_name[branch.name]
            assert (branch.parent, branch.spawned_by) == (other.parent, other.spawned_by)
            assert (other.model or again.model) == (branch.model or session.model)
            for one, two in zip(branch.calls, other.calls, strict=True):
                assert (one.prompt, one.output) == (two.prompt, two.output)
                assert (one.wait, set(one.joins)) == (two.wait, set(two.joins))
                if one is not first:
                    assert two.gap == pytest.approx(one.gap)
    check_prefixes(trace, back)


def check_prefixes(trace: Trace, back: Trace) -> None:
    """A call keeps as many blocks of its context as it did, and no two prompts have more in
    common than they had."""
    truth, again = prompts(trace), prompts(back)
    for session in trace.sessions:
        for branch in session.branches:
            for index in range(1, len(branch.calls)):
                place, before = (
                    (session.id, branch.name, index),
                    (session.id, branch.name, index - 1),
                )
                known = shared_blocks(truth[before], truth[place])
                assert shared_blocks(again[before], again[place]) == known
    for place, prompt in truth.items():
        for other, text in truth.items():
            assert shared_blocks(again[place], again[other]) <= shared_blocks(prompt, text)


@settings(max_examples=50, deadline=None)
@given(TRACES, st.data())
def test_a_damaged_file_is_refused_or_means_the_same_kind_of_thing(
    trace: Trace, data: st.DataObject
) -> None:
    """Cut, repeated or changed bytes: an error that names the file, never part of a trace."""
    format = data.draw(st.sampled_from(["alipes", "agentic-mooncake"]))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.jsonl"
        save(path, trace, format, SIZE)
        whole = bytes_of(path)
        at = data.draw(st.integers(0, len(whole) - 1))
        kind = data.draw(st.sampled_from(["cut", "drop", "byte"]))
        damaged = {
            "cut": whole[:at],
            "drop": whole[:at] + whole[at + 1 :],
            "byte": whole[:at] + data.draw(st.binary(min_size=1, max_size=1)) + whole[at + 1 :],
        }[kind]
        path.write_bytes(damaged)
        read, complaint = outcome(path, format)
    if read is None:
        assert complaint.startswith(f"{path}: ")
        assert "\n" not in complaint
    else:
        check(read, path)
        assert format != "alipes" or len(read.sessions) == len(trace.sessions)


def outcome(path: Path, format: str) -> tuple[Trace | None, str]:
    try:
        return load([path], format, block=SIZE), ""
    except TraceError as error:
        return None, str(error)
