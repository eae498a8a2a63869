"""Sessions with sub-agents replayed through a real gateway, recorded there, and read back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer
from typer.testing import CliRunner, Result

from alipes.cli.replay import replay
from alipes.replay.conversation import conversation_of
from alipes.replay.runs import read_run
from alipes.replay.shorten import shorten_conversation
from alipes.replay.traces.form import MAIN, Branch, Call, Session, Span, Trace, Wait
from alipes.replay.traces.load import load, save
from alipes.replay.traces.spans import new_content

FILE = """
models:
  alpha: {{source: {{random: {{family: llama, size: tiny}}}}}}
instances:
  hot-0:
    {{pool: hot, models: [alpha], engine: fake, device_bytes: 256MiB, fake: {{step: 0.001}}}}
gateway:
  port: {port}
  endpoint: {endpoint}
  allow_forced_tokens: true
  record: {{file: calls.jsonl, text: true}}
"""
REPLY = 70
SHIPPED = Path(__file__).parents[3] / "replay" / "data" / "marshmallow-1867-xml.traj"
SCRIPT = """
import signal, typer
from alipes.cli.replay import replay
signal.signal(signal.SIGINT, signal.default_int_handler)
typer.run(replay)
"""


@pytest.fixture(scope="module")
def recording(
    tmp_path_factory: pytest.TempPathFactory,
    tiny_folders: dict[str, Path],
    start: Callable[..., Any],
    stop: Callable[..., None],
) -> Iterator[Any]:
    """A stack that records and may force completions."""
    stack = start(tmp_path_factory.mktemp("live", numbered=True), FILE)
    try:
        yield stack
        stop(stack)
    finally:
        stack.discard()


def grown(
    branch: str, calls: int, first: int, inherited: int = 0, shared: int = 7
) -> tuple[Call, ...]:
    """A branch that begins with ``first`` tokens of shared content (or what it inherits), and grows
    by its replies and some tool output; its last call but one drops the end of its context."""
    made, context = [], inherited
    for index in range(calls):
        kept = context if index != calls - 2 or not index else context - 50
        span = Span(shared, 0, first) if not context else Span(new_content(branch, index), 0, 45)
        prompt = kept + span.length
        wait = Wait.TOOL if index or inherited else Wait.START
        gap = 0.02 if index or inherited else 0.0
        made.append(Call(prompt, REPLY, kept, (span,), gap, wait))
        context = prompt + REPLY
    return tuple(made)


def session(number: int) -> Session:
    """Two sub-agents begin after the second call, one going on from it; the third waits for
    them. One of them has a sub-agent of its own."""
    name = f"agent-{number}"
    main = list(grown(MAIN, 6, 300))
    main[2] = msgspec.structs.replace(main[2], wait=Wait.BRANCH, joins=("a", "b"))
    context = main[1].prompt + main[1].output
    a = Branch("a", grown("a", 3, 200, context), MAIN, 1)
    b = Branch("b", grown("b", 3, 130, shared=8), MAIN, 1)
    inner = a.calls[0].prompt + a.calls[0].output
    c = Branch("c", grown("c", 2, 200, inner), "a", 0)
    return Session(name, (Branch(MAIN, tuple(main)), a, b, c), model="alpha", start=0.3 * number)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "agents.jsonl"
    save(path, Trace("made", tuple(session(number) for number in range(3))))
    return path


def run(stack: Any, trace: Path, out: Path, *more: str) -> Result:
    app = typer.Typer()
    app.command()(replay)
    arguments = [str(trace), "--base-url", stack.url, "--vocab", "20000", "--out", str(out)]
    return CliRunner().invoke(app, [*arguments, *more])


def by_place(out: Path) -> dict[tuple[str, str, int], Any]:
    run = read_run(out)
    return {(call.session, call.branch, call.index): call for call in run.calls}


def test_forced_completions_keep_the_prefix_of_every_continuation(
    recording: Any, trace: Path, tmp_path: Path
) -> None:
    stack = recording
    # Other token ids, so that neither finds what the other left.
    for name, options in (("free", ("--vocab", "19000")), ("forced", ("--forced",))):
        result = run(stack, trace, tmp_path / name, *options)
        assert result.exit_code == 0, result.output
    recorded = {one.id: one for one in load([trace]).sessions}
    free, forced = by_place(tmp_path / "free"), by_place(tmp_path / "forced")
    assert len(forced) == len(free) == 3 * 14
    continuations = 0
    for (name, branch, index), call in forced.items():
        own = next(b for b in recorded[name.split(".")[0]].branches if b.name == branch)
        planned = own.calls[index]
        assert call.prompt_tokens == planned.prompt
        assert call.completion_tokens == planned.output
        if planned.kept:
            continuations += 1
            # The token drawn last is no part of what the instance has computed.
            full = min(planned.kept - 1, planned.prompt - 1) // 64 * 64
            assert call.cached_tokens is not None
            assert call.cached_tokens >= full
            assert call.cached_tokens < planned.kept + 64
    assert continuations == 3 * 12
    # Unforced, the reply in the next prompt is another one than was drawn, and longer than a block.
    returning = [place for place in forced if place[2]]
    assert all(forced[place].cached_tokens >= free[place].cached_tokens for place in returning)
    assert sum(forced[place].cached_tokens > free[place].cached_tokens for place in returning) >= 18


def test_a_replay_that_is_recorded_reads_back_as_what_was_replayed(
    recording: Any, trace: Path, tmp_path: Path
) -> None:
    part = recorded(recording, trace, tmp_path, "--recorded", "--forced")
    assert b"agent-" not in part.read_bytes()
    original, found = load([trace]).sessions, load([part]).sessions
    assert len(found) == len(original)
    for one, other in zip(original, found, strict=True):
        check_same(one, other)
    # What sessions share is known by its hashes.
    first = [one.branches[0].calls[0].added for one in found]
    assert first[0][:4] == first[1][:4] == first[2][:4]
    one, two, three = (set(streams_of(session)) for session in found)
    # Four full blocks that main branches begin with, two of another sub-agent.
    assert len(one & two) == len(two & three) == 6
    assert one & two == two & three > {span.stream for span in first[0][:4]}


def test_text_is_recorded_as_it_was_sent(recording: Any, tmp_path: Path) -> None:
    part = recorded(recording, SHIPPED, tmp_path, "--models", "alpha", "--forced")
    (original,), (found,) = load([SHIPPED]).sessions, load([part]).sessions
    (branch,) = found.branches
    ((*calls, last),) = conversation_of(found)
    ((*expected, final),) = conversation_of(original)
    share = json.loads((tmp_path / "out" / "summary.json").read_text())["sessions"][0]["shortened"]
    ((*shortened, _),) = shorten_conversation(((*expected, final),), share)
    assert calls == shortened
    # The last reply is the model's own text: no prompt tells it.
    assert last.prompt == shorten_conversation(((final,),), share)[0][0].prompt
    assert last.reply.content
    for before, after in pairwise(branch.calls):
        assert after.kept == before.prompt + before.output


def recorded(stack: Any, trace: Path, folder: Path, *options: str) -> Path:
    """A file with what the gateway recorded of a replay."""
    file = stack.log.parent / "calls.jsonl"
    before = file.stat().st_size
    result = run(stack, trace, folder / "out", *options)
    assert result.exit_code == 0, result.output
    stack.until_idle()
    # The recorder is a thread behind.
    expected = len(read_run(folder / "out").calls)
    deadline = time.monotonic() + 10
    while file.read_bytes()[before:].count(b'"kind":"call"') < expected:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    data = file.read_bytes()
    header = data[: data.index(b"\n") + 1]
    part = folder / "recorded.jsonl"
    part.write_bytes(header + data[max(before, len(header)) :])
    return part


def check_same(one: Session, other: Session) -> None:
    """Branches come in the order of their beginning, with names of the recording's own."""
    names = {MAIN: MAIN}
    shapes = {shape_of(branch): branch for branch in other.branches}
    assert len(shapes) == len(other.branches) == len(one.branches)
    for branch in one.branches:
        found = shapes[shape_of(branch)]
        names[branch.name] = found.name
    for branch in one.branches:
        found = shapes[shape_of(branch)]
        assert (names.get(branch.parent, ""), branch.spawned_by) == (
            found.parent,
            found.spawned_by,
        )
        for call, again in zip(branch.calls, found.calls, strict=True):
            assert set(again.joins) >= {names[name] for name in call.joins}
            assert again.kept == call.kept
            assert call.gap - 0.01 <= again.gap <= call.gap + 2


