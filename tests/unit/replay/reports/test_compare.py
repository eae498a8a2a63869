from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alipes.replay.compare import Signs, percentile_ratio, signs
from alipes.replay.stats import nearest_rank

VALUES = st.lists(st.floats(0.01, 100), min_size=1, max_size=5)
SESSIONS = st.dictionaries(st.sampled_from("abcdefgh"), VALUES, min_size=1)


def slow_ratio(
    base: dict[str, list[float]], other: dict[str, list[float]], percent: float, resamples: int
) -> tuple[float, float, float]:
    """Resamples written out: every drawn session brings all its values."""
    names = [name for name in base if name in other]

    def ratio(drawn: list[str]) -> float:
        top = nearest_rank([value for name in drawn for value in base[name]], percent)
        bottom = nearest_rank([value for name in drawn for value in other[name]], percent)
        assert top is not None
        assert bottom
        return top / bottom

    rng = np.random.default_rng(1)
    ratios = sorted(
        ratio([names[i] for i in rng.integers(0, len(names), len(names))]) for _ in range(resamples)
    )
    low, high = nearest_rank(ratios, 2.5), nearest_rank(ratios, 97.5)
    assert low is not None
    assert high is not None
    return ratio(names), low, high


@given(base=SESSIONS, other=SESSIONS, percent=st.sampled_from([5, 50, 95, 100]))
def test_ratio_is_that_of_resamples_written_out(
    base: dict[str, list[float]], other: dict[str, list[float]], percent: float
) -> None:
    found = percentile_ratio(base, other, percent, resamples=40)
    if not base.keys() & other.keys():
        assert found is None
        return
    assert found is not None
    assert (found.value, found.low, found.high) == slow_ratio(base, other, percent, 40)


@pytest.mark.parametrize("percent", [1, 50, 95, 100])
def test_many_values_in_several_blocks_give_the_same(percent: float) -> None:
    rng = np.random.default_rng(11)
    counts = rng.integers(1, 90, 12)
    base, other = (
        {
            str(i): rng.choice([0.5, 1.0, 2.0, 4.0, 8.0, 16.0], n).tolist()
            for i, n in enumerate(counts)
        }
        for _ in range(2)
    )
    found = percentile_ratio(base, other, percent, resamples=60)
    assert found is not None
    assert (found.value, found.low, found.high) == slow_ratio(base, other, percent, 60)


def test_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    rng, truth, trials = np.random.default_rng(7), 1.5, 150
    found = []
    for _ in range(trials):
        values = rng.lognormal(0, 0.3, (2, 30))
        base = {str(i): [truth * float(values[0, i])] for i in range(30)}
        other = {str(i): [float(values[1, i])] for i in range(30)}
        found.append(percentile_ratio(base, other, 50, resamples=300))
    intervals = [one for one in found if one is not None]
    assert len(intervals) == trials
    assert 0.9 <= sum(one.low <= truth <= one.high for one in intervals) / trials <= 0.99
    width = float(np.mean([one.high - one.low for one in intervals]))
    low, high = np.percentile([one.value for one in intervals], [2.5, 97.5])
    assert 0.85 <= width / (high - low) <= 1.25


def test_pairing_makes_the_interval_narrow() -> None:
    rng = np.random.default_rng(2)
    base = {str(i): [float(rng.lognormal(3, 1))] for i in range(30)}
    twice = {name: [value / 2 for value in values] for name, values in base.items()}
    found = percentile_ratio(base, twice, 50)
    assert found is not None
    assert (found.value, found.low, found.high) == (2.0, 2.0, 2.0)


def test_the_same_seed_gives_the_same_interval() -> None:
    rng = np.random.default_rng(3)
    base, other = ({str(i): rng.lognormal(size=9).tolist() for i in range(40)} for _ in range(2))
    assert percentile_ratio(base, other, 50) == percentile_ratio(base, other, 50)
    assert percentile_ratio(base, other, 50, seed=2) != percentile_ratio(base, other, 50)


@pytest.mark.parametrize(
    ("base", "other"), [({}, {}), ({"a": [1.0]}, {"b": [1.0]}), ({"a": []}, {"a": [1.0]})]
)
def test_nothing_shared_gives_no_ratio(
    base: dict[str, list[float]], other: dict[str, list[float]]
) -> None:
    assert percentile_ratio(base, other, 50) is None
    assert signs(base, other) == Signs(0, 0, 0)


def test_a_percentile_of_nothing_at_all_is_no_divisor() -> None:
    assert percentile_ratio({"a": [1.0]}, {"a": [0.0]}, 50) is None
    mixed = percentile_ratio({"a": [1.0], "b": [1.0]}, {"a": [0.0], "b": [1.0]}, 100)
    assert mixed is not None
    assert mixed.high == math.inf


@given(base=SESSIONS, other=SESSIONS)
def test_signs_count_means_of_sessions(
    base: dict[str, list[float]], other: dict[str, list[float]]
) -> None:
    told = signs(base, other)
    shared = base.keys() & other.keys()
    assert told.pairs == len(shared)
    assert told.faster == sum(float(np.mean(other[n]) < np.mean(base[n])) for n in shared)
    assert told.slower == signs(other, base).faster
