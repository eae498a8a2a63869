"""Placement policies to compare with (Talaria 5.3). They pass the same admission checks, but
weigh neither where models and KV are nor what a further replica costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from alipes.gateway.routing.choice import CallsOn, fewest_calls
from alipes.gateway.routing.decision import CallShape, Candidate, Policy

CACHE_THRESHOLD: Final = 0.3
BALANCE_CALLS: Final = 64
BALANCE_RATIO: Final = 1.5
"""The SGLang gateway's defaults (its documentation of the cache-aware policy)."""


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
            if candidate.admitted or candidate.why.can_wait_there:
                return candidate
            if candidate.why.busy:
                return None
        best = fewest_calls(candidates, calls_on)
        if best is not None and call.branch:
            self._pins[call.branch] = best.instance
        return best

    def forget(self, branch: bytes) -> None:
        self._pins.pop(branch, None)


class CacheAware:
    """The SGLang gateway's policy, as we understand it: the instance with the longest cached
    beginning of the prompt, if that is more than ``CACHE_THRESHOLD`` of it and loads are balanced
    (they are not where the most calls on one exceed the fewest by ``BALANCE_CALLS`` and are
    ``BALANCE_RATIO`` times as many), else the instance with the fewest calls. What is cached is
    what instances told, in either tier. It knows of no models: it would open one anywhere."""

    def choose(
        self, call: CallShape, candidates: Sequence[Candidate], calls_on: CallsOn
    ) -> Candidate | None:
        admitted = [candidate for candidate in candidates if candidate.admitted]
        if not admitted or self._unbalanced([calls_on(c.instance) for c in candidates]):
            return fewest_calls(candidates, calls_on)
        best = max(admitted, key=lambda c: c.device_tokens + c.host_tokens)
        cached = best.device_tokens + best.host_tokens
        if cached > CACHE_THRESHOLD * call.prompt_tokens:
            return best
        return fewest_calls(candidates, calls_on)

    @staticmethod
    def _unbalanced(loads: Sequence[int]) -> bool:
        least, most = min(loads), max(loads)
        return most - least > BALANCE_CALLS and most > BALANCE_RATIO * least

    def forget(self, branch: bytes) -> None:
        """Nothing is kept."""


def baseline(policy: Policy) -> Baseline | None:
    """None for the router's own policy."""
    match policy:
        case "least-pressure":
            return LeastPressure()
        case "session-sticky":
            return SessionSticky()
        case "cache-aware":
            return CacheAware()
        case "residency":
            return None
