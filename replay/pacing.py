"""When a replay sends: closed or open loop, with sub-agents, without clock or sockets.

The live runner and the simulator drive this same class. Times are nanoseconds of the caller's
clock. A session's calls are due as recorded relative to each other: a call one gap after its
branch's previous one ended, a sub-agent's first one after the call that spawned it, a joining one
after the last of what it waits for. A call that fails ends its session: nothing further is sent.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from math import isfinite, isnan
from typing import Final

import numpy as np

from alipes.replay.progress import Progress, SessionError, check
from alipes.replay.traces.form import Call, Session
from alipes.replay.traces.order import Place

NANOSECONDS: Final = 1_000_000_000
LEAST_RATE: Final = 1e-6
"""Sessions that arrive more rarely than every 11 days are a mistake."""


@dataclass(frozen=True, slots=True)
class PacingSettings:
    """Closed loop: ``concurrency`` sessions at a time (0: all at once), each finished one replaced
    by the next. Open loop: sessions arrive at ``rate`` a second (Poisson, by ``seed``), or when
    they were recorded to (``recorded``), the first of them at once; ``concurrency`` is then the
    admission limit, and an arrival beyond it waits, which its first call's delay shows.
    ``gap_cap`` seconds at most are kept of a gap; None keeps all. Raises ValueError."""

    concurrency: int = 0
    rate: float = 0.0
    recorded: bool = False
    seed: int = 1
    gap_cap: float | None = 10.0

    def __post_init__(self) -> None:
        if self.concurrency < 0 or self.rate < 0 or self.seed < 0 or (self.gap_cap or 0.0) < 0:
            raise ValueError("concurrency, rate, seed and gap cap of a replay cannot be negative")
        if not isfinite(self.rate) or isnan(self.gap_cap or 0.0):
            raise ValueError("the rate or gap cap of a replay is not a number")
        if 0 < self.rate < LEAST_RATE:
            raise ValueError(
                f"a rate below {LEAST_RATE:g} sessions a second is none; use 0 or more"
            )
        if self.recorded and self.rate:
            raise ValueError("sessions arrive as recorded or at a rate, not both")

    @property
    def open_loop(self) -> bool:
        return self.recorded or self.rate > 0

    def gap(self, call: Call) -> int:
        """Nanoseconds of its gap that are kept."""
        gap = call.gap if self.gap_cap is None else min(call.gap, self.gap_cap)
        return round(gap * NANOSECONDS)


@dataclass(frozen=True, slots=True, order=True)
class Send:
    """Send call ``index`` of branch number ``branch`` of session number ``session``; it was due
    at ``intended``, ``gap`` ns after what it waited for. After the ``last`` one no other call of
    its session is sent."""

    intended: int
    session: int
    branch: int
    index: int
    last: bool = False
    gap: int = field(default=0, compare=False)


@dataclass(slots=True)
class _Running:
    """A session under way; ``unsent`` counts its calls that were not sent yet."""

    session: Session
    progress: Progress
    unsent: int
    flying: int = 0
    failed: bool = False

    @property
    def over(self) -> bool:
        return self.flying == 0 and (self.failed or not self.progress.left)


class Pacing:
    """``due`` gives what to send now, ``ended`` takes what came of it; instants never go back.
    Deterministic. A call costs O(log n) of the calls that are due, and what is kept of a session
    beyond its arrival is kept only while it is under way."""

    def __init__(
        self,
        sessions: Sequence[Session],
        settings: PacingSettings,
        now: int,
        elapsed: int = 0,
        done: Collection[int] = (),
    ) -> None:
        """An interrupted replay goes on after ``elapsed`` ns: the sessions with numbers in ``done``
        do not come again, the others when they were to come, or now where that is over. Raises
        ``SessionError`` for a session that could never come to its end, or that is to start as
        recorded and has no start."""
        for session in sessions:
            check(session)
        self._sessions = tuple(sessions)
        self._settings = settings
        arrivals = sorted(
            (max(now, now - elapsed + start), number)
            for number, start in enumerate(self._starts())
            if number not in done
        )
        self._arrivals = deque(arrivals)
        # The instants at which the places that are free came free; an unlimited loop has enough.
        places = min(settings.concurrency or len(arrivals), len(arrivals))
        self._places = deque([now] * places)
        self._running: dict[int, _Running] = {}
        self._due: list[tuple[int, int, int, int]] = []
        self._flying: set[tuple[int, Place]] = set()

    def _starts(self) -> list[int]:
        """When every session arrives, ns after the replay's beginning."""
        count = len(self._sessions)
        if self._settings.recorded:
            starts = _recorded(self._sessions)
        elif self._settings.rate > 0:
            generator = np.random.default_rng(self._settings.seed)
            starts = np.cumsum(generator.exponential(1 / self._settings.rate, count)).tolist()
        else:
            starts = [0.0] * count
        return [round(start * NANOSECONDS) for start in starts]

    @property
    def done(self) -> bool:
        return not self._arrivals and not self._running

    def next_wakeup(self) -> int | None:
        """When the next call is due if nothing ends before; None while all wait for answers."""
        self._drop_failed()
        times = [self._due[0][0]] if self._due else []
        if self._arrivals and self._places:
            times.append(max(self._arrivals[0][0], self._places[0]))
        return min(times, default=None)

    def running(self, session: int) -> bool:
        """Whether a session is under way."""
        return session in self._running

    def due(self, now: int) -> tuple[Send, ...]:
        """Calls to send now, in the order in which they became due."""
        while self._arrivals and self._places and self._arrivals[0][0] <= now:
            self._begin(*self._arrivals.popleft(), self._places.popleft())
        sends = []
        self._drop_failed()
        while self._due and self._due[0][0] <= now:
            sends.append(self._send(*heapq.heappop(self._due)))
            self._drop_failed()
        return tuple(sends)

    def ended(self, send: Send, succeeded: bool, now: int) -> None:
        """A sent call is over. Raises ValueError for one that was not in flight."""
        flight = (send.session, (send.branch, send.index))
        if flight not in self._flying:
            raise ValueError(
                f"call {send.index} of branch {send.branch} of session {send.session}"
                " is not in flight"
            )
        self._flying.remove(flight)
        running = self._running[send.session]
        running.flying -= 1
        running.failed |= not succeeded
        if not running.failed:
            for branch, index in running.progress.end(send.branch, send.index):
                self._add(running, now, send.session, branch, index)
        if running.over:
            del self._running[send.session]
            self._places.append(now)

    def _begin(self, arrival: int, number: int, free: int) -> None:
        # In a closed loop the place that came free is what the session waited for.
        arrived = arrival if self._settings.open_loop else max(arrival, free)
        session = self._sessions[number]
        running = _Running(session, Progress(session), session.calls)
        self._running[number] = running
        self._add(running, arrived, number, 0, 0)

    def _add(self, running: _Running, since: int, number: int, branch: int, index: int) -> None:
        gap = self._gap(running, branch, index)
        heapq.heappush(self._due, (since + gap, number, branch, index))

    def _gap(self, running: _Running, branch: int, index: int) -> int:
        return self._settings.gap(running.session.branches[branch].calls[index])

    def _send(self, intended: int, number: int, branch: int, index: int) -> Send:
        running = self._running[number]
        running.unsent -= 1
        running.flying += 1
        self._flying.add((number, (branch, index)))
        gap = self._gap(running, branch, index)
        return Send(intended, number, branch, index, not running.unsent, gap)

    def _drop_failed(self) -> None:
        """What stands first is to be sent: no call of a session that failed."""
        while self._due:
            running = self._running.get(self._due[0][1])
            if running is not None and not running.failed:
                return
            heapq.heappop(self._due)


def _recorded(sessions: Sequence[Session]) -> list[float]:
    """Seconds after the earliest start at which each session starts."""
    starts = []
    for session in sessions:
        if session.start is None:
            raise SessionError(
                f"session {session.id}: has no recorded start; replay it with a rate or a number"
                " of sessions at a time"
            )
        starts.append(session.start)
    first = min(starts, default=0.0)
    return [start - first for start in starts]
