from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import cast

import numpy as np
import pytest

from alipes.instance import loop
from alipes.instance.contract import (
    PROTOCOL,
    BlocksRemoved,
    BlocksStored,
    Cancel,
    Drain,
    Failed,
    FailureClass,
    Finished,
    FinishReason,
    FromInstance,
    InstanceSettings,
    ModelReport,
    ModelSettings,
    Pool,
    Snapshot,
    Started,
    Stop,
    Submit,
    Targets,
    Tier,
    Tokens,
    Welcome,
)
from alipes.instance.engine.protocol import (
    BlockCopy,
    CopyEnd,
    EngineError,
    HostSlabs,
    Row,
    Sampled,
    Staged,
    SwitchReport,
)
from alipes.instance.loop import EngineLoop
from alipes.instance.scheduler.rounds import RoundScheduler
from alipes.instance.scheduler.work import Linger, Progress

STEP_NS = 10_000_000


class RecordingEngine:
    """Draws the position it draws at. ``before_step`` runs inside every step."""

    kind = "recording"
    host = HostSlabs(50, 400)

    def __init__(self, names: Sequence[str]) -> None:
        self.reports = tuple(ModelReport(n, n, 1000, 1000, 1 << 20, 100, 200) for n in names)
        self.now = 0
        self.did: list[tuple[str, str]] = []
        self.before_step: Callable[[Sequence[Row]], None] = lambda rows: None
        self.refuse: set[tuple[str, str]] = set()
        self.copying: list[int] = []
        self.staged: list[tuple[str, str | None, int]] = []
        self.active = ""

    def clock(self) -> int:
        return self.now

    def _note(self, what: str, name: str) -> None:
        self.did.append((what, name))
        if (what, name) in self.refuse:
            raise EngineError(f"{what} {name} is refused")

    def activate(self, model: str) -> SwitchReport:
        assert not self.copying
        self._note("activate", model)
        self.active = model
        self.now += STEP_NS
        return SwitchReport(0.01, h2d_bytes=1)

    def step(self, rows: Sequence[Row]) -> tuple[Sampled, ...]:
        self.before_step(rows)
        self.now += STEP_NS
        return tuple(Sampled(r.call_id, len(r.draw.history)) for r in rows if r.draw is not None)

    def stage(self, following: str | None, rows: int) -> Staged:
        self.staged.append((self.active, following, rows))
        return Staged()

    def copy_out(self, ticket: int, copies: Sequence[BlockCopy]) -> None:
        self._note("copy out", self.active)
        self.copying.append(ticket)

    def copied(self) -> tuple[CopyEnd, ...]:
        ended, self.copying = tuple(map(CopyEnd, self.copying)), []
        return ended

    def drain(self) -> tuple[CopyEnd, ...]:
        self.did.append(("drain", self.active))
        return self.copied()

    def copy_in(self, copies: Sequence[BlockCopy]) -> None:
        self._note("copy in", self.active)

    def close(self) -> None:
        self.did.append(("close", ""))


class Bench:
    """A loop on this thread that stops when all its calls have ended."""

    def __init__(self, *names: str) -> None:
        settings = InstanceSettings(
            name="i",
            pool=Pool.COLD if len(names) > 1 else Pool.HOT,
            models=tuple(ModelSettings(name, "") for name in names),
            targets=Targets(),
            endpoint="",
            block_tokens=4,
            prefill_chunk=8,
        )
        self.engine = RecordingEngine(names)
        self.scheduler = RoundScheduler(settings, self.engine.reports, self.engine.host)
        self.told: list[FromInstance] = []
        self.open: set[bytes] = set()
        self.has_looked = threading.Event()
        self.loop = EngineLoop(self.engine, self.scheduler, self._emit, self.engine.clock)

    def _emit(self, message: FromInstance) -> None:
        self.told.append(message)
        if isinstance(message, Finished | Failed):
            self.open.discard(message.call_id)
        if isinstance(message, Snapshot):
            self.has_looked.set()
            if not self.open:
                self.loop.post(Stop())

    def submit(self, number: int, model: str, prompt: int = 6, max_tokens: int = 5) -> bytes:
        call_id = number.to_bytes(16, "big")
        ids = np.arange(prompt, dtype="<i4").tobytes()
        self.open.add(call_id)
        self.loop.post(Submit(call_id, model, bytes(16), ids, max_tokens))
        return call_id

    def of(self, call_id: bytes) -> list[FromInstance]:
        """What was told of one call, its tokens cut out of their messages."""
        told: list[FromInstance] = []
        for message in self.told:
            if isinstance(message, Tokens):
                mine = tuple(drawn for drawn in message.drawn if drawn.call_id == call_id)
                told += [Tokens(message.model, mine)] if mine else []
            elif getattr(message, "call_id", None) == call_id:
                told.append(message)
        return told

    def tokens(self, call_id: bytes) -> list[int]:
        return [d.token for m in self.of(call_id) if isinstance(m, Tokens) for d in m.drawn]


