"""The terms of Eq. 1 on one instance: what is charged, and that nothing is charged twice."""

from __future__ import annotations

import pytest

from alipes.gateway.routing.cost import evaluate
from alipes.gateway.routing.decision import Candidate
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
) -> Candidate:
    reports = tuple(ModelReport(m, "kv", 32768, 1, 1, 1, 1000) for m in "ab")
    instance = InstanceState("i")
    instance.connected(
        Hello(1, "i", "i", Pool.COLD, "fake", "cpu", 64, 4, 64, 512, Targets(), reports, 1), 0
    )
    state = Snapshot(
        1,
        active,
        "P",
        round_remaining,
        0.0,
        False,
        loads or {},
        {"a": COST, "b": COST},
        Occupancy(0, 0, 0, 0, 0, 0),
        Counters(),
    )
    instance.updated(state, 0)
    for number, other in enumerate(unseen):
        instance.place(bytes([number]), other)
    return evaluate(instance, charge, state.estimates)


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
