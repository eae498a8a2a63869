"""The terms of Eq. 1 on one instance: what is charged, and that nothing is charged twice."""

from __future__ import annotations

import pytest

from alipes.gateway.routing.cost import evaluate
from alipes.gateway.routing.decision import Candidate, Why
from alipes.gateway.routing.instances import InstanceState
from alipes.gateway.routing.overlay import Charge
from alipes.instance.contract import (
    Counters,
    Estimate,
    Hello,
    Load,
    ModelReport,
    Occupancy,
    Pool,
    Snapshot,
    Targets,
)

COST = Estimate(0.0, 0.001, 0.0, 0.02, 0.005, 0.0, 0.5, 0.0, 0.0, 9)
CALL = Charge("a", 400, 100)


def cost_of(
    charge: Charge = CALL,
    *,
    active: str = "a",
    loads: dict[str, Load] | None = None,
    round_remaining: float = 0.0,
    unseen: tuple[Charge, ...] = (),
    held: float = 0.0,
    returning: frozenset[str] = frozenset(),
    counters: tuple[Counters, ...] = (Counters(),),
    round_length: float = 0.0,
    cost: Estimate = COST,
) -> Candidate:
    reports = tuple(ModelReport(m, "kv", 32768, 1, 1, 1, 1000) for m in "ab")
    instance = InstanceState("i")
    instance.connected(
        Hello(1, "i", "i", Pool.COLD, "fake", "cpu", 64, 4, 64, 512, Targets(), reports, 1), 0
    )
    for version, totals in enumerate(counters):
        state = Snapshot(
            version,
            active,
            "P",
            round_remaining,
            round_length,
            False,
            loads or {},
            {"a": cost, "b": cost},
            Occupancy(0, 0, 0, 0, 0, 0),
            totals,
        )
        instance.updated(state, 0)
    for number, other in enumerate(unseen):
        instance.place(bytes([number]), other)
    return evaluate(instance, charge, {"a": cost, "b": cost}, held, returning)


def test_an_idle_instance_with_the_model_active_costs_the_work_alone() -> None:
    cost = cost_of()
    assert (cost.queue, cost.activation, cost.recovery) == (0, 0, 0)
    assert cost.prefill == pytest.approx(0.4)
    assert cost.decode == pytest.approx(100 * 0.025)


def test_activation_is_charged_once() -> None:
    assert cost_of(active="b").activation == pytest.approx(0.5)
    # The model has work: its slot, and so its switch, is in the round that the call waits for.
    waits = cost_of(active="b", loads={"a": Load(1, 100, 0, 0, 0)}, round_remaining=0.9)
    assert waits.activation == 0


def test_a_model_that_has_the_instance_to_itself_is_switched_back_to() -> None:
    b = frozenset("b")
    assert cost_of(active="b", returning=b).activation == pytest.approx(1.0)
    assert cost_of(active="b", loads={"b": Load(0, 0, 1, 9, 9)}).activation == pytest.approx(1.0)
    assert cost_of(active="b").activation == pytest.approx(0.5)
    assert cost_of(active="a", returning=b).activation == 0
    # Sessions of this model return there too: the instance has turns to take in any case.
    assert cost_of(active="b", returning=frozenset("ab")).activation == pytest.approx(0.5)


def test_calls_sent_since_the_last_state_are_queued_before_this_one() -> None:
    unseen = (Charge("a", 300, 10), Charge("a", 500, 10))
    assert cost_of(unseen=unseen).queue == pytest.approx(0.8)
    shown = cost_of(loads={"a": Load(2, 800, 0, 0, 0)})
    assert shown.queue == pytest.approx(0.8)


def test_running_answers_are_delayed_by_prefill_and_by_a_longer_step() -> None:
    alone, beside = cost_of(), cost_of(loads={"a": Load(0, 0, 2, 50, 120)})
    own = 100 * (0.02 + 3 * 0.005)
    # Two calls with 60 tokens to go each, a row of 5 ms longer, and 0.4 s of prefill.
    assert beside.decode == pytest.approx(own + 0.4 + 60 * 0.005)
    assert beside.total > alone.total