def streams_of(session: Session) -> Iterator[int]:
    for branch in session.branches:
        for call in branch.calls:
            yield from (span.stream for span in call.added if span.stream >= 0)


def shape_of(branch: Branch) -> tuple[tuple[int, int], ...]:
    return tuple((call.prompt, call.output) for call in branch.calls)


def test_an_interrupted_replay_is_resumed_to_the_whole_result(
    recording: Any, trace: Path, tmp_path: Path
) -> None:
    stack, out = recording, tmp_path / "out"
    options = ["--concurrency", "1", "--forced", "--vocab", "20000", "--out", str(out)]
    arguments = [str(trace), "--base-url", stack.url, *options]
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"COLUMNS": "120"},
    )
    calls = out / "calls.jsonl"
    try:
        deadline = time.monotonic() + 60
        while not calls.exists() or calls.read_bytes().count(b"\n") < 18:
            assert time.monotonic() < deadline
            assert process.poll() is None, process.communicate()
            time.sleep(0.002)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, errors
    partial = read_run(out)
    assert not partial.info.complete
    assert 18 <= len(partial.calls) < 42
    done = {call.session: call for call in partial.calls if call.index == 0 and call.branch == MAIN}
    other = run(stack, trace, out, "--concurrency", "2", "--forced", "--resume")
    assert other.exit_code == 2
    assert "concurrency: 1, now 2" in other.stderr
    assert read_run(out) == partial
    result = run(stack, trace, out, *options[:3], "--resume")
    assert result.exit_code == 0, result.output
    whole = read_run(out)
    assert whole.info.complete
    assert len(by_place(out)) == len(whole.calls) == 42
    again = {call.session: call for call in whole.calls if call.index == 0 and call.branch == MAIN}
    assert again["agent-0.alpha.0"] == done["agent-0.alpha.0"]
    last = max(call.finished for call in whole.calls if call.session == "agent-0.alpha.0")
    assert all(call.intended >= last for call in whole.calls if call.session != "agent-0.alpha.0")
    summary = json.loads((out / "summary.json").read_text())
    assert summary["complete"]
    assert all(row["calls"] == 14 and row["sct"] > 0 for row in summary["sessions"])
