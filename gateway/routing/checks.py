"""Calls that wait for a sign of life: the health check of Talaria 4.1.

Of an instance with an old state or missed beats it is not known whether it would serve a session
that returns there. A check asks it, and is over with the first thing heard of it, or fails.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from alipes.gateway.routing.decision import CallShape
from alipes.gateway.routing.leases import Lease


@dataclass(frozen=True, slots=True)
class Check:
    """``call`` waits since ``asked`` (ns) for the instance of its ``lease``, which is out of the
    table."""

    call: CallShape
    lease: Lease
    asked: int


class HealthChecks:
    """The checks under way, in the order in which they began; each lasts ``lasting`` ns."""

    def __init__(self, lasting: int) -> None:
        self._lasting = lasting
        self._checks: dict[bytes, Check] = {}

    def configure(self, lasting: int) -> None:
        """Each lasts so long from now on, those under way too."""
        self._lasting = lasting

    def __len__(self) -> int:
        return len(self._checks)

    def __contains__(self, call_id: bytes) -> bool:
        return call_id in self._checks

    def __iter__(self) -> Iterator[Check]:
        return iter(tuple(self._checks.values()))

    def add(self, check: Check) -> None:
        self._checks[check.call.call_id] = check

    def remove(self, call_id: bytes) -> Check | None:
        return self._checks.pop(call_id, None)

    def over(self, check: Check, now: int) -> bool:
        """Whether its time is over."""
        return now >= check.asked + self._lasting

    def next_end(self) -> int | None:
        """When the time of the first is over."""
        for check in self._checks.values():
            return check.asked + self._lasting
        return None

    def depths(self) -> Counter[str]:
        """Calls that wait here, by model."""
        return Counter(check.call.model for check in self._checks.values())
