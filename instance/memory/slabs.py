"""Which slabs of the host memory are free: runs of neighbours, not single slabs."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import Final


class FreeSlabs:
    """Of ``total`` slabs, 0 .. total - 1; the lowest go first, so that what takes many at once has
    neighbours where that is possible. O(log n) for each run, however long."""

    def __init__(self, total: int) -> None:
        self.total: Final = total
        self.count = total
        # Runs [first, end) apart from each other. Those that touch are joined when they are taken.
        self._runs: list[tuple[int, int]] = [(0, total)] if total else []

    def take(self, count: int) -> list[int]:
        """The ``count`` lowest free slabs in order; there must be so many."""
        taken: list[int] = []
        while len(taken) < count:
            first, end = heapq.heappop(self._runs)
            kept = min(end, first + count - len(taken))
            taken.extend(range(first, kept))
            if kept < end:
                heapq.heappush(self._runs, (kept, end))
        self.count -= count
        return taken

    def give(self, slabs: Iterable[tuple[int, ...]]) -> None:
        """Take back these slabs, each group of them in rising order."""
        first = end = 0
        # In order, neighbours become one run.
        for group in sorted(slabs):
            self.count += len(group)
            if group[-1] - group[0] != len(group) - 1:
                for slab in group:
                    heapq.heappush(self._runs, (slab, slab + 1))
            elif group[0] == end:
                end = group[-1] + 1
            else:
                if first < end:
                    heapq.heappush(self._runs, (first, end))
                first, end = group[0], group[-1] + 1
        if first < end:
            heapq.heappush(self._runs, (first, end))
