"""What a model's work costs here: priors first, then fitted online to measured durations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy.optimize import nnls

from alipes.instance.contract import Estimate, ModelReport

FORGET: Final = 0.98
SMOOTHING: Final = 0.3
PRIOR_WEIGHT: Final = 0.05
REFIT_EVERY: Final = 8


@dataclass(frozen=True, slots=True)
class DeviceRates:
    """Rough rates from which priors are made: bytes a second read by a decode step, operations a
    second in a prefill, bytes a second copied by a switch."""

    memory: float
    compute: float
    copy: float


RATES: Final = {
    "cpu": DeviceRates(memory=8e9, compute=1e11, copy=3e9),
    "cuda": DeviceRates(memory=2e12, compute=2e14, copy=2e10),
}


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
        matrix = np.array(self._moments).reshape(size, size) + np.diag(weights)
        lower = np.linalg.cholesky(matrix)
        right = np.linalg.solve(lower, np.add(self._sums, weights * prior))
        solution, _ = nnls(lower.T, right)
        self._coefficients = tuple(
            float(value) / scale for value, scale in zip(solution, self._scale, strict=True)
        )
        self._stale = False


@dataclass(frozen=True, slots=True)
class Trial:
    """Measured seconds of one model: making it active; ``prefills`` as (tokens, seconds) of whole
    prompts; one decode iteration of one call with ``context`` tokens; ``restores`` as (tokens,
    seconds)."""

    model: str
    switch: float
    prefills: tuple[tuple[int, float], ...]
    context: int
    decode: float
    restores: tuple[tuple[int, float], ...]


@dataclass(slots=True)
class CostProfile:
    """The measured costs of one model, in seconds; see ``contract.Estimate`` for the forms.
    ``resume`` is what bringing the saved calls of a slot back takes."""

    prefill: LinearFit
    decode: LinearFit
    restore: LinearFit
    switch: Smoothed
    resume: Smoothed

    @classmethod
    def prior(cls, report: ModelReport, device: str, block_tokens: int) -> CostProfile:
        rates = RATES.get(device.partition(":")[0], RATES["cpu"])
        step = report.weight_bytes / rates.memory
        token = report.weight_bytes / rates.compute
        context = token / max(report.context, 1)
        return cls(
            prefill=LinearFit((step, token, context), (1.0, 512.0, 512.0 * 512.0)),
            decode=LinearFit((step, token, context / 8), (1.0, 8.0, 8192.0)),
            restore=LinearFit((0.0, report.block_bytes / block_tokens / rates.copy), (1.0, 512.0)),
            switch=Smoothed(report.weight_bytes / rates.copy),
            resume=Smoothed(0.0),
        )

    def learn(self, trial: Trial) -> None:
        self.switch.observe(trial.switch)
        for tokens, seconds in trial.prefills:
            self.prefill.observe((1.0, tokens, tokens * tokens), seconds)
        self.decode.observe((1.0, 1.0, trial.context), trial.decode)
        for tokens, seconds in trial.restores:
            self.restore.observe((1.0, tokens), seconds)

    @property
    def activation(self) -> float:
        """Making the model active and bringing its saved calls back."""
        return self.switch.value + self.resume.value

    def prefill_seconds(self, runs: float, tokens: int, token_positions: float) -> float:
        base, token, context = self.prefill.coefficients
        return runs * base + tokens * token + token_positions * context

    def decode_seconds(self, calls: int, context: int) -> float:
        base, call, position = self.decode.coefficients
        return base + calls * call + context * position

    def restore_seconds(self, restores: float, tokens: int) -> float:
        """Copying ``tokens`` from the host in so many goes; nothing for none."""
        base, token = self.restore.coefficients
        return restores * base + tokens * token

    def estimate(self) -> Estimate:
        prefill, decode = self.prefill.coefficients, self.decode.coefficients
        restore = self.restore.coefficients
        return Estimate(
            prefill_base=prefill[0],
            prefill_token=prefill[1],
            prefill_context=prefill[2],
            decode_base=decode[0],
            decode_call=decode[1],
            decode_context=decode[2],
            switch=self.activation,
            restore_base=restore[0],
            restore_token=restore[1],
            samples=self.prefill.samples + self.decode.samples + self.switch.samples,
        )