def test_a_call_is_told_in_order() -> None:
    bench = Bench("a")
    call = bench.submit(1, "a")
    bench.loop.run()
    told = bench.of(call)
    assert told[0] == Started(call, 0, pytest.approx(0.01), phase="P")
    assert bench.tokens(call) == [6, 7, 8, 9, 10]
    last = told[-1]
    assert isinstance(last, Finished)
    assert (last.reason, last.stop_id) == (FinishReason.LENGTH, None)
    assert (last.prompt_tokens, last.completion_tokens, last.cached_tokens) == (6, 5, 0)
    assert last.prefill == pytest.approx(0.01)
    assert last.decode == pytest.approx(0.04)
    stored = {
        tier: [
            i for i, m in enumerate(bench.told) if isinstance(m, BlocksStored) and m.tier is tier
        ]
        for tier in Tier
    }
    assert max(stored[Tier.DEVICE]) < bench.told.index(last) < min(stored[Tier.HOST])


def test_every_iteration_is_one_message() -> None:
    bench = Bench("a")
    first, second = bench.submit(1, "a", prompt=4), bench.submit(2, "a", prompt=4)
    bench.loop.run()
    batches = [m.drawn for m in bench.told if isinstance(m, Tokens)]
    assert [{d.call_id for d in drawn} for drawn in batches] == [{first, second}] * 5


def test_the_engine_is_told_what_it_may_stage_and_where() -> None:
    bench = Bench("a", "b")
    bench.submit(1, "a", prompt=10, max_tokens=30)
    bench.submit(2, "b", prompt=3, max_tokens=30)
    bench.loop.run()
    first = [told for told in bench.engine.staged if told[0] == "a"]
    # A chunk of eight tokens, then all ten and those drawn so far, in blocks of four.
    assert first[0] == ("a", "b", 2)
    assert [rows for *_, rows in first] == sorted(rows for *_, rows in first)
    assert {following for _, following, _ in first} == {"b"}
    assert max(rows for *_, rows in first) == 10
    assert {told[1] for told in bench.engine.staged if told[0] == "b"} <= {"a", None}


def test_snapshots_are_few_and_the_last_shows_idleness() -> None:
    bench = Bench("a")
    bench.submit(1, "a", max_tokens=200)
    bench.loop.run()
    shots = [m for m in bench.told if isinstance(m, Snapshot)]
    assert [s.version for s in shots] == list(range(1, len(shots) + 1))
    # 201 steps of 10 ms are told of at most every 250 ms.
    assert 5 <= len(shots) <= 12
    assert shots[-1].counters.live_calls == 0
    assert shots[-1].counters.finished == 1
    assert shots[-1].last_call == (1).to_bytes(16, "big")


def test_a_message_interrupts_a_run() -> None:
    bench = Bench("a")
    first = bench.submit(1, "a", max_tokens=50)
    seen: list[int] = []

    def arrive(rows: Sequence[Row]) -> None:
        seen.append(len(rows))
        if len(seen) == 10:
            bench.submit(2, "a", max_tokens=3)

    bench.engine.before_step = arrive
    bench.loop.run()
    second = (2).to_bytes(16, "big")
    order = [m.call_id for m in bench.told if isinstance(m, Finished)]
    assert order == [second, first]
    assert bench.tokens(first) == list(range(6, 56))


