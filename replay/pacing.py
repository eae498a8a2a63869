"""When a replay sends: closed or open loop, with sub-agents, without clock or sockets.

The live runner and the simulator drive this same class. Times are nanoseconds of the caller's
clock. A session's calls are due as recorded relative to each other: a call one gap after its
branch's previous one ended, a sub-agent's first one after the call that spawned it, a joining one
after the branches that it waits for. A call that fails ends its session: nothing further is sent.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from alipes.replay.traces.form import Branch, Call, Session, Wait

NANOSECONDS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class PacingSettings:
    """Closed loop: ``concurrency`` sessions at a time (0: all at once), each finished one replaced
    by the next. Open loop: sessions arrive at ``rate`` a second (Poisson, by ``seed``), or when
    they were recorded to (``recorded``); ``concurrency`` is then the admission limit, and an
    arrival beyond it waits, which its first call's delay shows. ``gap_cap`` seconds at most are
    kept of a gap; None keeps all."""

    concurrency: int = 0
    rate: float = 0.0
    recorded: bool = False
    seed: int = 1
    gap_cap: float | None = 10.0

    @property
    def open_loop(self) -> bool:
        return self.recorded or self.rate > 0


@dataclass(frozen=True, slots=True, order=True)
class Send:
    """Send call ``index`` of branch number ``branch`` of session number ``session``; it was due
    at ``intended``. With ``last`` no other call of its session is left."""

    intended: int
    session: int
    branch: int
    index: int
    last: bool = False


@dataclass(slots=True)
class _Progress:
    """A session under way; ``ended`` counts the calls of each branch that have ended."""

    session: Session
    arrived: int
    ended: list[int]
    left: int
    flying: int = 0
    failed: bool = False
    joining: list[tuple[int, int, int]] = field(default_factory=list)

    @property
    def over(self) -> bool:
        return self.flying == 0 and (self.failed or self.left == 0)


class Pacing:
    """``due`` gives what to send now, ``ended`` takes what came of it. Deterministic."""

    def __init__(self, sessions: Sequence[Session], settings: PacingSettings, now: int) -> None:
        self._sessions = tuple(sessions)
        self._settings = settings
        self._arrivals: deque[tuple[int, int]] = deque(self._arrive(now))
        self._under_way: dict[int, _Progress] = {}
        self._due: list[tuple[int, int, int, int]] = []
        self._flying: set[tuple[int, int, int]] = set()

    def _arrive(self, now: int) -> list[tuple[int, int]]:
        """(time, session number) of every arrival, in order."""
        count = len(self._sessions)
        if self._settings.recorded:
            starts = [session.start or 0.0 for session in self._sessions]
        elif self._settings.rate > 0:
            generator = np.random.default_rng(self._settings.seed)
            starts = np.cumsum(generator.exponential(1 / self._settings.rate, count)).tolist()
        else:
            starts = [0.0] * count
        return sorted((now + round(start * NANOSECONDS), i) for i, start in enumerate(starts))

    @property
    def done(self) -> bool:
        return not self._arrivals and not self._under_way

    def next_wakeup(self) -> int | None:
        """When the next call is due if nothing ends before; None while all wait for answers."""
        times = [self._due[0][0]] if self._due else []
        if self._arrivals and self._room:
            times.append(self._arrivals[0][0])
        return min(times, default=None)

    def arrived(self, session: int) -> int:
        """When a session under way arrived."""
        return self._under_way[session].arrived

    def due(self, now: int) -> tuple[Send, ...]:
        """Calls to send now, in the order in which they became due."""
        while self._arrivals and self._room and self._arrivals[0][0] <= now:
            self._begin(*self._arrivals.popleft(), now)
        sends = []
        while self._due and self._due[0][0] <= now:
            intended, number, branch, index = heapq.heappop(self._due)
            progress = self._under_way[number]
            if progress.failed:
                continue
            progress.flying += 1
            self._flying.add((number, branch, index))
            sends.append(Send(intended, number, branch, index, progress.left == 1))
        return tuple(sends)

    def ended(self, send: Send, succeeded: bool, now: int) -> None:
        """A sent call is over. Raises ValueError for one that was not in flight."""
        place = (send.session, send.branch, send.index)
        if place not in self._flying:
            raise ValueError(f"call {send.index} of session {send.session} is not in flight")
        self._flying.remove(place)
        progress = self._under_way[send.session]
        progress.flying -= 1
        progress.left -= 1
        progress.ended[send.branch] += 1
        progress.failed |= not succeeded
        if not progress.failed:
            self._follow(send, progress, now)
        if progress.over:
            del self._under_way[send.session]

    @property
    def _room(self) -> bool:
        limit = self._settings.concurrency
        return limit == 0 or len(self._under_way) < limit

    def _begin(self, arrival: int, number: int, now: int) -> None:
        # In a closed loop the place that came free is what the session waited for.
        arrived = arrival if self._settings.open_loop else max(arrival, now)
        session = self._sessions[number]
        self._under_way[number] = _Progress(
            session, arrived, [0] * len(session.branches), session.calls
        )
        first = session.branches[0].calls[0]
        self._add(arrived + self._gap(first), number, 0, 0)

    def _add(self, intended: int, number: int, branch: int, index: int) -> None:
        heapq.heappush(self._due, (intended, number, branch, index))

    def _gap(self, call: Call) -> int:
        cap = self._settings.gap_cap
        return round((call.gap if cap is None else min(call.gap, cap)) * NANOSECONDS)

    def _follow(self, send: Send, progress: _Progress, now: int) -> None:
        """What becomes due by the end of this call."""
        branches = progress.session.branches
        branch = branches[send.branch]
        for number, other in enumerate(branches):
            if other.parent == branch.name and other.spawned_by == send.index and number:
                self._add(now + self._gap(other.calls[0]), send.session, number, 0)
        if send.index + 1 < len(branch.calls):
            progress.joining.append((now, send.branch, send.index + 1))
        self._release(send.session, progress, now)

    def _release(self, number: int, progress: _Progress, now: int) -> None:
        """Next calls whose branches have all finished."""
        kept = []
        for ready, branch, index in progress.joining:
            call = progress.session.branches[branch].calls[index]
            if call.wait is Wait.BRANCH and not self._joined(progress, call):
                kept.append((ready, branch, index))
                continue
            self._add(now + self._gap(call), number, branch, index)
        progress.joining = kept

    @staticmethod
    def _joined(progress: _Progress, call: Call) -> bool:
        branches: Sequence[Branch] = progress.session.branches
        return all(
            progress.ended[i] == len(other.calls)
            for i, other in enumerate(branches)
            if other.name in call.joins
        )
