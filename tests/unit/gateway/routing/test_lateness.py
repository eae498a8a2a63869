"""Every model with waiting calls gets one in within a round's bound, or the router says why not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from alipes.gateway.routing.decision import (
    CallShape,
    LateModel,
    Placement,
    Reason,
    RouterSettings,
    Wait,
    Why,
)
from alipes.gateway.routing.router import Router
from alipes.instance.contract import Estimate, Load

SECOND = 1_000_000_000
BOUND = 8 * SECOND
"""Of the instances here (Eq. 5)."""
Stage = Any
Stages = Callable[..., Stage]
ROUND = Load(3, 3000, 2, 200, 200)
MEMORY = Load(0, 0, 2, 188_000, 200)
FULL = Load(64, 64, 1, 10, 10)


def played(
    stage: Stage, loads: Mapping[str, Load], calls: Mapping[int, CallShape], until: int
) -> dict[bytes, tuple[float, Reason]]:
    """Calls come at their instants (ns) to an instance whose load never changes and whose state is
    told every second; when each went, in seconds, and why."""
    went: dict[bytes, tuple[float, Reason]] = {}
    last = b""
    while stage.now < until:
        stage.show("x", "a", loads, last_call=last)
        answers = stage.router.retry(stage.now)
        if stage.now in calls:
            answers.append(stage.router.place(calls[stage.now], stage.now))
        for answer in answers:
            if isinstance(answer, Placement):
                last = answer.call_id
                went[last] = (stage.now / SECOND, answer.reason)
        ends = [time for time in calls if time > stage.now]
        ends += [end for end in [stage.router.next_wakeup(stage.now)] if end is not None]
        stage.now = min(*ends, stage.now + SECOND, until)
    return went


@pytest.fixture
def one(stage: Stages) -> Stage:
    """One instance of both models."""
    return stage(RouterSettings(queue_timeout=500.0), serves={"x": "ab"})


def test_a_short_call_is_not_kept_out_by_older_ones_of_another_model(one: Stage) -> None:
    """Twelve calls of ``a`` need more than a round has left, for ever; those of ``b`` are short.
    Each model gets a call in within eight seconds, whatever waits of the other."""
    longs = {n * BOUND // 100: one.call("a", prompt=6000) for n in range(12)}
    short, shorter = one.call("b", prompt=5000), one.call("b", prompt=10)
    calls = longs | {9 * SECOND: short, 30 * SECOND: shorter}
    went = played(one, {"a": ROUND}, calls, 110 * SECOND)
    assert went[short.call_id] == (17.0, Reason.OVERDUE)
    assert went[shorter.call_id] == (30.0, Reason.ONLY), "it fits, and nothing is kept for others"
    assert [went[call.call_id][0] for call in longs.values()] == [8.0 * n for n in range(1, 13)]


@pytest.mark.parametrize("load", [ROUND, MEMORY], ids=["round", "memory"])
def test_a_late_model_gets_one_call_in_for_every_bound(one: Stage, load: Load) -> None:
    calls = {n: one.call("a", prompt=6000) for n in range(3)}
    went = played(one, {"a": load}, calls, 30 * SECOND)
    overdue = [(8.0 * n, Reason.OVERDUE) for n in (1, 2, 3)]
    assert [went[call.call_id] for call in calls.values()] == overdue


def test_any_number_of_models_is_let_in_at_once(stage: Stages) -> None:
    here = stage(serves={"x": "abcde"})
    calls = {n: here.call(model, prompt=6000) for n, model in enumerate("abcde")}
    went = played(here, {"a": Load(8, 7800, 2, 200, 200)}, calls, 9 * SECOND)
    overdue = [((BOUND + n) / SECOND, Reason.OVERDUE) for n in range(5)]
    assert [went[call.call_id] for call in calls.values()] == overdue


def test_a_call_that_finds_room_in_time_gives_its_model_another_bound(one: Stage) -> None:
    first, second = (one.call("a", prompt=6000) for _ in range(2))
    for call in (first, second):
        one.show("x", "a", {"a": ROUND})
        assert isinstance(one.router.place(call, 0), Wait)
    one.now = 5 * SECOND
    one.show("x", "a")
    [placement] = one.router.retry(one.now)
    assert (placement.call_id, placement.reason) == (first.call_id, Reason.ONLY)
    one.show("x", "a", {"a": ROUND}, last_call=first.call_id)
    assert one.router.next_wakeup(one.now) == one.now + BOUND
    one.now += BOUND - 1
    one.show("x", "a", {"a": ROUND})
    assert one.router.retry(one.now) == []
    one.now += 1
    [placement] = one.router.retry(one.now)
    assert (placement.call_id, placement.reason) == (second.call_id, Reason.OVERDUE)


def test_the_cheapest_instance_takes_the_late_call(stage: Stages) -> None:
    here = stage()
    call = here.call("a", prompt=6000)
    for seconds in (0, 8):
        here.now = seconds * SECOND
        here.show("x", "a", {"a": Load(5, 5000, 2, 200, 200)})
        here.show("y", "a", {"a": ROUND})
        if not seconds:
            assert isinstance(here.router.place(call, 0), Wait)
    [placement] = here.router.retry(here.now)
    assert (placement.instance, placement.reason) == ("y", Reason.OVERDUE)


def test_late_models_choose_first_the_latest_before_all(stage: Stages) -> None:
    """Where the queue of an instance is full and a place comes free in it."""
    here = stage(serves={"x": "abc"})
    calls = {n: here.call(model, prompt=10) for n, model in enumerate("abcba")}
    went = played(here, {"a": FULL}, calls, BOUND + 3)
    assert went == {}
    here.show("x", "a", {"a": Load(61, 61, 1, 10, 10)})
    order = [answer.call_id for answer in here.router.retry(here.now)]
    assert order == [calls[n].call_id for n in (0, 4, 1)]


def test_what_keeps_a_model_waiting_is_told(stage: Stages) -> None:
    here = stage(RouterSettings(queue_timeout=60.0))
    here.show("x", "a", {"a": FULL})
    here.router.disconnected("y", 0)
    for number in range(2):
        here.now = number
        assert isinstance(here.router.place(here.call("b", prompt=10), number), Wait)
    assert here.router.status(BOUND - 1).late == ()
    here.now = BOUND + SECOND
    here.show("x", "a", {"a": FULL})
    assert here.router.retry(here.now) == []
    [late] = here.router.status(here.now).late
    assert late == LateModel("b", 2, 9.0, {"x": Why.FULL, "y": Why.DOWN})
    assert here.router.next_wakeup(here.now) == 60 * SECOND, "only an event can help"


def test_a_model_whose_instances_never_came_is_late_by_the_usual_bound() -> None:
    router = Router({"a": frozenset({"x"})})
    assert isinstance(router.place(CallShape(b"1", "a", "t", 10, 10), 0), Wait)
    assert router.next_wakeup(0) == BOUND
    [late] = router.status(BOUND).late
    assert (late.model, late.waited, late.why) == ("a", 8.0, {"x": Why.DOWN})


def test_a_prompt_that_has_no_room_for_decode_can_go_late_too(stage: Stages) -> None:
    """Decode steps alone exceed the cadence: there is no round, and its length is infinite."""
    slow = Estimate(0.01, 0.001, 0.0, 0.4, 0.05, 0.0, 0.5, 0.001, 0.0001, 9)
    here = stage(cost=slow, serves={"x": "ab"})
    call = here.call("b", prompt=10)
    went = played(here, {"a": Load(0, 0, 2, 200, 200)}, {0: call}, 9 * SECOND)
    assert went == {call.call_id: (8.0, Reason.OVERDUE)}
