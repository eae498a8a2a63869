"""How long the sessions of a model stay away, and whether an open slot should wait for them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from alipes.instance.scheduler.slot import NANOSECONDS

DEPARTURES: Final = 64
"""How many of the last departures are looked at."""


@dataclass(slots=True, eq=False)
class Departure:
    """A branch finished a call at ``left`` (ns); ``gap`` (ns) later its next one came, None
    while it has not."""

    branch: bytes
    left: int
    gap: int | None = None

    def away(self, now: int) -> int:
        return now - self.left if self.gap is None else self.gap


class Returns:
    """The last departures of one model's branches. One that never came back counts as one that
    is still out."""

    def __init__(self) -> None:
        self._departures: deque[Departure] = deque()
        self._out: dict[bytes, Departure] = {}

    def departed(self, branch: bytes, now: int) -> None:
        """A call of the branch ended, and another is likely to come."""
        departure = self._out.get(branch)
        if departure is not None:
            departure.left = now
            return
        if len(self._departures) == DEPARTURES:
            oldest = self._departures.popleft()
            if oldest.gap is None:
                del self._out[oldest.branch]
        self._out[branch] = Departure(branch, now)
        self._departures.append(self._out[branch])

    def arrived(self, branch: bytes, now: int) -> None:
        departure = self._out.pop(branch, None)
        if departure is not None:
            departure.gap = now - departure.left

    def chance(self, now: int, seconds: float) -> float:
        """The part of the branches that are out which is likely to be back within ``seconds``, by
        the departures that were away for longer than each is now; 0 where none is out."""
        if not self._out:
            return 0.0
        back = 0.0
        for branch in self._out.values():
            elapsed, peers = self._compare(branch, now)
            soon = (d.gap is not None and d.gap - elapsed <= seconds * NANOSECONDS for d in peers)
            # Of the first ones nothing is known, so that they may well be back.
            back += sum(soon) / len(peers) if peers else float(len(self._departures) == 1)
        return back / len(self._out)

    def gains(self, since: int, now: int, value: float) -> list[tuple[float, float]]:
        """What waiting brings: (seconds from now, expected gain) for each way in which a branch
        that left at ``since`` or later may return. A return after t seconds is worth ``value - t``;
        its probability is that of the departures which were away for longer than the branch is
        now, those that have not ended included."""
        gains: list[tuple[float, float]] = []
        for branch in self._out.values():
            if branch.left < since:
                continue
            elapsed, peers = self._compare(branch, now)
            for peer in peers:
                after = (peer.away(now) - elapsed) / NANOSECONDS
                if peer.gap is not None and after < value:
                    gains.append((after, (value - after) / len(peers)))
        return sorted(gains)

    def _compare(self, branch: Departure, now: int) -> tuple[int, list[Departure]]:
        """How long (ns) a branch that is out has been away, and those that were for longer."""
        elapsed = now - branch.left
        return elapsed, [d for d in self._departures if d is not branch and d.away(now) > elapsed]


def best_wait(gains: list[tuple[float, float]], waiting: int, limit: float) -> float:
    """The wait, in seconds up to ``limit``, whose expected gain most exceeds what it costs the
    ``waiting`` calls; 0 when none does. ``gains`` are sorted by time."""
    best, best_net, gained = 0.0, 0.0, 0.0
    for after, gain in gains:
        if after > limit:
            break
        gained += gain
        if gained - after * waiting > best_net:
            best, best_net = after, gained - after * waiting
    return best
