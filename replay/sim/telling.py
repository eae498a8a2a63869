"""Measured numbers of a profile: how they came about, between what they lie, what is assumed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from alipes.replay.sim.fitting import Fit
from alipes.replay.sim.hardware import Quantity
from alipes.replay.stats import nearest_rank

DIGITS: Final = 6
USUAL: Final = (10, 90)
"""Percentiles between which most of what was measured lies."""
BOUNDED: Final = "the samples do not tell it; no faster than the fastest copies that were timed"
TOGETHER: Final = "the samples do not tell it apart from the others"
NOTHING: Final = "the samples do not tell it from 0"


@dataclass(frozen=True, slots=True)
class Teller:
    """``how`` it was measured: when and on what."""

    how: str

    def times(self, seconds: Sequence[float]) -> Quantity:
        """The median, and between what most were."""
        low, high = (nearest_rank(seconds, percent) or 0.0 for percent in USUAL)
        return _ranged(median(seconds), low, high, self._source(len(seconds)))

    def coefficient(self, found: Fit, place: int) -> Quantity:
        """Of a fit; it says so where the samples do not tell it."""
        low, high = found.range(place)
        untold = TOGETHER if found.deviations[place] is None else NOTHING
        assumed = "" if found.told(place) else untold
        source = self._source(found.samples)
        return _ranged(found.coefficients[place], low, high or 0.0, source, assumed)

    def rate(self, found: Fit) -> Quantity:
        """Bytes a second, of a fit to (1, bytes)."""
        least, most = found.range(1)
        low, high = (1.0 / slope if slope else 0.0 for slope in (most, least))
        assumed = "" if found.told(1) else BOUNDED
        source = self._source(found.samples)
        return _ranged(1.0 / found.coefficients[1], low, high, source, assumed)

    def _source(self, samples: int) -> str:
        return f"{self.how}, {samples} samples"


def _ranged(value: float, low: float, high: float, source: str, assumed: str = "") -> Quantity:
    """With the ends of its range where they differ from it."""
    value, low, high = (float(f"{number:.{DIGITS}g}") for number in (value, low, high))
    ends = (low if low < value else 0.0, high if high > value else 0.0)
    return Quantity(value, source, assumed, *ends)
