from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alipes.instance.contract import Targets
from alipes.instance.scheduler.budget import Demand, Share, plan_round, shortest_round, within

TARGETS = Targets(ttft=10.0, tpot=0.5, gamma=0.8)
BOUND = 8.0


def demand(
    name: str, step: float = 0.05, prefill: float = 0.0, chunk: float = 0.0, switch: float = 0.0
) -> Demand:
    return Demand(name, step, prefill, min(chunk, prefill), switch)


def test_the_round_of_equation_4() -> None:
    # X = 2 * 1.0 + 2 * 0.1 and sum(t) / T = 0.2: R >= 2.2 / 0.8 = 2.75, with whole iterations
    # d = ceil(R / 0.5) = 6 and R = 2.2 + 6 * 0.1 = 2.8.
    demands = [demand("a", prefill=1.0, switch=0.1), demand("b", prefill=1.0, switch=0.1)]
    plan = plan_round(demands, TARGETS, switch_share=1.0)
    assert plan.length == pytest.approx(2.8)
    assert plan.at_risk is None
    for share in plan.shares.values():
        assert share.protected == 6
        assert share.prefill == pytest.approx(1.0)
        assert share.seconds == pytest.approx(1.3)


def test_a_round_grows_until_switches_are_a_small_part() -> None:
    demands = [demand("a", 0.05, switch=0.1), demand("b", 0.1, switch=0.1)]
    plan = plan_round(demands, TARGETS, switch_share=0.1)
    assert plan.length == pytest.approx(2.0)
    # d = 4 and 1.2 s to spare, divided so that both models get as many iterations more.
    assert {share.protected for share in plan.shares.values()} == {4}
    assert plan.shares["a"].seconds == pytest.approx(0.6)
    assert plan.shares["b"].seconds == pytest.approx(1.2)


def test_a_round_grows_no_further_than_its_bound() -> None:
    demands = [demand("a", switch=1.0), demand("b", switch=1.0)]
    plan = plan_round(demands, TARGETS, switch_share=0.1)
    assert plan.length == pytest.approx(BOUND)
    assert plan.at_risk is None


def test_too_much_prefill_is_held_to_what_protected_decode_leaves() -> None:
    demands = [
        demand("a", 0.1, prefill=30.0, chunk=0.5, switch=0.1),
        demand("b", 0.1, prefill=10.0, chunk=0.5, switch=0.1),
    ]
    plan = plan_round(demands, TARGETS, switch_share=0.1)
    assert plan.length == pytest.approx(BOUND)
    assert plan.at_risk is None
    assert {share.protected for share in plan.shares.values()} == {16}
    # 8 - 0.2 - 3.2 = 4.6 s, of which each has its chunk and the rest goes as it is wanted.
    assert plan.shares["a"].prefill == pytest.approx(0.5 + 3.6 * 29.5 / 39)
    assert plan.shares["b"].prefill == pytest.approx(0.5 + 3.6 * 9.5 / 39)


def test_a_step_longer_than_the_cadence_is_at_risk_and_relaxed() -> None:
    plan = plan_round([demand("slow", 0.6), demand("a", 0.1)], TARGETS, switch_share=0.1)
    assert plan.at_risk == "slow"
    # 16 iterations of each would take 11.2 s: eleven take 7.7.
    assert {share.protected for share in plan.shares.values()} == {11}
    assert plan.length == pytest.approx(7.7)


def test_steps_that_together_exceed_the_cadence_are_at_risk() -> None:
    demands = [demand("a", 0.2), demand("b", 0.3), demand("c", 0.1)]
    plan = plan_round(demands, TARGETS, switch_share=0.1)
    assert plan.at_risk == "b"
    assert {share.protected for share in plan.shares.values()} == {13}


