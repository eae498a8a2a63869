"""Threads on a virtual clock: one runs at a time, each until it waits for an instant."""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable

PATIENCE = 60.0
"""Seconds of real time after which a thread that does not give way is a defect of the test."""


class Killed(BaseException):
    """Raised in a thread that is not to go on."""


class Baton:
    """Calls what is due by time, then rank, then order of asking. ``now`` in ns."""

    def __init__(self) -> None:
        self.now = 0
        self.back = threading.Semaphore(0)
        self._due: list[tuple[int, int, int, Callable[[], None]]] = []
        self._serials = itertools.count()

    def at(self, time: int, rank: int, act: Callable[[], None]) -> None:
        heapq.heappush(self._due, (max(time, self.now), rank, next(self._serials), act))

    @property
    def due(self) -> int | None:
        return self._due[0][0] if self._due else None

    def step(self) -> bool:
        """False when nothing is due any more."""
        if not self._due:
            return False
        self.now, _, _, act = heapq.heappop(self._due)
        act()
        return True


class Thread:
    """Runs ``body``, which calls ``wait_until`` whenever time is to pass. While it is ``frozen``
    nothing wakes it."""

    def __init__(self, baton: Baton, rank: int, body: Callable[[], None]) -> None:
        self._baton = baton
        self._rank = rank
        self._body = body
        self._go = threading.Semaphore(0)
        self._token: object = None
        self._frozen = self._killed = self.ended = False
        # What it waits for, and whether it is but a time-out.
        self._until = 0
        self._idle = False
        self._thread = threading.Thread(target=self._main, daemon=True)
        self._wake_at(baton.now)
        self._thread.start()

    def _main(self) -> None:
        assert self._go.acquire(timeout=PATIENCE)
        try:
            if not self._killed:
                self._body()
        except Killed:
            pass
        finally:
            self.ended = True
            self._baton.back.release()

    def wait_until(self, time: int, idle: bool = False) -> None:
        """Called in the thread. An ``idle`` wait may end sooner, by ``wake``."""
        self._until, self._idle = time, idle
        self._wake_at(time)
        self._baton.back.release()
        self._go.acquire()
        self._idle = False
        if self._killed:
            raise Killed

    def wake(self) -> None:
        """There is something for one that is idle."""
        if self._idle and not self._frozen:
            self._wake_at(self._baton.now)

    def freeze(self) -> None:
        self._frozen, self._token = True, None

    def thaw(self, gap: int) -> None:
        """Go on after ``gap``: work ends so much later, waiting when it would have, or now."""
        self._frozen = False
        if not self._idle:
            self._until += gap
        self._wake_at(self._until)

    def kill(self) -> None:
        self._killed = True
        if not self.ended:
            self._go.release()
            assert self._baton.back.acquire(timeout=PATIENCE)

    def _wake_at(self, time: int) -> None:
        token = self._token = object()
        self._baton.at(time, self._rank, lambda: self._resume(token))

    def _resume(self, token: object) -> None:
        if token is self._token and not self._killed and not self.ended:
            self._token = None
            self._go.release()
            assert self._baton.back.acquire(timeout=PATIENCE), "a thread does not give way"
