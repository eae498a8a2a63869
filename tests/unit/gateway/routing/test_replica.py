"""Talaria Eq. 2: when a model is opened on a further instance, and when it is not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from alipes.gateway.routing.decision import Candidate, Placement, Reason, RouterSettings, Why
from alipes.gateway.routing.replica import ArrivalRates, Demand, gain, memory_price, waiting
from alipes.instance.contract import Estimate, Load, ModelReport, Occupancy, Pool

SECOND = 1_000_000_000
Stage = Callable[..., Any]


def test_rates_follow_arrivals_and_fade() -> None:
    rates = ArrivalRates(window=10.0)
    assert rates.per_second("a", 0) == 0
    for tenth in range(1000):
        rates.arrived("a", tenth * SECOND // 10)
    now = 100 * SECOND
    assert rates.per_second("a", now) == pytest.approx(10.0, rel=0.01)
    assert rates.per_second("a", now + 10 * SECOND) == pytest.approx(3.68, rel=0.01)
    assert rates.per_second("b", now) == 0


def simulated(queue: float, burst: int, rate: float, service: float, window: float) -> float:
    """Waiting in a single queue, call by call."""
    free, total = queue, 0.0
    arrivals = [0.0] * burst + [(n + 0.5) / rate for n in range(int(window * rate))]
    for arrival in arrivals:
        total += max(0.0, free - arrival)
        free = max(free, arrival) + service
    return total


@pytest.mark.parametrize(
    ("queue", "burst", "rate", "service"),
    [(3.0, 1, 0.0, 0.5), (0.0, 6, 0.0, 0.5), (2.0, 4, 1.0, 0.3), (4.0, 2, 5.0, 0.4)],
)
def test_waiting_is_that_of_a_queue(queue: float, burst: int, rate: float, service: float) -> None:
    fluid = waiting(queue, Demand(burst, rate, service, 10.0))
    expected = (
        simulated(queue, burst, rate, service, 10.0)
        if rate
        else (burst * queue + service * burst * (burst - 1) / 2)
    )
    assert fluid == pytest.approx(expected, rel=0.12)


def host(queue: float, prefill: float = 0.5) -> Candidate:
    return Candidate("i", queue=queue, prefill=prefill)


ONE = Demand(1, 0.0, 0.5, 10.0)


def test_a_single_call_gains_the_queue_it_leaves() -> None:
    assert gain(ONE, 1, host(3.0), host(1.0)) == pytest.approx(2.0)
    assert gain(ONE, 1, host(1.0), host(3.0)) == pytest.approx(-2.0)


def test_kv_that_is_nearer_is_gained_too() -> None:
    assert gain(ONE, 1, host(0.0, 9.0), host(0.0, 0.5)) == pytest.approx(8.5)


def test_arrivals_and_calls_that_wait_raise_the_gain() -> None:
    gains = [
        gain(Demand(burst, rate, 0.5, 10.0), 1, host(2.0), host(0.0))
        for burst, rate in ((1, 0.0), (4, 0.0), (4, 1.0), (4, 3.0))
    ]
    assert gains == sorted(gains)
    assert gains[0] < gains[1]


def test_more_hosts_lower_the_gain() -> None:
    demand = Demand(6, 2.0, 0.5, 10.0)
    gains = [gain(demand, hosts, host(1.0), host(0.0)) for hosts in (1, 2, 4)]
    assert gains == sorted(gains, reverse=True)


def test_memory_costs_what_the_displaced_kv_takes_to_restore() -> None:
    report = ModelReport("b", "kv", 1, 1, 1, 64 * 1024, 1)
    cost = Estimate(0, 0, 0, 0, 0, 0, 0, 0.0, 1e-6, 1)
    # 1 KiB a token: a GiB is 2**20 tokens of a microsecond each, and a quarter is in use.
    price = memory_price(report, cost, Occupancy(8, 6, 1, 1, 0, 0), 64)
    assert price == pytest.approx(2**20 * 1e-6 / 4)
    assert memory_price(report, cost, Occupancy(0, 0, 0, 0, 0, 0), 64) == 0


def test_the_first_instance_needs_no_gain(stage: Stage) -> None:
    here = stage(RouterSettings(replica_penalty=99.0))
    answer = here.place(here.call())
    assert (answer.instance, answer.reason) == ("x", Reason.SWITCH)
    assert [c.opens for c in answer.candidates] == [True, True]


def queued(stage: Any, calls: int) -> None:
    """``a`` is active on ``x``, where so many calls of 0.3 s wait; ``y`` is idle and cold."""
    stage.show("x", "a", {"a": Load(calls, 290 * calls, 1, 100, 10)})
    stage.show("y")


@pytest.mark.parametrize(("calls", "opens"), [(0, False), (1, False), (4, True)])
def test_a_cold_instance_opens_the_model_for_a_queue_that_is_long_enough(
    stage: Stage, calls: int, opens: bool
) -> None:
    """A switch of 0.5 s and a penalty of 0.1 s against 0.3 s and more for each call ahead."""
    here = stage()
    queued(here, calls)
    placement = here.place(here.call())
    assert placement.instance == ("y" if opens else "x")
    cold = next(c for c in placement.candidates if c.instance == "y")
    assert cold.opens
    assert cold.why is (Why.OK if opens else Why.NO_GAIN)


def test_penalty_memory_and_window_weigh_in(stage: Stage) -> None:
    dear = stage(RouterSettings(replica_penalty=5.0))
    queued(dear, 4)
    assert dear.place(dear.call()).instance == "x"
    # 0.25 GiB of weights displace KV of 2**18 tokens in a GiB at 0.1 ms each: 6.5 s.
    full = stage()
    queued(full, 4)
    full.show("y", "b", free=0)
    assert full.place(full.call()).instance == "x"
    full.show("y", "b", free=100)
    assert full.place(full.call()).instance == "y"


def test_work_on_the_way_makes_an_instance_a_host(stage: Stage) -> None:
    """The state of ``x`` does not show its call yet; a second one follows there."""
    here = stage()
    answers = [here.place(here.call(prompt=10)) for _ in range(2)]
    assert [answer.instance for answer in answers] == ["x", "x"]
    assert [c.why for c in answers[1].candidates] == [Why.OK, Why.NO_GAIN]


def test_where_no_host_has_room_an_idle_instance_takes_the_call(stage: Stage) -> None:
    here = stage(RouterSettings(replica_penalty=1e9))
    here.show("x", "a", {"a": Load(64, 64, 4, 100, 10)})
    placement = here.place(here.call())
    assert (placement.instance, placement.reason) == ("y", Reason.SWITCH)
    assert [c.why for c in placement.candidates] == [Why.FULL, Why.OK]


def test_hosts_that_may_not_be_used_do_not_count(stage: Stage) -> None:
    here = stage(RouterSettings(replica_penalty=1e9))
    here.show("x", "a")
    here.router.drain("x", 0)
    assert here.place(here.call()).instance == "y"


def test_hot_instances_are_there_for_their_model(stage: Stage) -> None:
    """A hot instance that has had no call yet needs no gain, and its first is no opening."""
    here = stage(RouterSettings(replica_penalty=1e9), {"x": "a", "y": "a"}, pool=Pool.HOT)
    here.show("x", "a", {"a": Load(4, 1000, 4, 400, 90)})
    placement = here.place(here.call())
    assert placement.instance == "y"
    cost = next(c for c in placement.candidates if c.instance == "y")
    assert (cost.opens, cost.activation) == (False, 0.5)
    assert here.router.status(0).counts.opens == 0


def test_avoidable_openings_are_counted(stage: Stage) -> None:
    here = stage(RouterSettings(policy="least-pressure"))
    here.show("x", "a")
    here.place(here.call())
    here.place(here.call())
    here.place(here.call("b"))
    counts = here.router.status(0).counts
    assert (counts.placed, counts.opens, counts.avoidable_opens) == (3, 2, 1)


def test_two_models_called_in_turn_by_many_keep_an_instance_each(
    stage: Stage, keys: Callable[[int, int], tuple[bytes, ...]]
) -> None:
    """40 branches of each model, a call of one after a call of the other, each coming back when
    its answer is there: neither model is ever opened a second time."""
    here = stage(RouterSettings(lease_seconds=1.0))
    running: list[Any] = []
    active = {"x": "", "y": ""}
    where: dict[str, Counter[str]] = {"a": Counter(), "b": Counter()}
    for turn in range(400):
        model, number = "ab"[turn % 2], turn // 2 % 40
        branch, chain = f"{model}{number}".encode(), (turn % 2) * 40 + number
        blocks = 4 + turn // 80
        call = here.call(
            model, branch, blocks * 64 + 9, 20, known=(blocks - 1) * 64, keys=keys(chain, blocks)
        )
        answer = here.router.place(call, here.now)
        assert isinstance(answer, Placement)
        where[model][answer.instance] += 1
        running.append((call, answer.instance, chain, blocks))
        here.now += SECOND // 20
        if len(running) > 3:
            done, name, chain, blocks = running.pop(0)
            here.stored(name, keys(chain, blocks))
            here.finish(done, keys(chain, blocks)[-1], blocks)
        for name in "xy":
            there = [one for one in running if one[1] == name]
            active[name] = there[0][0].model if there else active[name]
            loads = {
                m: Load(0, 0, n, 300 * n, 10 * n)
                for m, n in Counter(one[0].model for one in there).items()
            }
            last = there[-1][0].call_id if there else b""
            here.show(name, active[name], loads, last_call=last)
    assert where == {"a": {"x": 200}, "b": {"y": 200}}
    counts = here.router.status(here.now).counts
    assert (counts.opens, counts.avoidable_opens) == (2, 0)
    assert counts.returns == counts.same_instance > 300
