from __future__ import annotations

import pytest

from alipes.instance.scheduler.returns import DEPARTURES, Returns, best_wait

SECOND = 1_000_000_000


def gone_for(*gaps: float) -> Returns:
    """Branches that left at 0 and came back after so many seconds."""
    returns = Returns()
    for number, gap in enumerate(gaps):
        branch = b"past %d" % number
        returns.departed(branch, 0)
        returns.arrived(branch, int(gap * SECOND))
    return returns


def test_the_gain_is_what_each_possible_return_saves_times_its_probability() -> None:
    returns = gone_for(0.5, 1.0, 3.0, 9.0)
    returns.departed(b"out", 100 * SECOND)
    gains = returns.gains(100 * SECOND, 100 * SECOND, value=4.0)
    assert gains == [(0.5, 3.5 / 4), (1.0, 3.0 / 4), (3.0, 1.0 / 4)]
    # After 0.7 s away the shortest gap is out of the question.
    gains = returns.gains(100 * SECOND, int(100.7 * SECOND), value=4.0)
    assert [after for after, _ in gains] == pytest.approx([0.3, 2.3])
    assert [gain for _, gain in gains] == pytest.approx([3.7 / 3, 1.7 / 3])


def test_sessions_that_never_came_back_count() -> None:
    returns = gone_for(0.5)
    for number in range(3):
        returns.departed(b"lost %d" % number, 0)
    returns.departed(b"out", 100 * SECOND)
    assert returns.gains(100 * SECOND, 100 * SECOND, value=1.5) == [(0.5, 1.0 / 4)]


def test_only_those_that_left_in_this_slot_are_waited_for() -> None:
    returns = gone_for(0.5)
    returns.departed(b"out", 99 * SECOND)
    assert returns.gains(100 * SECOND, 100 * SECOND, value=4.0) == []


def test_without_measured_gaps_nothing_is_gained() -> None:
    returns = Returns()
    returns.departed(b"a", 0)
    returns.departed(b"b", 0)
    assert returns.gains(0, SECOND, value=10.0) == []


def test_a_branch_that_left_again_is_out_once() -> None:
    returns = gone_for(2.0)
    returns.departed(b"out", 0)
    returns.departed(b"out", SECOND)
    assert returns.gains(0, SECOND, value=10.0) == [(2.0, 8.0)]
    returns.arrived(b"out", 2 * SECOND)
    returns.arrived(b"out", 3 * SECOND)
    assert returns.gains(0, 3 * SECOND, value=10.0) == []


def test_what_is_remembered_is_bounded() -> None:
    returns = Returns()
    for number in range(10 * DEPARTURES):
        returns.departed(number.to_bytes(4), number)
    assert len(returns._departures) == len(returns._out) == DEPARTURES
    returns.arrived((0).to_bytes(4), SECOND)
    assert len(returns._out) == DEPARTURES


def test_the_best_wait_weighs_gains_against_all_who_wait() -> None:
    gains = [(0.5, 2.0), (1.0, 1.0), (4.0, 1.0)]
    # Net of one waiting call: 1.5, 2.0, 0.0; of three: 0.5, 0.0, -8.0; of five: none is positive.
    assert best_wait(gains, waiting=1, limit=9.0) == 1.0
    assert best_wait(gains, waiting=3, limit=9.0) == 0.5
    assert best_wait(gains, waiting=5, limit=9.0) == 0.0
    assert best_wait(gains, waiting=1, limit=0.9) == 0.5
    assert best_wait(gains, waiting=1, limit=0.4) == 0.0
    assert best_wait([], waiting=1, limit=9.0) == 0.0


def test_the_chance_of_a_return_is_that_of_those_that_were_away_for_longer() -> None:
    returns = gone_for(0.5, 1.0, 3.0, 9.0)
    assert returns.chance(100 * SECOND, 4.0) == 0.0
    returns.departed(b"out", 100 * SECOND)
    assert returns.chance(100 * SECOND, 4.0) == 3 / 4
    assert returns.chance(100 * SECOND, float("inf")) == 1.0
    # After 2 s away, those two that were away for longer count, and one of them is soon back.
    assert returns.chance(102 * SECOND, 4.0) == 1 / 2
    assert returns.chance(110 * SECOND, 4.0) == 0.0
    returns.departed(b"other", 110 * SECOND)
    # It is one of two, and the first one has been away for longer than any of the others.
    assert returns.chance(110 * SECOND, 0.6) == pytest.approx((1 / 5 + 0) / 2)


def test_nothing_is_known_of_the_first_departure() -> None:
    returns = Returns()
    returns.departed(b"first", 0)
    assert returns.chance(SECOND, 1.0) == 1.0