def test_a_cancelled_call_says_nothing_more() -> None:
    bench = Bench("a")
    bench.submit(1, "a", max_tokens=20)
    cancelled = bench.submit(2, "a", max_tokens=500)
    steps: list[int] = []

    def cancel(rows: Sequence[Row]) -> None:
        steps.append(len(rows))
        if len(steps) == 5:
            bench.loop.post(Cancel(cancelled))
            bench.open.discard(cancelled)

    bench.engine.before_step = cancel
    bench.loop.run()
    assert not any(isinstance(m, Finished | Failed) for m in bench.of(cancelled))
    assert len(bench.tokens(cancelled)) <= 5
    last = [m for m in bench.told if isinstance(m, Snapshot)][-1]
    assert last.counters.cancelled == 1
    assert last.occupancy.held == 0


def test_an_interrupted_call_goes_on_after_the_switch() -> None:
    bench = Bench("a", "b")
    first = bench.submit(1, "a", max_tokens=300)
    second = bench.submit(2, "b", max_tokens=300)
    bench.loop.run()
    assert bench.tokens(first) == bench.tokens(second) == list(range(6, 306))
    for name in "ab":
        assert ("copy in", name) in bench.engine.did
        assert bench.engine.did.count(("copy out", name)) > bench.engine.did.count(
            ("copy in", name)
        )


@pytest.mark.parametrize("what", ["copy out", "copy in"])
def test_a_state_that_cannot_be_copied_is_recomputed(what: str) -> None:
    bench = Bench("a", "b")
    bench.engine.refuse.add((what, "a"))
    first = bench.submit(1, "a", max_tokens=300)
    bench.submit(2, "b", max_tokens=300)
    bench.loop.run()
    assert (what, "a") in bench.engine.did
    assert bench.tokens(first) == list(range(6, 306))
    assert sum(isinstance(m, Started) for m in bench.of(first)) == 1
    last = [m for m in bench.told if isinstance(m, Snapshot)][-1]
    assert last.counters.preempted >= 1


def test_a_refused_step_fails_the_rows_at_fault_alone() -> None:
    bench = Bench("a")
    good, bad = bench.submit(1, "a"), bench.submit(2, "a")

    def refuse(rows: Sequence[Row]) -> None:
        for row in rows:
            if row.call_id == bad and row.start > 6:
                raise EngineError("not a number", (bad,))

    bench.engine.before_step = refuse
    bench.loop.run()
    assert bench.tokens(good) == [6, 7, 8, 9, 10]
    assert bench.of(bad)[-1] == Failed(bad, FailureClass.INTERNAL, "not a number")


def test_a_model_that_cannot_be_opened_fails_its_calls_alone() -> None:
    bench = Bench("a", "b")
    bench.engine.refuse.add(("activate", "b"))
    good, bad = bench.submit(1, "a", max_tokens=200), bench.submit(2, "b")
    bench.loop.run()
    assert bench.of(bad) == [Failed(bad, FailureClass.INTERNAL, "activate b is refused")]
    assert bench.tokens(good) == list(range(6, 206))


def test_a_defect_is_raised_and_other_instances_may_have_its_calls() -> None:
    bench = Bench("a", "b")
    calls = [bench.submit(1, "a"), bench.submit(2, "b")]

    def break_down(rows: Sequence[Row]) -> None:
        calls.append(bench.submit(3, "a"))
        raise ZeroDivisionError("a defect")

    bench.engine.before_step = break_down
    with pytest.raises(ZeroDivisionError):
        bench.loop.run()
    failed = [m for m in bench.told if isinstance(m, Failed)]
    assert sorted(m.call_id for m in failed) == calls
    assert {m.failure for m in failed} == {FailureClass.BROKEN}
    assert "a defect" in failed[0].reason


def test_stop_fails_what_is_running_and_what_has_just_come() -> None:
    bench = Bench("a")
    calls = [bench.submit(1, "a", max_tokens=500)]

    def stop(rows: Sequence[Row]) -> None:
        bench.loop.post(Stop())
        calls.append(bench.submit(2, "a"))

    bench.engine.before_step = stop
    bench.loop.run()
    failed = [m for m in bench.told if isinstance(m, Failed)]
    assert {m.call_id for m in failed} == set(calls)
    assert {m.failure for m in failed} == {FailureClass.GONE}


def test_draining_finishes_what_is_here() -> None:
    bench = Bench("a")
    first = bench.submit(1, "a")
    bench.loop.post(Drain())
    late = bench.submit(2, "a")
    bench.loop.run()
    assert isinstance(bench.of(first)[-1], Finished)
    last = bench.of(late)[-1]
    assert isinstance(last, Failed)
    assert last.failure is FailureClass.GONE
    assert [m for m in bench.told if isinstance(m, Snapshot)][-1].draining


