"""Every model with waiting work is revisited: the router over real round schedulers.

Clusters on a virtual clock with memory, rounds or queues too small for what comes: long prompts,
and sessions that return by lease without end. A model with calls in the gateway's queue gets one
in within a round's bound (Talaria Eq. 5), or the router names it and what keeps it out. Then it has
work on an instance, and a slot there begins within another bound after its last one began, or work
came to it, and what is not cut short, or the instance counts a deadline risk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any
from unittest.mock import patch

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.property.replay.sim.small import BLOCK, LONGEST, NAMES, hardware_of

from alipes.gateway.routing.decision import CallShape, Placement, Wait, Why
from alipes.instance.scheduler.model import ModelState
from alipes.instance.scheduler.rotation import Rotation
from alipes.instance.scheduler.slot import Slot
from alipes.replay.sim.build import Fleet, build
from alipes.replay.sim.cluster import Cluster
from alipes.replay.sim.costs import engine_costs
from alipes.replay.sim.hardware import Hardware
from alipes.replay.sim.instance import SimulatedInstance
from alipes.replay.sim.scenario import InstanceSpec, Load, Setup
from alipes.replay.traces.form import MAIN, Branch, Call, Session, Span, stream_id

SECOND = 1_000_000_000
WATCHED = 8
"""Bounds for which a cluster is watched; no session is over by then."""


@dataclass
class Queue:
    """What goes into the router and comes out of it. ``longest`` is how long a model with queued
    calls had none let in; ``late`` counts what was told of them."""

    cluster: Cluster
    bound: int
    ends: frozenset[Why]
    calls: dict[bytes, tuple[str, int]] = field(default_factory=dict)
    went: dict[str, int] = field(default_factory=dict)
    longest: int = 0
    late: int = 0

    def watch(self) -> None:
        router = self.cluster.book.router
        place, retry, released = router.place, router.retry, router.released

        def placing(call: CallShape, now: int) -> Any:
            answer = place(call, now)
            if isinstance(answer, Wait):
                self.calls[call.call_id] = call.model, now
            return answer

        def retrying(now: int) -> Any:
            answers = retry(now)
            for answer in answers:
                model, _ = self.calls[answer.call_id]
                assert isinstance(answer, Placement)
                self.longest = max(self.longest, now - self._since()[model])
                self.went[model] = now
                del self.calls[answer.call_id]
            self.check(now)
            return answers

        def releasing(call_id: bytes, now: int) -> None:
            self.calls.pop(call_id, None)
            released(call_id, now)

        patched = {"place": placing, "retry": retrying, "released": releasing}
        for name, method in patched.items():
            setattr(router, name, method)

    def _since(self) -> dict[str, int]:
        """Since when each model with queued calls waits for one to go."""
        came: dict[str, int] = {}
        for model, arrived in self.calls.values():
            came[model] = min(arrived, came.get(model, arrived))
        return {model: max(then, self.went.get(model, then)) for model, then in came.items()}

    def check(self, now: int) -> None:
        """The router tells of just those that wait for too long, and what keeps them."""
        late = {each.model: each for each in self.cluster.book.router.status(now).late}
        since = self._since()
        assert late.keys() == {m for m, then in since.items() if now - then >= self.bound}
        for each in late.values():
            self.late += 1
            assert each.waited == (now - since[each.model]) / SECOND
            assert set(each.why.values()) <= self.ends


@dataclass
class Slots:
    """The slots of one instance as they open: when, and in which round. ``risky`` rounds are those
    of which it has told that their bound could not be met."""

    instance: SimulatedInstance
    most: int
    opened: list[tuple[int, int]] = field(default_factory=list)
    risky: set[int] = field(default_factory=set)
    told: int = 0
    current: str = ""

    @property
    def round(self) -> int:
        return self.instance.scheduler.rounds

    def look(self) -> None:
        told = sum(self.instance.scheduler.counters().deadline_risk.values())
        if told > self.told:
            self.risky.add(self.round)
        self.told = told

    def open(self, model: str, since: int, now: int) -> None:
        """A slot of the model opens, whose last one did ``since``, or which has had work since."""
        self.look()
        self.opened.append((now, self.round))
        if model != self.current:
            self.check(model, since, now)
        self.current = model

    def check(self, model: str, since: int, now: int) -> None:
        first = next((number for then, number in reversed(self.opened) if then <= since), 0)
        if self.risky.isdisjoint(range(first, self.round + 1)):
            assert now - since <= self.most, (self.instance.name, model)

    def end(self, now: int) -> None:
        """As if all models with work were to have a slot now."""
        for state in self.instance.scheduler._calls.ready():
            if state.name != self.current:
                self.check(state.name, state.since, now)


def uncut(hardware: Hardware) -> int:
    """Nanoseconds of what is not cut short when time is up: a chunk of prefill and a switch."""
    costs = [engine_costs(hardware, model) for model in hardware.models]
    chunk = min(hardware.prefill_chunk, LONGEST)
    chunks = max(each.prefill([(chunk, LONGEST - chunk)]) + each.cold for each in costs)
    return chunks + max(each.switch(each.weight_bytes, 0) for each in costs)


@contextmanager
def watched(cluster: Cluster, most: int) -> Iterator[list[Slots]]:
    slots = [Slots(node.process, most) for node in cluster.nodes]
    of = {id(each.instance.scheduler._rotation): each for each in slots}
    opening = Rotation.open

    def opened(self: Rotation, state: ModelState, ready: list[ModelState], now: int) -> Slot:
        since = state.since
        slot = opening(self, state, ready, now)
        of[id(self)].open(state.name, since, now)
        return slot

    with patch.object(Rotation, "open", opened):
        yield slots


# --- what comes --------------------------------------------------------------------------------


def endless(generator: Random, number: int, models: Sequence[str]) -> Session:
    """A session that returns for longer than anybody watches, with prompts of any length."""
    calls: list[Call] = []
    context = 0
    for index in range(150):
        new, output = generator.choice((1, 20, 90, 200, 320)), generator.choice((1, 5, 20, 40))
        kept = context if context + new + output <= LONGEST - BLOCK else 0
        own = Span(stream_id("new", MAIN, index, local=True), 0, new)
        calls.append(Call(kept + new, output, kept, (own,), generator.choice((0.0, 0.0, 0.3))))
        context = kept + new + output
    return Session(f"s{number}", (Branch(MAIN, tuple(calls)),), generator.choice(models))


SETUPS = st.builds(
    Setup,
    ttft=st.sampled_from([1.0, 3.0]),
    tpot=st.sampled_from([0.05, 0.2]),
    gamma=st.sampled_from([0.3, 0.8]),
    lease_seconds=st.sampled_from([0.0, 0.3, 60.0]),
    session_prefill=st.booleans(),
    host_kv=st.booleans(),
    policy=st.sampled_from(["residency", "residency", "least-pressure"]),
)


@st.composite
def fleets(draw: st.DrawFn) -> Fleet:
    names = NAMES[: draw(st.integers(2, 4))]
    specs = [InstanceSpec(names), InstanceSpec(names[:2])][: draw(st.integers(1, 2))]
    hardware = hardware_of(
        names,
        blocks=draw(st.sampled_from([24, 30, 60])),
        host_blocks=draw(st.sampled_from([0, 60, 2_000])),
        prefill_chunk=draw(st.sampled_from([16, 64, 1024])),
        max_running=draw(st.sampled_from([1, 4])),
    )
    return Fleet(hardware, draw(SETUPS), specs)


def play(fleet: Fleet, sessions: int, rate: float, seed: int, ends: frozenset[Why]) -> Queue:
    generator = Random(seed)
    models = tuple(fleet.hardware.models)
    work = [endless(generator, number, models) for number in range(sessions)]
    cluster = build(fleet, work, Load(rate=rate), seed, 0)
    bound = int(fleet.targets.round_bound * SECOND)
    queue = Queue(cluster, bound, ends)
    queue.watch()
    with watched(cluster, bound + uncut(fleet.hardware)) as slots:
        while cluster.clock.now < WATCHED * bound and cluster.clock.step():
            for each in slots:
                each.look()
        for each in slots:
            each.end(cluster.clock.now)
    return queue


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    fleet=fleets(),
    sessions=st.sampled_from([4, 12]),
    rate=st.sampled_from([0.0, 5.0]),
    seed=st.integers(0, 9),
)
def test_every_model_is_revisited(fleet: Fleet, sessions: int, rate: float, seed: int) -> None:
    queue = play(fleet, sessions, rate, seed, frozenset())
    assert queue.longest <= queue.bound
    assert queue.late == 0


def test_full_instances_are_told() -> None:
    """Their queues have one place; all else has room."""
    fleet = Fleet(
        hardware_of(NAMES, blocks=60, prefill_chunk=16),
        Setup(ttft=1.0, tpot=0.05),
        [InstanceSpec(NAMES)],
    )
    with patch("alipes.replay.sim.build.MAX_WAITING", 1):
        queue = play(fleet, 12, 0.0, 1, frozenset({Why.FULL}))
    assert queue.late > 0
