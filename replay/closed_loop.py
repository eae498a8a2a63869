"""When a replay sends: the closed loop, without clock or sockets.

All sessions begin at once. Within a session the next call is due one gap after the previous one
ended; a call that fails ends its session, as it would have ended the agent's run.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from alipes.replay.plan import Session


@dataclass(frozen=True, slots=True, order=True)
class Send:
    """Send call ``index`` of session number ``session``; it was due at ``intended`` (ns)."""

    intended: int
    session: int
    index: int


class ClosedLoop:
    """Times are nanoseconds of the caller's clock."""

    def __init__(self, sessions: Sequence[Session], now: int) -> None:
        self._sessions = tuple(sessions)
        self._due = [Send(now + s.calls[0].gap, i, 0) for i, s in enumerate(self._sessions)]
        heapq.heapify(self._due)
        self._flying: dict[int, Send] = {}

    @property
    def done(self) -> bool:
        return not self._due and not self._flying

    def next_wakeup(self) -> int | None:
        """When the next call is due; None while every session waits for an answer or is over."""
        return self._due[0].intended if self._due else None

    def due(self, now: int) -> tuple[Send, ...]:
        """Calls to send now, in the order in which they became due."""
        sends = []
        while self._due and self._due[0].intended <= now:
            send = heapq.heappop(self._due)
            self._flying[send.session] = send
            sends.append(send)
        return tuple(sends)

    def ended(self, send: Send, succeeded: bool, now: int) -> None:
        """A sent call is over. Raises ValueError for one that was not in flight."""
        if self._flying.get(send.session) != send:
            raise ValueError(f"call {send.index} of session {send.session} is not in flight")
        del self._flying[send.session]
        calls = self._sessions[send.session].calls
        if succeeded and send.index + 1 < len(calls):
            after = now + calls[send.index + 1].gap
            heapq.heappush(self._due, Send(after, send.session, send.index + 1))