def test_an_idle_loop_is_woken_from_another_thread() -> None:
    bench = Bench("a")
    thread = threading.Thread(target=bench.loop.run)
    bench.open.add((1).to_bytes(16, "big"))
    thread.start()
    assert bench.has_looked.wait(timeout=20)
    call = bench.submit(1, "a")
    thread.join(timeout=20)
    assert not thread.is_alive()
    assert bench.tokens(call) == [6, 7, 8, 9, 10]


def test_an_idle_loop_tells_its_state_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "IDLE_SNAPSHOT_SECONDS", 0.01)
    bench = Bench("a")
    bench.open.add(b"never comes")
    thread = threading.Thread(target=bench.loop.run)
    thread.start()
    deadline = time.monotonic() + 20
    while len(bench.told) < 4 and time.monotonic() < deadline:
        time.sleep(0.005)
    bench.loop.post(Stop())
    thread.join(timeout=20)
    states = [message for message in bench.told if isinstance(message, Snapshot)]
    versions = [state.version for state in states]
    assert len(versions) >= 4
    assert versions == sorted(set(versions))


def test_a_new_link_is_told_all_blocks_again() -> None:
    bench = Bench("a")
    bench.submit(1, "a", prompt=8, max_tokens=6)
    bench.loop.run()
    stored = [m for m in bench.told if isinstance(m, BlocksStored)]
    bench.told.clear()
    bench.loop._stopped = False
    bench.loop.post(Welcome(PROTOCOL))
    bench.loop.run()
    again = [m for m in bench.told if isinstance(m, BlocksStored)]
    assert {m.tier for m in again} == set(Tier)
    for tier in Tier:
        told = [key for m in stored if m.tier is tier for key in m.keys]
        assert [key for m in again if m.tier is tier for key in m.keys] == told
        assert len(told) == 3


def test_copies_are_drained_and_told_before_a_switch() -> None:
    bench = Bench("a", "b")
    bench.engine.copied = lambda: ()
    ended: list[CopyEnd] = []

    def drain() -> tuple[CopyEnd, ...]:
        tickets, bench.engine.copying = tuple(map(CopyEnd, bench.engine.copying)), []
        ended.extend(tickets)
        return tickets

    bench.engine.drain = drain
    bench.submit(1, "a", prompt=8)
    bench.submit(2, "b", prompt=8)
    bench.loop.run()
    kinds = [
        (type(m), m.model)
        for m in bench.told
        if isinstance(m, BlocksStored | BlocksRemoved)
        and (isinstance(m, BlocksRemoved) or m.tier is Tier.HOST)
    ]
    # What the host has of a is told before the device blocks of a go.
    assert kinds == [(BlocksStored, "a"), (BlocksRemoved, "a")]
    assert ended == [CopyEnd(1)]


class Waiting:
    """A scheduler that has nothing to do but wait ``seconds``, and then nothing at all."""

    idle = True
    copying = False

    def __init__(self, bench: Bench, seconds: float) -> None:
        self._bench = bench
        self._work = [Linger(bench.engine.now + int(seconds * 1e9))]

    device_rows = 0

    def upcoming(self) -> None: ...

    def staged(self, staged: Staged, now: int) -> Progress:
        return Progress()

    def next(self, now: int) -> Linger | None:
        if self._work:
            return self._work.pop()
        self._bench.loop.post(Stop())
        return None

    def snapshot(self, now: int) -> Snapshot:
        return Bench("a").scheduler.snapshot(now)

    def drain(self) -> None: ...

    def abandon(self, failure: FailureClass, reason: str) -> tuple[Failed, ...]:
        return ()


def waited(seconds: float, message_after: float | None = None) -> float:
    bench = Bench("a")
    bench.open.add(b"never comes")
    bench.loop._scheduler = cast(RoundScheduler, Waiting(bench, seconds))
    if message_after is not None:
        threading.Timer(message_after, lambda: bench.loop.post(Drain())).start()
    begin = time.monotonic()
    bench.loop.run()
    return time.monotonic() - begin


def test_a_slot_that_waits_wakes_at_its_time_or_with_a_message() -> None:
    assert waited(0.05) >= 0.05
    assert waited(0.0) < 30.0
    assert waited(60.0, message_after=0.02) < 30.0
