"""Non-negative fits of timings to a form, how sure each coefficient is, and what bounds a rate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from alipes.replay.stats import nearest_rank

Floats = NDArray[np.float64]

LEAST_SECONDS: Final = 1e-9
REWEIGHTED: Final = 5
SURE: Final = 2.0
"""Standard errors to each side that a coefficient may be off by."""


class Fit(msgspec.Struct, frozen=True):
    """Coefficients of a form and how far its ``samples`` lie from it, as parts of what was
    measured: at the median and the 90th percentile. ``deviations`` are the coefficients' standard
    errors, None of one that the samples do not tell apart from the others: what it multiplies
    varies with what those do, or there are too few samples."""

    coefficients: tuple[float, ...]
    samples: int
    error_p50: float
    error_p90: float
    deviations: tuple[float | None, ...]

    def range(self, place: int) -> tuple[float, float | None]:
        """What a coefficient may be, at least and at most; None where nothing bounds it."""
        value, deviation = self.coefficients[place], self.deviations[place]
        if deviation is None:
            return 0.0, None
        return max(0.0, value - SURE * deviation), value + SURE * deviation

    def told(self, place: int) -> bool:
        """Whether a coefficient can be told from 0."""
        return self.range(place)[0] > 0


def fit(features: Sequence[Sequence[float]], seconds: Sequence[float]) -> Fit:
    """Non-negative least squares of ``seconds = coefficients . features``, errors relative to what
    the form says, so that it gives the mean of noisy timings. Raises ValueError without any."""
    if not len(seconds):
        raise ValueError("nothing was timed")
    rows, took = np.array(features, float), np.maximum(np.array(seconds, float), LEAST_SECONDS)
    scale = np.maximum(rows.max(axis=0), 1.0)
    solution, typical = _solved(rows / scale, took, np.zeros_like(took))
    deviations = _deviations(rows / scale / typical[:, None], (took - typical) / typical)
    return _fit(
        solution / scale,
        took,
        typical,
        [None if d is None else d / s for d, s in zip(deviations, scale.tolist(), strict=True)],
    )


def with_slope(
    features: Sequence[Sequence[float]], seconds: Sequence[float], slope: float, found: Fit
) -> Fit:
    """The fit of ``(1, bytes)`` with this ``slope``, which the samples do not tell, instead of the
    one that was ``found``."""
    rows, took = np.array(features, float), np.maximum(np.array(seconds, float), LEAST_SECONDS)
    base, typical = _solved(rows[:, :1], took, rows[:, 1] * slope)
    return _fit(np.array([base[0], slope]), took, typical, (found.deviations[0], None))


def _solved(rows: Floats, seconds: Floats, fixed: Floats) -> tuple[Floats, Floats]:
    """Coefficients, beside ``fixed`` seconds of each sample, and what the form then says."""
    typical = seconds
    for _ in range(REWEIGHTED):
        solution, _ = nnls(rows / typical[:, None], (seconds - fixed) / typical)
        typical = np.maximum(rows @ solution + fixed, LEAST_SECONDS)
    return solution, typical


def _deviations(weighted: Floats, errors: Floats) -> list[float | None]:
    """Standard errors of the coefficients of a weighted least squares."""
    samples, places = weighted.shape
    if samples <= places:
        return [None] * places
    rank = np.linalg.matrix_rank(weighted)
    variance = float(errors @ errors) / (samples - places)
    spread = np.sqrt(variance * np.diag(np.linalg.pinv(weighted.T @ weighted)).clip(0.0))
    return [
        float(spread[place])
        if np.linalg.matrix_rank(np.delete(weighted, place, axis=1)) < rank
        else None
        for place in range(places)
    ]


def _fit(
    coefficients: Floats, seconds: Floats, typical: Floats, deviations: Sequence[float | None]
) -> Fit:
    errors: list[Any] = (np.abs(typical - seconds) / seconds).tolist()
    return Fit(
        tuple(coefficients.tolist()),
        len(errors),
        nearest_rank(errors, 50) or 0.0,
        nearest_rank(errors, 90) or 0.0,
        tuple(deviations),
    )
