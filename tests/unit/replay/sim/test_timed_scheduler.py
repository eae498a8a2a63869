"""An instance on a virtual clock whose work is timed: all of it, and each at what it costs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from alipes.instance.contract import (
    Finished,
    FromInstance,
    InstanceSettings,
    ModelReport,
    ModelSettings,
    Pool,
    Stop,
    Submit,
    Targets,
    chain_root,
)
from alipes.instance.engine.protocol import (
    BlockCopy,
    CopyEnd,
    HostSlabs,
    Row,
    Sampled,
    Staged,
    SwitchReport,
)
from alipes.instance.loop import EngineLoop
from alipes.instance.scheduler.profile import Trial
from alipes.replay.sim.measure import Kind, Timing, fitted
from alipes.replay.sim.timed_scheduler import TimedScheduler

BLOCK = 4
MS = 1_000_000
REPORTS = (
    ModelReport("a", "a:test", 4_000, 50, weight_bytes=1_000, block_bytes=64, kv_blocks=500),
    ModelReport("b", "b:test", 4_000, 50, weight_bytes=5_000, block_bytes=64, kv_blocks=500),
)
SETTINGS = InstanceSettings(
    "cold-0",
    Pool.COLD,
    tuple(ModelSettings(report.name, "") for report in REPORTS),
    Targets(ttft=2.0, tpot=0.1),
    "",
    block_tokens=BLOCK,
    prefill_chunk=64,
    max_running=4,
    allow_forced_tokens=True,
    switch_share=0.5,
)


class VirtualEngine:
    """Work moves the clock on: a prefill by 2 ms and 0.1 ms a token, a decode iteration by 5 ms and
    1 ms a call, a switch by 3 ms and 1 us a byte, copies to the device by 1 ms and 10 us a byte.
    Copies to the host take 4 ms where they are waited for."""

    kind = "virtual"
    reports = REPORTS
    host = HostSlabs(64, 1_000)

    def __init__(self) -> None:
        self.now = 0
        self.active = ""
        self.tickets: list[int] = []
        self.drained = 0

    def clock(self) -> int:
        return self.now

    def activate(self, model: str) -> SwitchReport:
        self.active = model
        weights = next(report.weight_bytes for report in REPORTS if report.name == model)
        spent = 3 * MS + weights * 1_000
        self.now += spent
        return SwitchReport(spent / 1e9, h2d_bytes=weights)

    def step(self, rows: Sequence[Row]) -> tuple[Sampled, ...]:
        tokens = sum(len(row.tokens) for row in rows)
        decoding = all(len(row.tokens) == 1 for row in rows)
        self.now += 5 * MS + tokens * MS if decoding else 2 * MS + tokens * MS // 10
        drawn = [row for row in rows if row.draw is not None]
        return tuple(Sampled(row.call_id, 7) for row in drawn)

    def stage(self, following: str | None, rows: int) -> Staged:
        return Staged()

    def copy_out(self, ticket: int, copies: Sequence[BlockCopy]) -> None:
        self.tickets.append(ticket)

    def copied(self) -> tuple[CopyEnd, ...]:
        return ()

    def drain(self) -> tuple[CopyEnd, ...]:
        ended, self.tickets = tuple(map(CopyEnd, self.tickets)), []
        self.now += 4 * MS if ended else 0
        self.drained += bool(ended)
        return ended

    def copy_in(self, copies: Sequence[BlockCopy]) -> None:
        self.now += MS + len(copies) * 64 * MS // 100

    def close(self) -> None: ...


def submission(number: int, model: str, prompt: int, output: int) -> Submit:
    tokens = np.full(prompt, number, "<i4").tobytes()
    forced = np.full(output, 7, "<i4").tobytes()
    call_id = number.to_bytes(16, "big")
    return Submit(call_id, model, chain_root(model), tokens, output, forced=forced)


def served(calls: Sequence[Submit]) -> tuple[TimedScheduler, VirtualEngine]:
    engine = VirtualEngine()
    scheduler = TimedScheduler(SETTINGS, REPORTS, engine.host)
    left = len(calls)

    def emit(message: FromInstance) -> None:
        nonlocal left
        left -= isinstance(message, Finished)
        if not left:
            loop.post(Stop())

    loop = EngineLoop(engine, scheduler, emit, engine.clock)
    for call in calls:
        loop.post(call)
    loop.run()
    return scheduler, engine


@pytest.fixture(scope="module")
def busy() -> tuple[TimedScheduler, VirtualEngine]:
    sizes = ((3, 40), (150, 60), (33, 90), (57, 20))
    return served(
        [
            submission(number * 2 + place + 1, model, prompt, output)
            for number, (prompt, output) in enumerate(sizes)
            for place, model in enumerate("ab")
        ]
    )


def of_kind(scheduler: TimedScheduler, kind: Kind, model: str = "") -> list[Timing]:
    return [
        one
        for one in scheduler.recorded()
        if one.kind is kind and (not model or one.model == model)
    ]


def test_nothing_of_a_busy_instance_is_left_out(
    busy: tuple[TimedScheduler, VirtualEngine],
) -> None:
    scheduler, engine = busy
    assert {one.kind for one in scheduler.recorded()} == set(Kind) - {Kind.STAGED}
    # Copies that began long before a switch are waited for too, and are no work of their own.
    waits = engine.drained - len(of_kind(scheduler, Kind.CHECKPOINT))
    told = sum(one.seconds for one in scheduler.recorded()) + waits * 0.004
    assert told == pytest.approx(engine.now / 1e9)


@pytest.mark.parametrize("model", ["a", "b"])
@pytest.mark.parametrize(
    ("kind", "costs"),
    [(Kind.PREFILL, (0.002, 0.0001, 0.0)), (Kind.DECODE, (0.005, 0.001, 0.0))],
)
def test_iterations_cost_what_they_do(
    busy: tuple[TimedScheduler, VirtualEngine], model: str, kind: Kind, costs: tuple[float, ...]
) -> None:
    found = fitted(of_kind(busy[0], kind, model))
    assert found.coefficients == pytest.approx(costs, abs=1e-8)
    assert found.samples >= 4


@pytest.mark.parametrize(
    ("kind", "costs"), [(Kind.SWITCH, (0.003, 1e-6)), (Kind.RESTORE, (0.001, 1e-5))]
)
def test_copies_cost_what_they_do(
    busy: tuple[TimedScheduler, VirtualEngine], kind: Kind, costs: tuple[float, ...]
) -> None:
    """The saving of running calls before a switch is not part of it."""
    timings = of_kind(busy[0], kind)
    assert len({one.features for one in timings}) > 1
    for one in timings:
        # Restored tokens may end within a block, which is copied whole.
        least = float(np.dot(one.features, costs))
        assert least - 1e-9 <= one.seconds <= least + 1e-5 * 64 * SETTINGS.max_running


def test_saving_is_a_checkpoint_of_so_many_bytes(
    busy: tuple[TimedScheduler, VirtualEngine],
) -> None:
    for one in of_kind(busy[0], Kind.CHECKPOINT):
        assert one.seconds == pytest.approx(0.004)
        assert one.features[1] % 64 == 0
        assert one.features[1] > 0


def test_context_of_iterations() -> None:
    """A lone call: its prompt in chunks, then a token after another."""
    scheduler, _ = served([submission(1, "a", 100, 3)])
    prefills = [one.features for one in of_kind(scheduler, Kind.PREFILL)]
    assert prefills == [(1, 64, 64 * 64), (1, 36, 36 * 100)]
    decodes = [one.features for one in of_kind(scheduler, Kind.DECODE)]
    assert decodes == [(1, 1, 101), (1, 1, 102)]


def test_the_calibration_stands_for_what_was_never_needed() -> None:
    scheduler = TimedScheduler(SETTINGS, REPORTS, HostSlabs(64, 10))
    switch = SwitchReport(0.5, h2d_bytes=5_000)
    scheduler.learn(Trial("b", switch, ((8, 0.1),), 9, 0.01, ((4, 0.001), (8, 0.002))))
    assert scheduler.recorded() == (
        Timing("b", Kind.SWITCH, (1.0, 5_000.0), 0.5),
        Timing("b", Kind.RESTORE, (1.0, 64.0), 0.001),
        Timing("b", Kind.RESTORE, (1.0, 128.0), 0.002),
    )
    scheduler.timings.append(Timing("a", Kind.SWITCH, (1.0, 1_000.0), 0.1))
    assert [one.kind for one in scheduler.recorded()] == [Kind.SWITCH, Kind.RESTORE, Kind.RESTORE]
    assert scheduler.recorded()[0].model == "a"


def test_switches_tell_the_rate_of_where_weights_were() -> None:
    scheduler = TimedScheduler(SETTINGS, REPORTS, HostSlabs(64, 10))
    for switch in (
        SwitchReport(0.01, h2d_bytes=5_000),
        SwitchReport(0.005, path="remap", mapped_bytes=5_000),
        SwitchReport(0.007, path="partial", h2d_bytes=1_000, mapped_bytes=4_000),
        SwitchReport(),
    ):
        scheduler.learn(Trial("b", switch, (), 9, 0.01, ()))
    assert scheduler.recorded() == (
        Timing("b", Kind.SWITCH, (1.0, 5_000.0), 0.01),
        Timing("b", Kind.STAGED, (1.0, 5_000.0), 0.005),
    )
    assert scheduler.exchanges
