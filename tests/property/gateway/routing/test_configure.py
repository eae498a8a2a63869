"""A router that is given other settings goes on as one that was built with them."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from alipes.gateway.routing.decision import CallShape, Completion, RouterSettings
from alipes.gateway.routing.router import Router
from alipes.instance.contract import (
    BlocksStored,
    Counters,
    Estimate,
    Hello,
    Load,
    ModelReport,
    Occupancy,
    Pool,
    Snapshot,
    Targets,
    Tier,
)

SECOND = 1_000_000_000
COST = Estimate(0.01, 0.002, 1e-7, 0.03, 0.01, 1e-6, 0.4, 0.01, 1e-4, 3)
REPORTS = tuple(ModelReport(model, "kv", 8192, 1, 1, 1, 100) for model in "ab")
BRANCHES = [model + number for model in (b"a", b"b") for number in (b"1", b"2")]
NEW = RouterSettings(
    queue_depth=3,
    queue_timeout=20.0,
    state_seconds=4.0,
    silence_seconds=2.0,
    lease_seconds=7.0,
    control_window=5.0,
    replica_penalty=0.0,
    check_seconds=0.5,
)
TIMES = replace(NEW, queue_timeout=90.0, lease_seconds=30.0)
"""They differ in times that are long: nothing ends by them early on."""
OTHERS = RouterSettings(
    1, 60.0, 9.0, 9.0, 0.0, "session-sticky", 40.0, 3.0, 5.0, eviction_cost=False
)


class Path:
    def keys(self, kv_format: str) -> tuple[bytes, ...]:
        return tuple(bytes([number]) for number in range(10))


Event = tuple[int, str, Any]
"""Tenths of a second since the one before, what it is, and with what."""

loads = st.builds(
    Load,
    waiting=st.integers(0, 4),
    waiting_tokens=st.integers(0, 4000),
    running=st.integers(0, 3),
    running_context=st.integers(0, 3000),
    remaining_tokens=st.integers(0, 500),
)
names = st.sampled_from("xy")
happenings = st.one_of(
    st.tuples(st.just("updated"), st.tuples(names, st.sampled_from("ab"), loads)),
    st.tuples(st.just("beat"), names),
    st.tuples(st.just("connected"), names),
)
turns = st.tuples(st.sampled_from(BRANCHES), st.integers(100, 5000))
arrivals = st.one_of(
    happenings,
    st.tuples(st.just("place"), turns),
    st.tuples(st.just("turn"), turns),
    st.tuples(st.just("finish"), st.integers(0, 3)),
)


def events(what: st.SearchStrategy[Any], tenths: int, most: int) -> st.SearchStrategy[Any]:
    timed = st.builds(lambda then, event: (then, *event), st.integers(0, tenths), what)
    return st.lists(timed, max_size=most)


class Play:
    """A router and what happens to it; ``told`` is all that it said."""

    def __init__(self, limits: RouterSettings) -> None:
        self.router = Router({model: frozenset("xy") for model in "ab"}, limits)
        self.now = self.number = 0
        self.placed: list[CallShape] = []
        self.told: list[Any] = []
        self.calls: dict[bytes, CallShape] = {}
        for name in "xy":
            self.connected(name)
            self.updated((name, "a", Load()))

    def play(self, happens: list[Event]) -> None:
        for tenths, what, detail in happens:
            self.now += tenths * SECOND // 10
            getattr(self, what)(detail)
            self.note(self.router.retry(self.now))
            self.told += [self.router.next_wakeup(self.now), self.router.status(self.now)]

    def note(self, answers: list[Any]) -> None:
        self.told += answers
        for answer in answers:
            if getattr(answer, "instance", None):
                self.placed.append(self.calls[answer.call_id])

    def connected(self, name: str) -> None:
        hello = Hello(1, name, "i", Pool.COLD, "fake", "cpu", 64, 4, 6, 512, Targets(), REPORTS, 1)
        lost = self.router.connected(hello, self.now)
        self.placed = [call for call in self.placed if call.call_id not in lost]
        self.router.stored(name, BlocksStored("a", Tier.HOST, b"", Path().keys("kv")))

    def updated(self, detail: tuple[str, str, Load]) -> None:
        name, model, load = detail
        self.number += 1
        occupancy = Occupancy(100, 20, 60, 20, 0, 0)
        costs = dict.fromkeys("ab", COST)
        state = Snapshot(
            self.number, model, "P", 0.5, 1, False, {model: load}, costs, occupancy, Counters()
        )
        self.router.updated(name, state, self.now)

    def beat(self, name: str) -> None:
        self.router.beat(name, self.now)

    def place(self, detail: tuple[bytes, int]) -> None:
        branch, prompt = detail
        self.number += 1
        call_id = self.number.to_bytes(16, "big")
        model = chr(branch[0])
        call = CallShape(call_id, model, "t", prompt, 50, branch, min(prompt, 640), path=Path())
        self.calls[call_id] = call
        self.note([self.router.place(call, self.now)])

    def turn(self, detail: tuple[bytes, int]) -> None:
        self.place(detail)
        self.finish(-1)

    def finish(self, which: int) -> None:
        if self.placed:
            call = self.placed.pop(which % len(self.placed))
            completion = Completion(50, Path().keys("kv")[-1], 640)
            self.router.complete(call.call_id, self.now, completion)


def check(old: RouterSettings, before: list[Event], after: list[Event]) -> None:
    changed, built = Play(old), Play(NEW)
    for each in (changed, built):
        each.play(before)
    changed.router.configure(NEW, changed.now)
    for each in (changed, built):
        each.told.clear()
        each.play([(0, "beat", "x"), *after])
    assert changed.told == built.told


@settings(max_examples=60, deadline=None)
@given(before=events(happenings, 8, 6), after=events(arrivals, 30, 25))
def test_before_any_call_came(before: list[Event], after: list[Event]) -> None:
    check(OTHERS, before, after)


@settings(max_examples=60, deadline=None)
@given(before=events(arrivals, 4, 15), pause=st.integers(0, 150), after=events(arrivals, 30, 20))
def test_times_that_began_before_end_as_the_new_settings_say(
    before: list[Event], pause: int, after: list[Event]
) -> None:
    check(TIMES, before, [(pause, "beat", "y"), *after])
