"""What follows from an instance's counters, state by state."""

from __future__ import annotations

import pytest

from alipes.gateway.routing.pressure import RoundPressure
from alipes.instance.contract import Counters


def counters(rounds: int, short: float = 0.0, risks: int = 0) -> Counters:
    return Counters(rounds=rounds, shortfall={"a": short}, deadline_risk={"b": risks})


def test_totals_of_the_past_say_nothing() -> None:
    pressure = RoundPressure()
    pressure.observe(counters(90, 50.0, 7))
    assert pressure.shortfall("a") == 0
    assert not pressure.at_risk


def test_shortfall_is_averaged_over_rounds_the_newest_most() -> None:
    pressure = RoundPressure()
    pressure.observe(counters(1))
    pressure.observe(counters(3, 8.0))
    assert pressure.shortfall("a") == pytest.approx(4.0)
    pressure.observe(counters(4, 8.0))
    assert pressure.shortfall("a") == pytest.approx(2.0)
    pressure.observe(counters(6, 8.0))
    assert pressure.shortfall("a") == pytest.approx(0.5)
    assert pressure.shortfall("b") == 0


def test_shortfall_within_a_round_counts_with_its_end() -> None:
    pressure = RoundPressure()
    for state in (counters(1), counters(1, 3.0), counters(1, 5.0)):
        pressure.observe(state)
        assert pressure.shortfall("a") == 0
    pressure.observe(counters(2, 6.0))
    assert pressure.shortfall("a") == pytest.approx(6.0)


def test_risk_lasts_until_a_round_without() -> None:
    pressure = RoundPressure()
    seen = []
    for state in (counters(1), counters(1, 0, 1), counters(1, 0, 1), counters(3, 0, 2)):
        pressure.observe(state)
        seen.append(pressure.at_risk)
    assert seen == [False, True, True, True]
    pressure.observe(counters(4, 0, 2))
    assert not pressure.at_risk
