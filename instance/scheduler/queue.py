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
    """Sorted by ``Sequence.order``; knows how much prefill it holds."""

    def __init__(self) -> None:
        self._calls: list[Sequence] = []
        self.tokens = 0
        self.token_positions = 0.0

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

    def _count(self, call: Sequence, sign: int) -> None:
        self.tokens += sign * call.length
        self.token_positions += sign * call.length * call.length / 2


def _order(call: Sequence) -> tuple[int, int]:
    return call.order