def test_other_models_cost_their_turns_and_the_cadence_of_the_round() -> None:
    cost = cost_of(loads={"b": Load(0, 0, 1, 10, 10)}, round_remaining=2.0)
    assert cost.queue == pytest.approx(2.0)
    assert cost.decode == pytest.approx(100 * 0.5 + 0.4)


def test_prefill_sent_to_other_models_since_the_last_state_is_waited_for() -> None:
    cost = cost_of(
        loads={"b": Load(1, 100, 0, 0, 0)}, round_remaining=1.0, unseen=(Charge("b", 700, 1),)
    )
    assert cost.queue == pytest.approx(1.0 + 0.7)


def test_a_prompt_beyond_a_round_waits_a_round_for_every_further_slot() -> None:
    cost = cost_of(Charge("a", 20_000, 1), loads={"b": Load(0, 0, 1, 10, 10)})
    # A round gives 6.2 s of prefill, after two switches and decode: four slots for 20 s.
    assert cost.prefill == pytest.approx(20.0)
    assert cost.queue == pytest.approx(3 * cost.round_length)
    assert cost.admitted


def test_full_rows_are_waited_for() -> None:
    full = cost_of(loads={"a": Load(0, 0, 4, 40, 80)})
    assert full.queue == pytest.approx(20 * 0.04)


MEASURED = Estimate(0.01, 0.001, 1e-6, 0.02, 0.005, 1e-6, 0.5, 0.02, 0.0001, 9)


def span(start: int, end: int) -> float:
    """Prefill from a position to another, chunk by chunk."""
    seconds = 0.0
    while start < end:
        step = min(512, end - start)
        start += step
        seconds += 0.01 + step * 0.001 + step * start * 1e-6
    return seconds


def test_a_prefix_on_the_device_costs_nothing() -> None:
    cost = cost_of(Charge("a", 2000, 10, device_tokens=1920, known_tokens=1900), cost=MEASURED)
    assert cost.recovery == 0
    assert cost.prefill == pytest.approx(span(1920, 2000))
    assert (cost.device_tokens, cost.host_tokens) == (1920, 0)


def test_a_prefix_on_the_host_costs_its_measured_copy() -> None:
    charge = Charge("a", 2000, 10, device_tokens=640, host_tokens=1280, known_tokens=1900)
    cost = cost_of(charge, cost=MEASURED)
    assert cost.recovery == pytest.approx(0.02 + 1280 * 0.0001)
    assert cost.prefill == pytest.approx(span(1920, 2000))


def test_a_missing_prefix_is_recovery_and_new_text_prefill() -> None:
    cost = cost_of(Charge("a", 2000, 10, known_tokens=1500), cost=MEASURED)
    assert cost.recovery == pytest.approx(span(0, 1500))
    assert cost.recovery + cost.prefill == pytest.approx(span(0, 2000))
    partly = cost_of(Charge("a", 2000, 10, host_tokens=640, known_tokens=1500), cost=MEASURED)
    assert partly.recovery == pytest.approx(0.02 + 0.064 + span(640, 1500))
    assert partly.recovery + partly.prefill == pytest.approx(0.02 + 0.064 + span(640, 2000))


def test_a_strangers_prefix_saves_a_new_session_its_prefill() -> None:
    cost = cost_of(Charge("a", 2000, 10, device_tokens=1280), cost=MEASURED)
    assert cost.recovery == 0
    assert cost.prefill == pytest.approx(span(1280, 2000))


def test_the_total_is_the_sum_of_the_terms() -> None:
    charge = Charge("a", 9000, 50, 640, 1280, 6000)
    loads = {"a": Load(1, 300, 2, 500, 80), "b": Load(1, 900, 1, 40, 9)}
    cost = cost_of(charge, active="b", loads=loads, round_remaining=1.5, held=0.7, cost=MEASURED)
    parts = (cost.queue, cost.prefill, cost.decode, cost.recovery, cost.activation)
    assert all(part > 0 for part in parts[:4])
    assert cost.total == pytest.approx(sum(parts))


