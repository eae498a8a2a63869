"""Where a client request waits for what happens to its calls."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Final

from alipes.gateway.calls.events import CallEvent

CLIENT: Final = -1
"""In place of a call's index: what the client itself does."""


@dataclass(frozen=True, slots=True)
class ClientLeft:
    """The client closed its connection."""


InboxEvent = CallEvent | ClientLeft


class Inbox:
    """Events of all the calls of one client request, in order, as (call index, event).

    One consumer. It needs no bound: an instance sends at most one message an iteration.
    """

    def __init__(self) -> None:
        self._events: deque[tuple[int, InboxEvent]] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def post(self, index: int, event: InboxEvent) -> None:
        self._events.append((index, event))
        self._wake()

    async def take(self, timeout: float) -> list[tuple[int, InboxEvent]]:
        """All events there are, waiting up to ``timeout`` seconds for the first; [] after it."""
        if not self._events and timeout > 0:
            loop = asyncio.get_running_loop()
            self._waiter = loop.create_future()
            timer = loop.call_later(timeout, self._wake)
            try:
                await self._waiter
            finally:
                timer.cancel()
                self._waiter = None
        events = list(self._events)
        self._events.clear()
        return events

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
