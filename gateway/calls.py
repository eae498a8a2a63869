"""What the API asks of the dispatcher, and what comes back about it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from alipes.gateway.routing.decision import Placement
from alipes.gateway.routing.identity import NO_CLAIM, Claim
from alipes.instance.contract import Drawn, Finished, Sampling, Started, TokenIds

CLIENT: Final = -1


@dataclass(frozen=True, slots=True)
class CallRequest:
    """One sequence to generate: ``tokens`` (n,) int32 is the whole prompt, ``forced`` int32
    little-endian ids that replace draws. ``sampling.seed`` is set. ``claim`` is what the client
    says of its session, whose next prompt begins with the first ``stem`` ids of this one. A
    ``whole`` answer is not shown before its end, so that it may be begun anew. ``messages`` are
    those that the prompt was made of, if it was."""

    model: str
    tenant: str
    tokens: TokenIds
    max_tokens: int
    sampling: Sampling
    stop_ids: tuple[int, ...] = ()
    forced: bytes = b""
    claim: Claim = NO_CLAIM
    stem: int = 0
    whole: bool = False
    messages: Sequence[Mapping[str, Any]] | None = None


class FailureKind(StrEnum):
    """Why a call ended without finishing: the request is wrong, nobody has room, it waited too
    long, its model has no instance, its instance died mid-way, a defect, or a shutdown."""

    INVALID = "invalid"
    OVERLOADED = "overloaded"
    TIMEOUT = "timeout"
    UNAVAILABLE = "unavailable"
    LOST = "lost"
    INTERNAL = "internal"
    STOPPING = "stopping"


@dataclass(frozen=True, slots=True)
class CallFailure:
    """The last event of a call that cannot finish; ``retry_after`` in seconds, 0 for none."""

    kind: FailureKind
    reason: str
    field: str = ""
    retry_after: float = 0.0


@dataclass(frozen=True, slots=True)
class ClientLeft:
    """The client closed its connection."""


@dataclass(frozen=True, slots=True)
class Restarted:
    """The call begins anew, on another instance: what it has drawn counts for nothing."""


CallEvent = Placement | Started | Drawn | Finished | Restarted | CallFailure | ClientLeft


class Inbox:
    """Events of all the calls of one client request, in order, as (call index, event).

    One consumer. It needs no bound: an instance sends at most one message an iteration.
    """

    def __init__(self) -> None:
        self._events: deque[tuple[int, CallEvent]] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def post(self, index: int, event: CallEvent) -> None:
        self._events.append((index, event))
        self._wake()

    async def take(self, timeout: float) -> list[tuple[int, CallEvent]]:
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
