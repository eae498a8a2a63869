"""Two configurations that served the same sessions, compared session by session."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

RESAMPLES: Final = 10_000
SEED: Final = 1
Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and its 95 % bootstrap interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


def ranked(values: Values, percent: float) -> Values:
    """Nearest-rank percentile along the last axis."""
    place = max(0, int(np.ceil(percent / 100 * values.shape[-1])) - 1)
    return np.asarray(np.sort(values, axis=-1)[..., place])


def ratio(
    base: Mapping[str, Sequence[float]], other: Mapping[str, Sequence[float]], percent: float
) -> Interval:
    """Percentile over sessions of ``base / other``; each session's value is the mean over its
    repetitions. The interval resamples sessions, each with both of its values, so that it tells
    of the workload's spread; raises ValueError unless both served the same sessions."""
    return _interval(paired_ratios(base, other), lambda v: ranked(v, percent))


def paired_ratios(
    base: Mapping[str, Sequence[float]], other: Mapping[str, Sequence[float]]
) -> Values:
    """``base / other`` for each session, in the order of ``base``."""
    if base.keys() != other.keys():
        raise ValueError(f"not the same sessions: {sorted(base.keys() ^ other.keys())}")
    return np.array([np.mean(base[name]) / np.mean(other[name]) for name in base])


def difference(base: Values, other: Values, percent: float) -> Interval:
    """Percentile of ``base`` less that of ``other``, both (n,) and resampled together."""
    both = np.stack([base, other])
    return _interval(both, lambda v: ranked(v[..., 0, :], percent) - ranked(v[..., 1, :], percent))


def _interval(values: Values, statistic: Callable[[Values], Values]) -> Interval:
    """``values`` is (..., n); samples are drawn with replacement along the last axis."""
    picks = np.random.default_rng(SEED).integers(0, values.shape[-1], (RESAMPLES, values.shape[-1]))
    drawn = np.moveaxis(values[..., picks], -2, 0)
    low, high = np.percentile(statistic(drawn), [2.5, 97.5])
    return Interval(float(statistic(values)), float(low), float(high))
