"""Seeded draws from the distributions that published percentiles describe.

Everything is drawn as a uniform number put through a quantile function, so that a draw depends on
the bit stream of the generator alone.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from math import exp, log
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_NORMAL = NormalDist()


def generator(seed: int, name: str) -> np.random.Generator:
    """The generator of a workload: equal seeds of two workloads have nothing in common."""
    return np.random.default_rng((seed, zlib.crc32(name.encode())))


def normals(rng: np.random.Generator, count: int) -> Floats:
    """(count,) standard normal draws."""
    # A uniform draw may be 0, which no normal number has as its share.
    return np.array([_NORMAL.inv_cdf(share or 0.5) for share in rng.random(count).tolist()])


def scores(rng: np.random.Generator, count: int) -> Floats:
    """(count,) standard normal draws, one from each of ``count`` equally likely parts, in random
    order: as few as ten have the spread of the distribution."""
    shares = (rng.permutation(count) + rng.random(count)) / count
    return np.array([_NORMAL.inv_cdf(share or 0.5 / count) for share in shares.tolist()])


def whole(values: Floats, low: int = 1, high: int | None = None) -> Ints:
    """Rounded, and within ``low`` and ``high``."""
    return np.clip(np.rint(values), low, high).astype(np.int64)


@dataclass(frozen=True, slots=True)
class LogNormal:
    """A quantity whose logarithm is normal; two percentiles fix it."""

    median: float
    sigma: float

    @classmethod
    def through(
        cls, first: float, second: float, shares: tuple[float, float] = (0.50, 0.95)
    ) -> LogNormal:
        """The one whose quantiles at ``shares`` are ``first`` and ``second``."""
        low, high = (_NORMAL.inv_cdf(share) for share in shares)
        sigma = log(second / first) / (high - low)
        return cls(first * exp(-sigma * low), sigma)

    def quantile(self, share: float) -> float:
        return self.median * exp(self.sigma * _NORMAL.inv_cdf(share))

    def of(self, normal: Floats) -> Floats:
        """What standard normal draws stand for."""
        return self.median * np.exp(self.sigma * normal)

    def draw(self, rng: np.random.Generator, count: int) -> Floats:
        """(count,)"""
        return self.of(normals(rng, count))
