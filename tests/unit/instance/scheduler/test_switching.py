from __future__ import annotations

import pytest

from alipes.instance.engine.protocol import SwitchReport
from alipes.instance.scheduler.switching import SwitchCosts

WEIGHTS = 1_000_000
HOST = 2e-6
"""Seconds of one byte from the host; those on the device cost half a second, all together."""


def report(staged: int) -> SwitchReport:
    host = WEIGHTS - staged
    path = "h2d" if not staged else "partial" if host else "remap"
    return SwitchReport(0.5 + host * HOST, path=path, h2d_bytes=host, mapped_bytes=staged)


def measured(*staged: int) -> SwitchCosts:
    costs = SwitchCosts(WEIGHTS, host_rate=1e9)
    for size in staged:
        costs.observe(report(size))
    return costs


def test_the_prior_gives_way_to_what_was_measured() -> None:
    costs = SwitchCosts(WEIGHTS, host_rate=1e6)
    assert (costs.seconds, costs.samples) == (1.0, 0)
    for _ in range(20):
        costs.observe(SwitchReport(3.0, h2d_bytes=WEIGHTS))
    assert costs.seconds == pytest.approx(3.0, rel=0.01)


def test_what_is_staged_is_not_loaded() -> None:
    costs = measured(*[0, WEIGHTS // 2, WEIGHTS] * 20)
    for staged in (0, WEIGHTS // 4, WEIGHTS):
        # No more than is there will come, so that what is usual does not count.
        costs.staged(max(staged, 0))
        expected = report(max(staged, round(costs.covered))).seconds
        assert costs.seconds == pytest.approx(expected, rel=0.02)
    assert costs.byte_seconds == pytest.approx(HOST, rel=0.02)


def test_as_much_as_usual_is_expected_where_there_is_room() -> None:
    costs = measured(*[WEIGHTS] * 8)
    costs.staged(0, room=WEIGHTS)
    assert costs.covered == pytest.approx(WEIGHTS)
    costs.staged(100, room=200)
    assert costs.covered == 300
    costs.staged(None)
    assert costs.covered == pytest.approx(WEIGHTS)
    rare = measured(*[0] * 8)
    rare.staged(700, room=WEIGHTS)
    assert rare.covered == 700


def test_what_goes_by_around_it_counts_whatever_the_weights_take() -> None:
    costs = measured(*[0] * 8)
    weights = costs.weights_seconds
    costs.turned(0.25)
    assert costs.seconds == weights + 0.25
    assert costs.weights_seconds == weights


def test_a_model_that_was_active_already_tells_nothing_of_weights() -> None:
    costs = measured(0)
    before = costs.seconds
    costs.observe(SwitchReport())
    assert (costs.seconds, costs.samples) == (before, 1)
