"""Calls that wait for their first (or, after a preemption, next) chunk, in order."""

from __future__ import annotations

import bisect
from collections.abc import Iterator

from alipes.instance.scheduler.sequence import Sequence


def place(arrived: int, priority: int, level: int, serial: int) -> tuple[int, int]:
    """A call's place in the queues, for life. Each priority level counts as ``level`` ns of
    waiting: as all calls age alike, the order never changes, and none is passed for ever."""
    return (arrived - priority * level, serial)


class WaitingQueue:
    """Sorted by ``Sequence.order``; knows how much work it holds: ``context`` tokens in all,
    ``tokens`` of them to be computed, each times its position summed, and ``restore_tokens`` to be
    copied from the host for ``restores`` calls. What a call is expected to find changes through
    ``expect`` alone."""

    def __init__(self) -> None:
        self._calls: list[Sequence] = []
        self.context = 0
        self.tokens = 0
        self.token_positions = 0.0
        self.restores = 0
        self.restore_tokens = 0

    def __len__(self) -> int:
        return len(self._calls)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._calls)

    @property
    def head(self) -> Sequence | None:
        return self._calls[0] if self._calls else None

    def add(self, call: Sequence) -> None:
        bisect.insort(self._calls, call, key=_order)
        self._count(call, 1)

    def remove(self, call: Sequence) -> None:
        del self._calls[bisect.bisect_left(self._calls, call.order, key=_order)]
        self._count(call, -1)

    def expect(self, call: Sequence, known: int, known_host: int) -> None:
        """The queued call will find ``known`` tokens, ``known_host`` of them on the host."""
        self._count(call, -1)
        call.known, call.known_host = known, known_host
        self._count(call, 1)

    def _count(self, call: Sequence, sign: int) -> None:
        self.context += sign * call.length
        self.tokens += sign * (call.length - call.known)
        self.token_positions += sign * positions(call)
        self.restores += sign * (call.known_host > 0)
        self.restore_tokens += sign * call.known_host


def positions(call: Sequence) -> float:
    """The tokens of a waiting call that must be computed, each times its position, summed."""
    return (call.length * call.length - call.known * call.known) / 2


def _order(call: Sequence) -> tuple[int, int]:
    return call.order