def test_switches_beyond_the_bound_leave_one_iteration_and_one_chunk_each() -> None:
    demands = [
        demand("a", 0.1, prefill=5.0, chunk=0.5, switch=1.0),
        demand("b", 0.1, prefill=5.0, chunk=0.5, switch=9.0),
    ]
    plan = plan_round(demands, TARGETS, switch_share=0.1)
    assert plan.at_risk == "b"
    for share in plan.shares.values():
        assert share.protected == 1
        assert share.prefill == pytest.approx(0.5)
    assert plan.length == pytest.approx(11.2)


def test_a_chunk_is_made_up_for_by_decode() -> None:
    plan = plan_round([demand("a", 0.025, prefill=0.6, chunk=0.6)], TARGETS, switch_share=0.1)
    # 0.6 s of prefill are two cadences of 0.5 s: two iterations make up for them.
    assert plan.shares["a"].protected == 2
    assert plan.length == pytest.approx(0.65)


def test_a_share_is_cut_to_what_others_left_of_the_bound() -> None:
    own = demand("a", 0.1, prefill=3.0, chunk=0.5)
    share = Share(prefill=3.0, protected=10, seconds=6.0)
    assert within(share, own, math.inf, due=0) == share
    assert within(share, own, 5.0, due=0) == Share(3.0, 10, 5.0)
    assert within(share, own, 2.5, due=0) == Share(pytest.approx(1.5), 10, pytest.approx(2.5))
    # Protected decode and a chunk stay, whatever that costs the others.
    assert within(share, own, -1.0, due=0) == Share(0.5, 10, pytest.approx(1.5))
    assert within(share, own, 5.0, due=25) == Share(pytest.approx(2.5), 25, pytest.approx(5.0))


steps = st.floats(0.001, 0.7)
demands = st.lists(
    st.builds(
        demand,
        name=st.uuids().map(str),
        step=steps,
        prefill=st.floats(0.0, 20.0),
        chunk=st.floats(0.01, 1.0),
        switch=st.floats(0.0, 1.0),
    ),
    min_size=1,
    max_size=5,
)


@given(demands)
def test_every_plan_keeps_the_equations_or_names_a_model(made: list[Demand]) -> None:
    plan = plan_round(made, TARGETS, switch_share=0.1)
    switches = sum(d.switch for d in made)
    slots = sum(share.seconds for share in plan.shares.values())
    # Eq. 3: the slots and switches are the round.
    assert slots + switches == pytest.approx(plan.length)
    for d in made:
        share = plan.shares[d.model]
        assert share.protected >= 1
        assert d.chunk - 1e-9 <= share.prefill <= d.prefill + 1e-9
        assert share.seconds >= share.prefill + share.protected * d.decode_step - 1e-9
        if plan.at_risk is None:
            # Eq. 4 with U = R - d t, and Eq. 5.
            other = plan.length - share.protected * d.decode_step
            assert share.protected * (TARGETS.tpot - d.decode_step) >= other - 1e-6
    if plan.at_risk is None:
        assert plan.length <= BOUND + 1e-9
    else:
        least = switches + sum(d.chunk for d in made)
        whole = sum(d.decode_step for d in made)
        # No whole number of iterations, up to the bound, makes a round.
        for d in range(1, math.ceil(BOUND / TARGETS.tpot) + 1):
            length = least + d * whole
            assert length > BOUND or d * TARGETS.tpot < length - 1e-6


@given(st.floats(0.0, 10.0), st.lists(steps, min_size=1, max_size=4))
def test_the_shortest_round_is_the_first_that_pays_its_iterations(
    other: float, times: list[float]
) -> None:
    found = shortest_round(other, times, TARGETS.tpot, BOUND)
    lengths = [other + d * sum(times) for d in range(1, 17)]
    fitting = [
        length
        for d, length in enumerate(lengths, 1)
        if length <= BOUND and d >= length / TARGETS.tpot - 1e-9
    ]
    assert (found is None) == (not fitting)
    if found is not None:
        assert found == pytest.approx(fitting[0])
