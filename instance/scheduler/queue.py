"""Calls that wait for their first (or, after a preemption, next) chunk, in turn."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator

from alipes.instance.scheduler.sequence import Sequence


def place(arrived: int, priority: int, level: int, serial: int) -> tuple[int, int]:
    """A call's place among those of its model, for life. Each priority level counts as ``level`` ns
    of waiting: as all calls age alike, the order never changes."""
    return (arrived - priority * level, serial)


class WaitingQueue:
    """Sorted by ``Sequence.turn``, which ``turn_of`` tells; knows how much work it holds:
    ``context`` tokens in all, ``tokens`` of them to be computed, each times its position summed,
    and ``restore_tokens`` to be copied from the host for ``restores`` calls. What a call is
    expected to find changes through ``expect`` alone, and its turn with it."""

    def __init__(self, turn_of: Callable[[Sequence], tuple[int, int]]) -> None:
        self._turn_of = turn_of
        self._calls: list[Sequence] = []
        self.context = 0
        self.tokens = 0
        self.token_positions = 0.0
        self.restores = 0
        self.restore_tokens = 0

    def __len__(self) -> int:
        return len(self._calls)

    def __iter__(self) -> Iterator[Sequence]:
        """Those that are here now, in turn; what is done with them may change who is."""
        return iter(self._calls.copy())

    @property
    def head(self) -> Sequence | None:
        return self._calls[0] if self._calls else None

    def add(self, call: Sequence) -> None:
        call.turn = self._turn_of(call)
        bisect.insort(self._calls, call, key=_turn)
        self._count(call, 1)

    def remove(self, call: Sequence) -> None:
        del self._calls[bisect.bisect_left(self._calls, call.turn, key=_turn)]
        self._count(call, -1)

    def expect(self, call: Sequence, known: int, known_host: int) -> None:
        """The queued call will find ``known`` tokens, ``known_host`` of them on the host."""
        self.remove(call)
        call.known, call.known_host = known, known_host
        self.add(call)

    def _count(self, call: Sequence, sign: int) -> None:
        self.context += sign * call.length
        self.tokens += sign * (call.length - call.known)
        self.token_positions += sign * positions(call)
        self.restores += sign * (call.known_host > 0)
        self.restore_tokens += sign * call.known_host


def positions(call: Sequence) -> float:
    """The tokens of a waiting call that must be computed, each times its position, summed."""
    return (call.length * call.length - call.known * call.known) / 2


def _turn(call: Sequence) -> tuple[int, int]:
    return call.turn
