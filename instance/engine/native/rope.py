"""Rotary embeddings as values; no torch here."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Yarn:
    """How YaRN stretches a context of ``original`` positions ``factor`` times: pairs that turn
    more than ``beta_fast`` times in it stay, those that turn less than ``beta_slow`` times are
    slowed down by the factor, a ramp lies between (with ends at whole pairs if ``truncate``).
    Rotated vectors are ``magnitude`` times as long."""

    factor: float
    original: int
    beta_fast: float
    beta_slow: float
    magnitude: float
    truncate: bool


@dataclass(frozen=True, slots=True)
class Rope:
    """Pair i of ``dim / 2`` turns by position / theta ** (2i / dim), unless ``yarn`` says
    otherwise."""

    dim: int
    theta: float
    yarn: Yarn | None = None

    @property
    def ramp(self) -> tuple[float, float]:
        """First and last pair of YaRN's ramp."""
        assert self.yarn is not None
        first, last = map(self._turning, (self.yarn.beta_fast, self.yarn.beta_slow))
        if self.yarn.truncate:
            first, last = math.floor(first), math.ceil(last)
        return max(first, 0), min(last, self.dim - 1)

    def _turning(self, turns: float) -> float:
        """The pair that turns so often in the original context."""
        assert self.yarn is not None
        length = self.yarn.original / (turns * 2 * math.pi)
        return self.dim * math.log(length) / (2 * math.log(self.theta))


def yarn_magnitude(factor: float, weight: float) -> float:
    """By which YaRN lets scores grow with the length of the context."""
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0
