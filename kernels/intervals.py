"""Which moves of bytes within one memory may happen at once."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

from alipes.kernels.shapes import Move


class _Covered:
    """Bytes as intervals apart from each other, in order."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def touches(self, start: int, end: int) -> bool:
        at = bisect_right(self._ends, start)
        return at < len(self._starts) and self._starts[at] < end

    def add(self, start: int, end: int) -> None:
        first, last = bisect_left(self._ends, start), bisect_right(self._starts, end)
        if first < last:
            start, end = min(start, self._starts[first]), max(end, self._ends[last - 1])
        self._starts[first:last], self._ends[first:last] = [start], [end]


def waves(moves: Sequence[Move]) -> Iterator[list[Move]]:
    """The moves in pieces, such that doing those of a piece in any order, or at once, and the
    pieces one after another, is doing all in order. A move that overlaps itself is alone."""
    wave: list[Move] = []
    read, written = _Covered(), _Covered()
    alone = False
    for move in moves:
        source, target, count = move
        if not count or source == target:
            continue
        itself = abs(source - target) < count
        ends = (source, source + count), (target, target + count)
        if wave and (
            alone
            or itself
            or written.touches(*ends[0])
            or written.touches(*ends[1])
            or read.touches(*ends[1])
        ):
            yield wave
            wave, read, written = [], _Covered(), _Covered()
        wave.append(move)
        read.add(*ends[0])
        written.add(*ends[1])
        alone = itself
    if wave:
        yield wave
