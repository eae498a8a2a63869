from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture
def paired(script: Callable[[str], ModuleType]) -> Any:
    return script("paired")


def test_ratios_are_of_the_same_session_and_of_means_over_repetitions(paired: Any) -> None:
    base = {"a": [2.0, 4.0], "b": [10.0, 10.0], "c": [9.0, 9.0]}
    other = {"b": [2.0], "a": [3.0], "c": [3.0]}
    assert paired.paired_ratios(base, other).tolist() == [1.0, 5.0, 3.0]
    assert paired.session_ratio(base, other, 50).value == 3.0
    assert paired.session_ratio(base, other, 95).value == 5.0


def test_an_interval_holds_the_estimate_and_is_the_same_every_time(paired: Any) -> None:
    base = {str(i): [float(i + 1)] for i in range(20)}
    other = {str(i): [1.0] for i in range(20)}
    found = paired.session_ratio(base, other, 50)
    assert found == paired.session_ratio(base, other, 50)
    assert 1 < found.low < found.value == 10 < found.high < 20


def test_equal_sessions_leave_no_doubt(paired: Any) -> None:
    base, other = ({str(i): [value] for i in range(5)} for value in (6.0, 2.0))
    assert paired.session_ratio(base, other, 50) == paired.Interval(3.0, 3.0, 3.0)
    assert str(paired.session_ratio(base, other, 50)) == "3.00 [3.00, 3.00]"


def test_percentiles_of_calls_are_over_all_sessions(paired: Any) -> None:
    base = {"a": [1.0, 8.0], "b": [2.0, 3.0]}
    other = {"a": [1.0, 2.0], "b": [1.0, 4.0]}
    assert paired.percentile_ratio(base, other, 100).value == 8 / 4
    assert paired.percentile_ratio(base, other, 50).value == 2 / 1


def test_other_sessions_cannot_be_compared(paired: Any) -> None:
    with pytest.raises(ValueError, match=r"not the same sessions: \['b'\]"):
        paired.session_ratio({"a": [1.0], "b": [1.0]}, {"a": [1.0]}, 50)
