"""Virtual time: integer nanoseconds, and one total order of all that happens."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from enum import IntEnum
from typing import Final, Protocol

HISTORY: Final = 400
STANDSTILL: Final = 100_000
"""So many events at one instant are a loop."""


class Rank(IntEnum):
    """Of what happens at the same instant, this goes first to last: work ends before anybody
    decides by what it led to, and planner ticks see all of an instant."""

    INSTANCE = 0
    GATEWAY = 1
    CLIENT = 2
    PLANNER = 3


class Actor(Protocol):
    """Something that acts by itself at ``wakeup`` (ns), never when that is None."""

    @property
    def wakeup(self) -> int | None: ...

    def act(self, now: int) -> None: ...


class SimulationError(AssertionError):
    """What cannot be has happened: a stall, a call that nobody waits for, a negative resource. A
    run's ends with the last events before it, see ``Clock.error``."""


class Clock:
    """Calls each actor when its time comes: by time, then rank, then place in ``actors``. Whoever
    changes another actor says so with ``moved``. ``now`` never falls."""

    def __init__(self, actors: Sequence[tuple[Rank, Actor]]) -> None:
        self.now = 0
        self.events = 0
        self._actors = tuple(actors)
        self._due: list[tuple[int, Rank, int]] = []
        self._queued: list[int | None] = [None] * len(self._actors)
        self._history: deque[tuple[int, object]] = deque(maxlen=HISTORY)
        self._standing = 0

    def note(self, *what: object) -> None:
        """Remember this for the message of an error."""
        self._history.append((self.now, what))

    def moved(self, number: int) -> None:
        """Actor ``number`` may have another wake-up now."""
        rank, actor = self._actors[number]
        wakeup = actor.wakeup
        if wakeup is not None and wakeup != self._queued[number]:
            self._queued[number] = wakeup
            heapq.heappush(self._due, (wakeup, rank, number))

    def step(self) -> bool:
        """Let the next actor act; False when none ever will."""
        while self._due:
            time, _, number = heapq.heappop(self._due)
            actor = self._actors[number][1]
            if self._queued[number] == time:
                self._queued[number] = None
            if actor.wakeup != time:
                self.moved(number)
                continue
            self._check(time)
            self.now = time
            self.events += 1
            actor.act(time)
            self.moved(number)
            return True
        return False

    def _check(self, time: int) -> None:
        if time < self.now:
            raise SimulationError(f"time falls from {self.now} to {time}")
        self._standing = self._standing + 1 if time == self.now else 0
        if self._standing == STANDSTILL:
            raise SimulationError(f"{STANDSTILL} events, and it is still {time / 1e9:.6f} s")

    def error(self, problem: str) -> SimulationError:
        """An error with the history of what led to it."""
        lines = (
            f"  {time / 1e9:.6f} {' '.join(map(str, what))}"
            for time, what in ((t, w if isinstance(w, tuple) else (w,)) for t, w in self._history)
        )
        return SimulationError(f"{problem}\nlast events (s):\n" + "\n".join(lines))