def test_recovery_delays_those_that_decode_like_prefill_does() -> None:
    loads = {"b": Load(0, 0, 1, 10, 10)}
    near = cost_of(Charge("a", 2000, 10, device_tokens=1920, known_tokens=2000), loads=loads)
    far = cost_of(Charge("a", 2000, 10, known_tokens=2000), loads=loads)
    assert far.decode - near.decode == pytest.approx(far.recovery - near.recovery - near.prefill)


def test_leased_seconds_are_in_queue_and_round_but_keep_an_idle_instance_open() -> None:
    free, held = cost_of(), cost_of(held=9.0)
    assert held.queue - free.queue == pytest.approx(9.0)
    assert held.admitted
    loads = {"a": Load(0, 0, 1, 10, 10)}
    free, held = cost_of(loads=loads), cost_of(loads=loads, held=1.0)
    assert held.queue - free.queue == pytest.approx(1.0)
    # R = X / (1 - t_D / T_TPOT), with a decode step of two calls.
    assert held.round_length - free.round_length == pytest.approx(1.0 / (1 - 0.03 / 0.5))
    assert cost_of(loads=loads, held=8.0).why is Why.ROUND


def test_a_restore_is_in_the_round_too() -> None:
    loads = {"a": Load(0, 0, 1, 10, 10)}
    near = cost_of(Charge("a", 2000, 10, device_tokens=1920), loads=loads, cost=MEASURED)
    far = cost_of(Charge("a", 2000, 10, host_tokens=1920), loads=loads, cost=MEASURED)
    share = (0.02 + 2 * 0.005 + 2010 * 1e-6) / 0.5
    assert far.round_length - near.round_length == pytest.approx((0.02 + 0.192) / (1 - share))


def test_a_new_run_of_an_instance_is_not_blamed_for_the_old_one() -> None:
    instance = InstanceState("i")
    reports = (ModelReport("a", "kv", 32768, 1, 1, 1, 1000),)
    hello = Hello(1, "i", "i", Pool.COLD, "fake", "cpu", 64, 4, 64, 512, Targets(), reports, 1)
    instance.connected(hello, 0)
    for totals in SHORT:
        instance.pressure.observe(totals)
    assert instance.pressure.at_risk
    instance.connected(hello, 0)
    assert not instance.pressure.at_risk
    assert instance.pressure.shortfall("a") == 0


def test_unseen_calls_add_what_they_compute_and_restore() -> None:
    unseen = (Charge("a", 3000, 10, device_tokens=640, host_tokens=1280),)
    cost = cost_of(unseen=unseen, cost=MEASURED)
    # What waits is taken to begin at its start: states tell no positions.
    assert cost.queue == pytest.approx(span(0, 1080) + 0.02 + 0.128)


def test_a_long_cached_context_makes_decode_steps_longer() -> None:
    cost = cost_of(Charge("a", 100_000, 10, device_tokens=99_968), cost=MEASURED)
    assert cost.decode == pytest.approx(10 * (0.025 + 0.1))


SHORT = (Counters(rounds=1), Counters(rounds=3, shortfall={"a": 3.0}, deadline_risk={"b": 1}))


def test_prefill_without_room_is_charged_to_its_model_while_there_is_work() -> None:
    loads = {"b": Load(0, 0, 1, 10, 10)}
    usual, short = cost_of(loads=loads), cost_of(loads=loads, counters=SHORT)
    assert short.queue - usual.queue == pytest.approx(1.5)
    other = Charge("b", 400, 100)
    assert cost_of(other, loads=loads).queue == cost_of(other, loads=loads, counters=SHORT).queue
    assert cost_of(counters=SHORT).queue == 0


def test_an_instance_whose_rounds_are_at_risk_is_believed_how_long_they_are() -> None:
    loads = {"b": Load(0, 0, 1, 10, 10)}
    trusted = cost_of(loads=loads, round_length=9.0)
    assert trusted.admitted
    risky = cost_of(loads=loads, round_length=9.0, counters=SHORT)
    assert (risky.round_length, risky.why) == (9.0, Why.ROUND)
    shorter = cost_of(loads=loads, round_length=0.1, counters=SHORT)
    assert shorter.round_length == trusted.round_length
    assert cost_of(round_length=9.0, counters=SHORT).admitted
