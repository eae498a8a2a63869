"""The copy stream of a simulated instance: checkpoints go to the host one after another."""

from __future__ import annotations

from collections import deque

from alipes.instance.engine.protocol import CopyEnd


class Copier:
    """Times in ns."""

    def __init__(self) -> None:
        self._under_way: deque[tuple[int, int]] = deque()
        self._free = 0

    @property
    def next_end(self) -> int | None:
        """When the first copy under way ends."""
        return self._under_way[0][0] if self._under_way else None

    def begin(self, ticket: int, duration: int, now: int) -> None:
        self._free = max(self._free, now) + duration
        self._under_way.append((self._free, ticket))

    def ended(self, now: int) -> tuple[CopyEnd, ...]:
        """Copies that have ended and were not yet told."""
        ends = []
        while self._under_way and self._under_way[0][0] <= now:
            ends.append(CopyEnd(self._under_way.popleft()[1]))
        return tuple(ends)

    def drained(self) -> int:
        """When all that was begun will have ended."""
        return self._free
