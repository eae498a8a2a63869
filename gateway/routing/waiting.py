"""The bounded queue of calls that wait for an instance: first in, first out, fair by tenant."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from alipes.gateway.routing.decision import CallShape


@dataclass(frozen=True, slots=True)
class Queued:
    call: CallShape
    arrived: int


@dataclass(slots=True)
class _Line:
    """The calls of one model in the order in which they came: all, those that have begun before,
    and the others by tenant, the tenant whose turn it is first."""

    calls: dict[bytes, None] = field(default_factory=dict)
    begun: dict[bytes, None] = field(default_factory=dict)
    turns: dict[str, dict[bytes, None]] = field(default_factory=dict)

    def add(self, call: CallShape) -> None:
        self.calls[call.call_id] = None
        own = self.begun if call.begun else self.turns.setdefault(call.tenant, {})
        own[call.call_id] = None

    def remove(self, call: CallShape) -> None:
        """The turn of its tenant is over."""
        del self.calls[call.call_id]
        if call.begun:
            del self.begun[call.call_id]
            return
        own = self.turns.pop(call.tenant)
        del own[call.call_id]
        if own:
            self.turns[call.tenant] = own

    def head(self) -> bytes:
        first = self.begun or next(iter(self.turns.values()))
        return next(iter(first))


class WaitingCalls:
    """Calls wait by model. Within a model those go first that had begun on an instance which they
    lost: their clients have seen a part of the answer. Of the others tenants take turns, and a
    tenant's calls keep their order, so that no call is passed for ever. A call is set aside while
    only an instance that is away could hold it: it waits, and nobody waits behind it."""

    def __init__(self, depth: int, timeout: int) -> None:
        self.configure(depth, timeout)
        # In the order of arrival, which is that of the deadlines.
        self._calls: dict[bytes, Queued] = {}
        self._lines: dict[str, _Line] = {}
        self._aside: dict[bytes, None] = {}

    def configure(self, depth: int, timeout: int) -> None:
        """How many calls may wait, and how long each (ns): those that wait already too. More of
        them than may wait from now on stay."""
        self._depth = depth
        self._timeout = timeout

    def __len__(self) -> int:
        return len(self._calls)

    def __contains__(self, call_id: bytes) -> bool:
        return call_id in self._calls

    def full_for(self, call: CallShape) -> bool:
        """Whether the call finds no place; one that has begun before always does."""
        return len(self._calls) >= self._depth and not call.begun

    def depths(self) -> dict[str, int]:
        return {model: len(line.calls) for model, line in self._lines.items()}

    def waits(self, model: str) -> int:
        line = self._lines.get(model)
        return len(line.calls) if line else 0

    def ahead(self, call: CallShape) -> int:
        """How many calls of the model the call would wait behind."""
        line = self._lines.get(call.model)
        if line is None:
            return 0
        return len(line.begun if call.begun else line.calls)

    def add(self, call: CallShape, now: int, aside: bool = False) -> None:
        """``now`` never falls from call to call."""
        self._calls[call.call_id] = Queued(call, now)
        if aside:
            self._aside[call.call_id] = None
        else:
            self._lines.setdefault(call.model, _Line()).add(call)

    def set_aside(self, call: CallShape) -> None:
        """One that waits in a line."""
        self._leave_line(call)
        self._aside[call.call_id] = None

    def bring_back(self) -> None:
        """All that were set aside wait in line again."""
        aside, self._aside = self._aside, {}
        for call_id in aside:
            call = self._calls[call_id].call
            self._lines.setdefault(call.model, _Line()).add(call)

    def aside(self) -> Counter[str]:
        """How many calls of each model are set aside."""
        return Counter(self._calls[call_id].call.model for call_id in self._aside)

    def heads(self) -> list[Queued]:
        """The next call of each model, the one that came first in front."""
        heads = [self._calls[line.head()] for line in self._lines.values()]
        return sorted(heads, key=lambda queued: queued.arrived)

    def head(self, model: str) -> Queued | None:
        """The next call of the model."""
        line = self._lines.get(model)
        return self._calls[line.head()] if line else None

    def oldest(self, model: str) -> int:
        """When the call of the model came that has waited longest. Raises KeyError without one."""
        return self._calls[next(iter(self._lines[model].calls))].arrived

    def remove(self, call_id: bytes) -> CallShape | None:
        """Take a call out; its tenant's next turn comes after all others'."""
        queued = self._calls.pop(call_id, None)
        if queued is None:
            return None
        if call_id in self._aside:
            del self._aside[call_id]
        else:
            self._leave_line(queued.call)
        return queued.call

    def _leave_line(self, call: CallShape) -> None:
        line = self._lines[call.model]
        line.remove(call)
        if not line.calls:
            del self._lines[call.model]

    def next_deadline(self) -> int | None:
        for queued in self._calls.values():
            return queued.arrived + self._timeout
        return None

    def expire(self, now: int) -> list[CallShape]:
        """Take out all calls whose time is over."""
        over = []
        for queued in self._calls.values():
            if now < queued.arrived + self._timeout:
                break
            over.append(queued.call)
        for call in over:
            self.remove(call.call_id)
        return over
