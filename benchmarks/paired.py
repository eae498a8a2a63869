"""Two configurations that served the same sessions, compared session by session.

Intervals are bootstrapped over sessions, each taken with what both configurations did with it,
so that they tell what the choice of sessions could have made of the estimate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from alipes.replay.stats import nearest_rank

RESAMPLES: Final = 2_000
SEED: Final = 1
Picks = NDArray[np.int64]
BySession = Mapping[str, Sequence[float]]


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and its 95 % bootstrap interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


def session_ratio(base: BySession, other: BySession, percent: float) -> Interval:
    """Percentile over sessions of ``base / other``. A session's value is the mean of those that
    it has, one for each repetition."""
    ratios = paired_ratios(base, other)
    return _bootstrap(len(ratios), lambda picks: _ranked(ratios[picks], percent))


def paired_ratios(base: BySession, other: BySession) -> NDArray[np.float64]:
    """``base / other`` for each session, in the order of ``base``. Raises ValueError unless both
    have the same sessions."""
    _check(base, other)
    return np.array([np.mean(base[name]) / np.mean(other[name]) for name in base])


def percentile_ratio(base: BySession, other: BySession, percent: float) -> Interval:
    """Percentile of all values of ``base`` over that of ``other``."""
    _check(base, other)
    above, below = ([np.asarray(side[name]) for name in base] for side in (base, other))

    def statistic(picks: Picks) -> float:
        top, bottom = (np.concatenate([side[i] for i in picks]) for side in (above, below))
        return _ranked(top, percent) / _ranked(bottom, percent)

    return _bootstrap(len(above), statistic)


def _check(base: BySession, other: BySession) -> None:
    if base.keys() != other.keys():
        raise ValueError(f"not the same sessions: {sorted(base.keys() ^ other.keys())}")


def _ranked(values: NDArray[np.float64], percent: float) -> float:
    value = nearest_rank(values.tolist(), percent)
    assert value is not None
    return value


def _bootstrap(count: int, statistic: Callable[[Picks], float]) -> Interval:
    rng = np.random.default_rng(SEED)
    drawn = [statistic(rng.integers(0, count, count)) for _ in range(RESAMPLES)]
    low, high = np.percentile(drawn, [2.5, 97.5])
    return Interval(statistic(np.arange(count)), float(low), float(high))
