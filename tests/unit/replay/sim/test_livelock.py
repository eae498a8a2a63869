"""Overload never stops decode: not by restores of interrupted calls, nor by prompts that wait.

Recorded Claude Code sessions come to one instance that time-shares three models, more of them at
once than it can serve. What is watched is every slot as it closes: what it owed to calls between
two tokens, and how long they waited for it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from alipes.instance.scheduler.active import ActiveModel
from alipes.instance.scheduler.model import ModelState
from alipes.instance.scheduler.rounds import RoundScheduler
from alipes.instance.scheduler.sequence import CallState
from alipes.instance.scheduler.serving import Serving
from alipes.instance.scheduler.slot import Slot
from alipes.instance.scheduler.work import Restore
from alipes.replay.sim.build import Fleet, build
from alipes.replay.sim.cluster import Cluster
from alipes.replay.sim.hardware import load_hardware
from alipes.replay.sim.scenario import Load, load_scenario
from alipes.replay.sim.simulate import workload
from alipes.replay.traces.form import Branch, Call, Session

REPOSITORY = Path(__file__).parents[4]
SCENARIO = load_scenario(REPOSITORY / "scenarios" / "claude-code-overload.yaml")
HARDWARE = load_hardware(SCENARIO.hardware)
TRACE = REPOSITORY / "scenarios" / SCENARIO.trace.file
WINDOW = 5
"""Rounds."""

pytestmark = pytest.mark.skipif(
    not TRACE.is_file(), reason="the shared traces are not beside the checkout"
)


@dataclass(frozen=True)
class Closed:
    """A slot as it closed: decode iterations that it made and was to make at least, and which
    models had calls between two tokens then."""

    model: str
    round: int
    paid: int
    protected: int
    decoding: bool
    waiting: frozenset[str]


@dataclass
class Watch:
    slots: list[Closed] = field(default_factory=list)
    resuming: float = 0.0


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    """Every slot that closes, and seconds spent on bringing saved calls back."""
    seen = Watch()
    close, restored = Serving._close, RoundScheduler.restored

    def closing(self: Serving, slot: Slot, active: ActiveModel) -> None:
        models = self._calls.models.values()
        seen.slots.append(
            Closed(
                slot.model,
                self._tally.rounds,
                slot.paid,
                slot.share.protected,
                bool(active.state.residents(CallState.DECODE)),
                frozenset(state.name for state in models if _could_decode(state)),
            )
        )
        close(self, slot, active)

    def restoring(
        self: RoundScheduler, work: Restore, seconds: float, now: int, failed: bool = False
    ) -> Any:
        assert self._serving is not None
        if self._serving.active._restoring.resumes:
            seen.resuming += seconds
        return restored(self, work, seconds, now, failed)

    monkeypatch.setattr(Serving, "_close", closing)
    monkeypatch.setattr(RoundScheduler, "restored", restoring)
    return seen


def _could_decode(state: ModelState) -> bool:
    """Whether calls of the model lack nothing for their next token but its slot."""
    calls = [*state.resident.values(), *state.saved.values()]
    return any(call.generated and call.pending == 1 for call in calls)


def short(session: Session, most: int) -> Session:
    """Its first calls, and sub-agents that those spawn."""
    main = session.branches[0]
    kept = {main.name: main.calls[:most]}
    branches = []
    for branch in session.branches[1:]:
        if branch.spawned_by < len(kept.get(branch.parent, ())):
            kept[branch.name] = branch.calls[: most // 2]
            branches.append(replace(branch, calls=kept[branch.name]))
    calls = tuple(_joining(call, kept) for call in main.calls[:most])
    return replace(session, branches=(Branch(main.name, calls), *branches))


def _joining(call: Call, kept: dict[str, tuple[Call, ...]]) -> Call:
    return replace(call, joins=tuple(name for name in call.joins if name in kept))


def run(sessions: tuple[Session, ...], concurrency: int, **changes: Any) -> Cluster:
    setup = replace(SCENARIO.setup, **changes)
    hardware = replace(HARDWARE, block_tokens=setup.block_tokens)
    fleet = Fleet(hardware, setup, SCENARIO.instances)
    cluster = build(fleet, sessions, Load(concurrency=concurrency), 1, 0)
    cluster.run()
    assert not [record.error for record in cluster.records if record.error]
    return cluster


def sessions_of(count: int) -> tuple[Session, ...]:
    return workload(SCENARIO, HARDWARE, REPOSITORY / "scenarios").sessions[:count]


def check_progress(seen: Watch) -> None:
    """No slot closes with decode owed; no model with calls between two tokens is passed over while
    every other one has a slot; so in any few rounds in which it has such calls throughout, it
    makes all its protected iterations."""
    assert len(seen.slots) > 3 * WINDOW
    passed: dict[str, set[str]] = {}
    for slot in seen.slots:
        if slot.decoding:
            assert slot.paid >= max(1, slot.protected)
        passed.pop(slot.model, None)
        passed = {name: passed.get(name, set()) for name in slot.waiting if name != slot.model}
        for name, others in passed.items():
            assert slot.model not in others, f"{slot.model} had two slots while {name} waited"
            others.add(slot.model)
    check_windows(seen.slots)


def check_windows(slots: list[Closed]) -> None:
    last = slots[-1].round
    for begin in range(1, last - WINDOW, WINDOW):
        window = [slot for slot in slots if begin <= slot.round < begin + WINDOW]
        for name in frozenset.intersection(*(slot.waiting for slot in window)):
            own = [slot for slot in window if slot.model == name]
            assert len(own) >= WINDOW - 1
            assert sum(slot.paid for slot in own) >= max(
                len(own), sum(slot.protected for slot in own if slot.decoding)
            )


CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "all on": {},
    "little host memory": {"host_bytes": 20 << 30},
    "no host memory": {"host_bytes": 1 << 20},
    "round only": {"session_prefill": False, "host_kv": False, "staging": False},
    "no round meets its bound": {"ttft": 2.0, "tpot": 0.02},
}


@pytest.mark.parametrize("changes", CONFIGURATIONS.values(), ids=CONFIGURATIONS)
def test_decode_goes_on_whatever_waits(watch: Watch, changes: dict[str, Any]) -> None:
    run(tuple(short(session, 5) for session in sessions_of(18)), 18, **changes)
    check_progress(watch)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_four_times_the_load_is_served_as_fast(watch: Watch) -> None:
    """Where the sessions' KV fits the host: as many tokens a second, and most of the time still
    goes to prompts and decode, not to bringing interrupted calls back."""
    sessions, rates = sessions_of(40), []
    for concurrency in (8, 32):
        watch.slots, watch.resuming = [], 0.0
        cluster = run(sessions, concurrency)
        check_progress(watch)
        seconds = cluster.clock.now / 1e9
        assert watch.resuming < 0.2 * seconds
        rates.append(sum(record.completion_tokens or 0 for record in cluster.records) / seconds)
    assert rates[1] >= 0.8 * rates[0]


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("changes", CONFIGURATIONS.values(), ids=CONFIGURATIONS)
def test_whole_sessions_go_on_too(watch: Watch, changes: dict[str, Any]) -> None:
    run(sessions_of(12), 12, **changes)
    check_progress(watch)
