"""Placement policies to compare with (Talaria 5.3). They pass the same admission checks, but
weigh neither where models and KV are nor what a further replica costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from alipes.gateway.routing.choice import CallsOn, fewest_calls
from alipes.gateway.routing.decision import CallShape, Candidate, Policy, Why


class Baseline(Protocol):
    def choose(
        self, call: CallShape, candidates: Sequence[Candidate], calls_on: CallsOn
    ) -> Candidate | None:
        """Where the call goes, None when it has to wait."""
        ...

    def forget(self, branch: bytes) -> None: ...


class LeastPressure:
    """The instance with the fewest calls."""

    def choose(
        self, call: CallShape, candidates: Sequence[Candidate], calls_on: CallsOn
    ) -> Candidate | None:
        return fewest_calls(candidates, calls_on)

    def forget(self, branch: bytes) -> None:
        """Nothing is kept."""


class SessionSticky:
    """A branch stays where its first call went while that instance is well, however long the
    queue there is; its first goes to the instance with the fewest calls."""

    def __init__(self) -> None:
        self._pins: dict[bytes, str] = {}

    def choose(
        self, call: CallShape, candidates: Sequence[Candidate], calls_on: CallsOn
    ) -> Candidate | None:
        pin = self._pins.get(call.branch)
        for candidate in candidates:
            if candidate.instance != pin:
                continue
            if candidate.admitted or candidate.why in (Why.ROUND, Why.MEMORY):
                return candidate
            if candidate.why.busy:
                return None
        best = fewest_calls(candidates, calls_on)
        if best is not None and call.branch:
            self._pins[call.branch] = best.instance
        return best

    def forget(self, branch: bytes) -> None:
        self._pins.pop(branch, None)


def baseline(policy: Policy) -> Baseline | None:
    """None for the router's own policy."""
    match policy:
        case "least-pressure":
            return LeastPressure()
        case "session-sticky":
            return SessionSticky()
        case "residency":
            return None
