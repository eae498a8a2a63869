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
from alipes.replay.stats import nearest_rank

RESAMPLES: Final = 2_000
SEED: Final = 1
BATCH: Final = 1 << 22
"""Numbers of all resamples that are held at a time, to bound memory."""
LEAST_BLOCK: Final = 64
MOST_BLOCKS: Final = 256
Floats = NDArray[np.float64]
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
    once = np.ones((1, len(shared)), np.int64)
    top, bottom = above.percentiles(once, percent), below.percentiles(once, percent)
    if bottom[0] == 0:
        return None
    rng = np.random.default_rng(seed)
    ratios = []
    for begin in range(0, resamples, batch := max(1, BATCH // max(above.width, below.width))):
        picks = rng.integers(0, len(shared), (min(batch, resamples - begin), len(shared)))
        times = np.stack([np.bincount(row, minlength=len(shared)) for row in picks])
        ratios.append(_over(above.percentiles(times, percent), below.percentiles(times, percent)))
    ranked = np.sort(np.concatenate(ratios)).tolist()
    low, high = (nearest_rank(ranked, percent) for percent in (2.5, 97.5))
    assert low is not None
    assert high is not None
    return Interval(float(top[0] / bottom[0]), low, high)


def _over(top: Floats, bottom: Floats) -> Floats:
    """Infinite where a resample has nothing to divide by."""
    return np.divide(top, bottom, out=np.full_like(top, math.inf), where=bottom > 0)


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
    """All values of all sessions in order, so that a resample is a weight for each session. They
    lie in blocks: the weights of whole blocks find the one to look into."""

    def __init__(self, sessions: Sequence[Sequence[float]]) -> None:
        values = np.concatenate([np.asarray(one, np.float64) for one in sessions])
        owner = np.repeat(np.arange(len(sessions)), [len(one) for one in sessions])
        order = np.argsort(values, kind="stable")
        self._block = max(LEAST_BLOCK, -(-len(values) // MOST_BLOCKS))
        blocks = -(-len(values) // self._block)
        padding = blocks * self._block - len(values)
        # What fills the last block belongs to a session of no weight.
        self._values: Floats = np.pad(values[order], (0, padding))
        self._owner = np.pad(owner[order], (0, padding), constant_values=len(sessions))
        self._counts: Floats = np.zeros((len(sessions), blocks))
        np.add.at(self._counts, (owner[order], np.arange(len(values)) // self._block), 1)
        self.width = max(self._block, *self._counts.shape)

    def percentiles(self, times: NDArray[np.int64], percent: float) -> Floats:
        """(resamples,) nearest ranks where session i is there ``times[resample, i]`` times."""
        ranks = np.cumsum(times @ self._counts, axis=1)
        wanted = np.array([[max(1, math.ceil(percent / 100 * all_))] for all_ in ranks[:, -1]])
        block = np.argmax(ranks >= wanted, axis=1)[:, None]
        before = np.take_along_axis(np.pad(ranks, ((0, 0), (1, 0))), block, axis=1)
        inside = block * self._block + np.arange(self._block)
        weights = np.take_along_axis(np.pad(times, ((0, 0), (0, 1))), self._owner[inside], axis=1)
        place = np.argmax(before + np.cumsum(weights, axis=1) >= wanted, axis=1)
        found: Floats = self._values[block[:, 0] * self._block + place]
        return found
