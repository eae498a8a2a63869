"""Two configurations that served the same sessions, compared session by session.

Intervals are bootstrapped over sessions, each taken with everything that both configurations did
with it (all its calls, all repetitions), so that they tell what the choice of sessions could have
made of the estimate. Percentiles are by nearest rank; a ratio is the baseline's over the other's:
above 1 the other is faster.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from alipes.replay.reports.form import Interval

RESAMPLES: Final = 2_000
SEED: Final = 1
BySession = Mapping[str, Sequence[float]]


class Signs(msgspec.Struct, frozen=True):
    """Of ``pairs`` sessions so many that were faster, and slower, than with the baseline."""

    faster: int
    slower: int
    pairs: int


def percentile_ratio(
    base: BySession,
    other: BySession,
    percent: float,
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> Interval | None:
    """Percentile of all values of ``base`` over that of ``other``, over the sessions in which
    both have values; None where there is none or ``other`` has a percentile of 0."""
    shared = [name for name in base if base[name] and other.get(name)]
    if not shared:
        return None
    above, below = (_Pool([side[name] for name in shared]) for side in (base, other))
    ones = np.ones(len(shared), np.int64)
    bottom = below.percentile(ones, percent)
    if bottom == 0:
        return None
    rng = np.random.default_rng(seed)
    drawn = []
    for _ in range(resamples):
        picks = rng.integers(0, len(shared), len(shared))
        times = np.bincount(picks, minlength=len(shared))
        divisor = below.percentile(times, percent)
        drawn.append(above.percentile(times, percent) / divisor if divisor else math.inf)
    low, high = (_quantile(drawn, share) for share in (0.025, 0.975))
    return Interval(above.percentile(ones, percent) / bottom, low, high)


def signs(base: BySession, other: BySession) -> Signs:
    """By the mean of each session's values."""
    pairs = [
        (sum(base[name]) / len(base[name]), sum(other[name]) / len(other[name]))
        for name in base
        if base[name] and other.get(name)
    ]
    return Signs(
        sum(after < before for before, after in pairs),
        sum(after > before for before, after in pairs),
        len(pairs),
    )


class _Pool:
    """All values of all sessions in order, so that a resample is a weight for each session."""

    def __init__(self, sessions: Sequence[Sequence[float]]) -> None:
        values = np.concatenate([np.asarray(one, np.float64) for one in sessions])
        owner = np.repeat(np.arange(len(sessions)), [len(one) for one in sessions])
        order = np.argsort(values, kind="stable")
        self._values: NDArray[np.float64] = values[order]
        self._owner: NDArray[np.int64] = owner[order]

    def percentile(self, times: NDArray[np.int64], percent: float) -> float:
        """Nearest rank where session i is there ``times[i]`` times."""
        ranks = np.cumsum(times[self._owner])
        rank = max(1, math.ceil(percent / 100 * int(ranks[-1])))
        return float(self._values[np.searchsorted(ranks, rank)])


def _quantile(values: Sequence[float], share: float) -> float:
    """Nearest rank, for values that may be infinite."""
    ranked = sorted(values)
    return ranked[max(0, math.ceil(share * len(ranked)) - 1)]
