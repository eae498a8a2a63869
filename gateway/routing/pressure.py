"""What an instance's newest rounds could not do, as its counters tell (Talaria 3.4)."""

from __future__ import annotations

from alipes.gateway.routing.predict import MovingMeans
from alipes.instance.contract import Counters

NEWEST_ROUND = 0.5
"""Weight of the newest round: with it two rounds after a change three quarters of it count."""


class RoundPressure:
    """Follows the counters of one run of an instance from state to state."""

    def __init__(self) -> None:
        self._last: Counters | None = None
        self._shortfall = MovingMeans(NEWEST_ROUND)
        self._at_risk = False
        self._rounds = 0
        self._short: dict[str, float] = {}

    @property
    def at_risk(self) -> bool:
        """The bound of a round could not be met in the newest rounds."""
        return self._at_risk

    def shortfall(self, model: str) -> float:
        """Seconds of prefill of a model for which a round typically has no room."""
        return self._shortfall.of(model) or 0.0

    def observe(self, counters: Counters) -> None:
        """Totals of a newer state."""
        last, self._last = self._last, counters
        risks, rounds = sum(counters.deadline_risk.values()), counters.rounds - self._rounds
        if last is None:
            self._begin(counters)
            return
        if risks > sum(last.deadline_risk.values()):
            self._at_risk = True
        elif counters.rounds > last.rounds:
            self._at_risk = False
        if rounds > 0:
            self._average(counters, rounds)

    def _begin(self, counters: Counters) -> None:
        self._rounds, self._short = counters.rounds, dict(counters.shortfall)

    def _average(self, counters: Counters, rounds: int) -> None:
        for model in self._shortfall.known() | set(counters.shortfall):
            seconds = counters.shortfall.get(model, 0.0) - self._short.get(model, 0.0)
            self._shortfall.observe(model, seconds / rounds, rounds)
        self._begin(counters)
