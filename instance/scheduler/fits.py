"""Measured durations as a mean or a linear form, with priors that measurements replace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from scipy.optimize import nnls

FORGET: Final = 0.98
SMOOTHING: Final = 0.3
PRIOR_WEIGHT: Final = 0.05
LEAST_WEIGHT: Final = 1e-12
"""Of a prior, beside the history: where one error is beyond what the other can be told in, the
equations could not be solved."""
REFIT_EVERY: Final = 8


class Smoothed:
    """An exponentially weighted mean that the first measurement replaces."""

    def __init__(self, prior: float) -> None:
        self.value = prior
        self.samples = 0

    def observe(self, value: float, count: int = 1) -> None:
        """``count`` equal measurements."""
        gain = 1.0 - (1.0 - SMOOTHING) ** count if self.samples else 1.0
        self.value += gain * (value - self.value)
        self.samples += count


class LinearFit:
    """Non-negative least squares of ``y = theta . x`` with exponential forgetting, relative
    errors, and a prior that a few measurements outweigh. ``scale`` brings the features near 1."""

    def __init__(self, prior: Sequence[float], scale: Sequence[float]) -> None:
        size = len(prior)
        self._scale = tuple(scale)
        self._theta = [p * s for p, s in zip(prior, scale, strict=True)]
        # Normal equations of the weighted history, row-major.
        self._moments = [0.0] * (size * size)
        self._sums = [0.0] * size
        self._typical = Smoothed(0.0)
        self._coefficients = tuple(prior)
        self._stale = False

    @property
    def samples(self) -> int:
        return self._typical.samples

    @property
    def coefficients(self) -> tuple[float, ...]:
        if self._stale:
            self._solve()
        return self._coefficients

    def observe(self, features: Sequence[float], seconds: float, count: int = 1) -> None:
        """``count`` measurements with these means, one after another: they weigh as much, and as
        much is forgotten meanwhile."""
        forget = FORGET**count
        weight = (1.0 - forget) / (1.0 - FORGET) / max(seconds, 1e-6) ** 2
        x = [f / s for f, s in zip(features, self._scale, strict=True)]
        size = len(x)
        moments, sums = self._moments, self._sums
        for i in range(size):
            part = weight * x[i]
            for j in range(size):
                moments[i * size + j] = forget * moments[i * size + j] + part * x[j]
            sums[i] = forget * sums[i] + part * seconds
        self._typical.observe(seconds, count)
        self._stale |= self.samples <= REFIT_EVERY or self.samples % REFIT_EVERY < count

    def _solve(self) -> None:
        size = len(self._sums)
        prior = np.array(self._theta)
        # An error of the prior counts relative to it or to what is measured, the larger of both,
        # so that one which is far too small gives way as soon as one far too large.
        weights = PRIOR_WEIGHT / np.maximum(prior, max(self._typical.value, 1e-6)) ** 2
        moments = np.array(self._moments).reshape(size, size)
        weights = np.maximum(weights, LEAST_WEIGHT * np.trace(moments))
        matrix = moments + np.diag(weights)
        lower = np.linalg.cholesky(matrix)
        right = np.linalg.solve(lower, np.add(self._sums, weights * prior))
        solution, _ = nnls(lower.T, right)
        self._coefficients = tuple(
            float(value) / scale for value, scale in zip(solution, self._scale, strict=True)
        )
        self._stale = False
