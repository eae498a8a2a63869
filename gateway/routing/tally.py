"""What the router has done so far: model openings and returns of sessions."""

from __future__ import annotations

from alipes.gateway.routing.decision import CallShape, RouterCounts


class Tally:
    """Counts placements; remembers for each branch which instance finished its last call, and
    which branches have not come back since."""

    def __init__(self) -> None:
        self._last: dict[bytes, str] = {}
        self._away: set[bytes] = set()
        self._back = self._gone = 0
        self._placed = self._opens = self._avoidable = self._returns = self._same = 0

    @property
    def come_back(self) -> float:
        """The share of finished calls whose branch comes back: of those of which it is known by
        now, for a tool or a user may take long; 1/2 before any is."""
        return (self._back + 1) / (self._back + self._gone + 2)

    def arrived(self, branch: bytes) -> None:
        if branch in self._away:
            self._away.discard(branch)
            self._back += 1

    def placed(self, call: CallShape, instance: str, opens: bool, active_elsewhere: bool) -> None:
        """``active_elsewhere``: an instance that could be used had the model active. A call that
        goes on elsewhere is no return."""
        self._placed += 1
        self._opens += opens
        self._avoidable += opens and active_elsewhere
        if call.branch in self._last and not call.begun:
            self._returns += 1
            self._same += self._last[call.branch] == instance

    def finished(self, call: CallShape, instance: str) -> None:
        if call.branch:
            self._last[call.branch] = instance
        if call.final:
            self._gone += 1
        elif call.branch:
            self._away.add(call.branch)

    def forget(self, branch: bytes) -> None:
        self._last.pop(branch, None)
        if branch in self._away:
            self._away.discard(branch)
            self._gone += 1

    def counts(self) -> RouterCounts:
        return RouterCounts(self._placed, self._opens, self._avoidable, self._returns, self._same)
