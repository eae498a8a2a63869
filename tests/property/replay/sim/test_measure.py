"""The fit recovers the coefficients that timings were made of."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alipes.replay.sim.measure import Kind, Timing, fitted

FEATURES = st.tuples(
    st.just(1.0),
    st.integers(1, 1_000).map(float),
    st.integers(1, 1_000_000).map(float),
)
COEFFICIENTS = st.tuples(
    st.floats(1e-4, 1.0),
    st.just(0.0) | st.floats(1e-6, 1e-2),
    st.just(0.0) | st.floats(1e-9, 1e-5),
)


@given(st.lists(FEATURES, min_size=3, max_size=20), COEFFICIENTS)
def test_exact_timings_are_met(
    points: list[tuple[float, ...]], coefficients: tuple[float, ...]
) -> None:
    """Whether or not they tell the coefficients apart, the form says what was measured."""
    timings = [
        Timing("m", Kind.DECODE, features, float(np.dot(features, coefficients)))
        for features in points
    ]
    found = fitted(timings)
    assert all(value >= 0 for value in found.coefficients)
    assert found.error_p90 < 1e-6


@given(COEFFICIENTS)
def test_the_coefficients_come_back(coefficients: tuple[float, ...]) -> None:
    points = [(1.0, float(n), float(c)) for n in (1, 30, 500) for c in (10, 9_000, 700_000)]
    timings = [Timing("m", Kind.DECODE, p, float(np.dot(p, coefficients))) for p in points]
    found = fitted(timings).coefficients
    for value, wanted, largest in zip(found, coefficients, (1, 500, 700_000), strict=True):
        # What next to nothing comes from cannot be told exactly.
        assert value == pytest.approx(wanted, rel=1e-4, abs=1e-6 * coefficients[0] / largest)


@given(st.integers(0, 2**32 - 1))
def test_noisy_timings_are_met_on_average(seed: int) -> None:
    """Delays only ever add; the form says the mean, not the least."""
    rng = np.random.default_rng(seed)
    true = (0.004, 0.002, 1e-6)
    timings = []
    for calls in (1, 2, 4):
        for context in (100, 2_000, 8_000):
            features = (1.0, float(calls), float(context))
            for _ in range(40):
                seconds = float(np.dot(features, true)) * (0.9 + rng.exponential(0.1))
                timings.append(Timing("m", Kind.DECODE, features, seconds))
    found = fitted(timings).coefficients
    said = sum(float(np.dot(one.features, found)) for one in timings)
    assert said == pytest.approx(sum(one.seconds for one in timings), rel=0.01)


def test_nothing_cannot_be_fitted() -> None:
    with pytest.raises(ValueError, match="nothing was timed"):
        fitted([])
