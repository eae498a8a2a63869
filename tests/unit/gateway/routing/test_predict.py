"""Predictions against sums written out, and Talaria Eq. 4 solved by hand."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alipes.gateway.routing.predict import (
    MovingMeans,
    OutputLengths,
    backlog_seconds,
    decode_step,
    predict_round,
    prefill_seconds,
    restore_seconds,
)
from alipes.instance.contract import Estimate, Load, Targets

COST = Estimate(0.01, 0.001, 1e-6, 0.02, 0.005, 1e-5, 0.5, 0.0, 0.0, 9)
FLAT = Estimate(0.0, 0.001, 0.0, 0.05, 0.0, 0.0, 0.5, 0.0, 0.0, 9)
TARGETS = Targets(ttft=10.0, tpot=0.5, gamma=0.8)


@given(tokens=st.integers(0, 5000), chunk=st.integers(1, 700), start=st.integers(0, 9000))
def test_prefill_is_the_sum_of_its_chunks(tokens: int, chunk: int, start: int) -> None:
    total, end = 0.0, start
    while end < start + tokens:
        step = min(chunk, start + tokens - end)
        end += step
        total += COST.prefill_base + step * COST.prefill_token + step * end * COST.prefill_context
    assert prefill_seconds(COST, tokens, chunk, start) == pytest.approx(total)


def test_only_what_is_copied_costs_a_restore() -> None:
    cost = Estimate(0, 0, 0, 0, 0, 0, 0, 0.5, 0.001, 1)
    assert restore_seconds(cost, 0) == 0
    assert restore_seconds(cost, 640) == pytest.approx(0.5 + 0.64)
    assert restore_seconds(cost, 640, copies=3) == pytest.approx(1.5 + 0.64)


def test_a_mean_of_several_values_at_once_is_that_of_one_after_another() -> None:
    together, apart = MovingMeans(0.25), MovingMeans(0.25)
    for means in (together, apart):
        means.observe("a", 8.0)
    together.observe("a", 2.0, times=3)
    for _ in range(3):
        apart.observe("a", 2.0)
    assert together.of("a") == pytest.approx(apart.of("a"))
    assert together.of("b") is None
    assert together.known() == {"a"}


def test_held_seconds_are_in_the_round_and_leave_less_for_prefill() -> None:
    loads = {"a": Load(1, 1000, 0, 0, 0), "b": Load(0, 0, 1, 50, 50)}
    costs = dict.fromkeys("ab", FLAT)
    free = predict_round(loads, costs, "a", TARGETS, 512, 16)
    held = predict_round(loads, costs, "a", TARGETS, 512, 16, held=0.4)
    assert held.length == pytest.approx(free.length + 0.4 / 0.8)
    assert held.budget == pytest.approx(free.budget - 0.4)


def test_decode_step_counts_calls_and_context() -> None:
    assert decode_step(COST, 0, 100) == 0
    assert decode_step(COST, 3, 1000) == pytest.approx(0.02 + 3 * 0.005 + 1000 * 1e-5)


def test_a_round_of_two_models() -> None:
    """Prefill 1 s, two switches of 0.5 s, decode steps of 0.05 s each in 0.5 s: R = 2 / 0.8."""
    loads = {"a": Load(1, 1000, 0, 0, 0), "b": Load(0, 0, 1, 50, 50), "c": Load()}
    costs = dict.fromkeys("abc", FLAT)
    predicted = predict_round(loads, costs, "a", TARGETS, 512, 16)
    assert predicted.length == pytest.approx(2.5)
    assert predicted.budget == pytest.approx(8 * 0.8 - 1)


def test_one_model_that_is_active_never_switches() -> None:
    loads = {"a": Load(1, 900, 0, 0, 0)}
    assert predict_round(loads, {"a": FLAT}, "a", TARGETS, 512, 16).length == pytest.approx(1.0)
    assert predict_round(loads, {"a": FLAT}, "b", TARGETS, 512, 16).length > 1.5


def test_there_is_no_round_when_decode_steps_alone_take_the_cadence() -> None:
    slow = Estimate(0, 0, 0, 0.25, 0, 0, 0, 0.0, 0.0, 1)
    loads = {"a": Load(0, 0, 1, 1, 1), "b": Load(0, 0, 1, 1, 1)}
    predicted = predict_round(loads, {"a": slow, "b": slow}, "a", TARGETS, 512, 16)
    assert predicted.length == inf


def test_prompts_beyond_a_round_count_as_one_chunk_each() -> None:
    """Two prompts of 20 s each are 2 x 0.512 s of every round: R = (1.024) / 0.9."""
    loads = {"a": Load(2, 40_000, 0, 0, 0)}
    predicted = predict_round(loads, {"a": FLAT}, "a", TARGETS, 512, 16)
    assert predicted.length == pytest.approx(1.024 / 0.9)


def test_backlog_serves_one_model_after_another() -> None:
    loads = {"a": Load(0, 0, 2, 10, 40), "b": Load(1, 1000, 0, 0, 0), "c": Load(0, 0, 1, 1, 1)}
    seconds = backlog_seconds(loads, {"a": FLAT, "b": FLAT}, "a", 512, 2)
    assert seconds == pytest.approx(20 * 0.05 + 1.0 + 0.5)


def test_output_lengths_follow_what_finishes() -> None:
    lengths = OutputLengths(weight=0.5)
    assert lengths.predicted("a", 700) == 700
    lengths.finished("a", 100)
    lengths.finished("a", 50)
    assert lengths.predicted("a", 700) == 75
    assert lengths.predicted("a", 30) == 30
    assert lengths.predicted("b", 700) == 700
