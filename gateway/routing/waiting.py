"""The bounded queue of calls that wait for an instance: first in, first out, fair by tenant."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from alipes.gateway.routing.decision import CallShape


@dataclass(frozen=True, slots=True)
class Queued:
    call: CallShape
    arrived: int
    deadline: int


class WaitingCalls:
    """Calls wait by model. Within a model tenants take turns, and a tenant's calls keep their
    order, so that no call is passed for ever."""

    def __init__(self, depth: int, timeout_ns: int) -> None:
        self._depth = depth
        self._timeout = timeout_ns
        self._calls: dict[bytes, Queued] = {}
        self._turns: dict[str, dict[str, deque[bytes]]] = {}

    def __len__(self) -> int:
        return len(self._calls)

    def __contains__(self, call_id: bytes) -> bool:
        return call_id in self._calls

    @property
    def full(self) -> bool:
        return len(self._calls) >= self._depth

    def depths(self) -> dict[str, int]:
        return {model: sum(map(len, turns.values())) for model, turns in self._turns.items()}

    def waits(self, model: str) -> int:
        return sum(map(len, self._turns.get(model, {}).values()))

    def add(self, call: CallShape, now: int) -> None:
        self._calls[call.call_id] = Queued(call, now, now + self._timeout)
        turns = self._turns.setdefault(call.model, {})
        turns.setdefault(call.tenant, deque()).append(call.call_id)

    def heads(self) -> list[Queued]:
        """The next call of each model, the one that came first in front."""
        return sorted(
            (head for model in self._turns if (head := self.head(model)) is not None),
            key=lambda queued: queued.arrived,
        )

    def head(self, model: str) -> Queued | None:
        """The first call of the tenant whose turn it is."""
        for calls in self._turns.get(model, {}).values():
            return self._calls[calls[0]]
        return None

    def remove(self, call_id: bytes) -> CallShape | None:
        """Take a call out; its tenant's next turn comes after all others'."""
        queued = self._calls.pop(call_id, None)
        if queued is None:
            return None
        call = queued.call
        turns = self._turns[call.model]
        calls = turns.pop(call.tenant)
        calls.remove(call_id)
        if calls:
            turns[call.tenant] = calls
        if not turns:
            del self._turns[call.model]
        return call

    def next_deadline(self) -> int | None:
        for queued in self._calls.values():
            return queued.deadline
        return None

    def expire(self, now: int) -> list[CallShape]:
        """Take out all calls whose time is over; every call has the same timeout."""
        over = [queued.call for queued in self._calls.values() if queued.deadline <= now]
        for call in over:
            self.remove(call.call_id)
        return over
