"""Fits of timings: what they say of each coefficient, and what they cannot."""

from __future__ import annotations

import numpy as np
import pytest

from alipes.replay.sim.fitting import SURE, fit, with_slope


def test_errors_are_parts_of_what_was_measured() -> None:
    found = fit([(1.0, 0.0)] * 4, [1.0, 1.0, 1.0, 2.0])
    assert found.coefficients[0] == pytest.approx(1.25)
    assert (found.samples, found.error_p50) == (4, pytest.approx(0.25))
    assert found.error_p90 == pytest.approx(0.375)


def test_nothing_is_no_fit() -> None:
    with pytest.raises(ValueError, match="nothing was timed"):
        fit([], [])


def test_deviations_are_those_of_repeated_fits() -> None:
    generator = np.random.default_rng(2)
    rows = [(1.0, float(n)) for n in range(1, 41)]
    fits = [
        fit(rows, [(2.0 + 0.5 * n) * generator.normal(1, 0.05) for _, n in rows])
        for _ in range(200)
    ]
    for place, true in enumerate((2.0, 0.5)):
        values = np.array([one.coefficients[place] for one in fits])
        deviations = [one.deviations[place] or 0.0 for one in fits]
        assert np.mean(deviations) == pytest.approx(values.std(), rel=0.2)
        held = [one.range(place)[0] <= true <= (one.range(place)[1] or 0.0) for one in fits]
        assert np.mean(held) > 0.9


@pytest.mark.parametrize(
    ("rows", "untold"),
    [
        ([(1.0, 3.0), (1.0, 4.0)], {0, 1}),
        ([(1.0, 3.0)] * 5, {0, 1}),
        ([(1.0, 1.0, 5.0), (1.0, 1.0, 9.0), (1.0, 1.0, 2.0), (1.0, 1.0, 3.0)], {0, 1}),
        ([(1.0, 2.0, 5.0), (1.0, 1.0, 9.0), (1.0, 4.0, 2.0), (1.0, 1.0, 3.0)], set()),
    ],
)
def test_what_does_not_vary_by_itself_is_not_told(
    rows: list[tuple[float, ...]], untold: set[int]
) -> None:
    found = fit(rows, [sum(row) for row in rows])
    assert {place for place, d in enumerate(found.deviations) if d is None} == untold
    assert all(found.range(place) == (0.0, None) for place in untold)


def test_noise_is_not_told_from_nothing() -> None:
    generator = np.random.default_rng(3)
    rows = [(1.0, float(n)) for n in range(30)]
    found = fit(rows, generator.normal(5.0, 0.5, 30).tolist())
    assert found.told(0)
    assert not found.told(1)
    low, high = found.range(1)
    assert low == 0
    assert high == found.coefficients[1] + SURE * (found.deviations[1] or 0.0) > 0


def test_a_slope_that_is_given_leaves_the_rest_to_the_base() -> None:
    rows = [(1.0, 10.0), (1.0, 30.0), (1.0, 20.0)]
    found = with_slope(rows, [7.0, 9.0, 8.0], 0.1, fit(rows, [7.0, 9.0, 8.0]))
    assert found.coefficients == (pytest.approx(6.0), 0.1)
    assert found.error_p90 == pytest.approx(0.0, abs=1e-9)
    assert found.deviations[1] is None
    steep = with_slope(rows, [7.0, 9.0, 8.0], 2.0, found)
    assert steep.coefficients == (0.0, 2.0)
