"""What all ranks of a tensor-parallel group hold of a copy to the host (Talaria 4.3 and B).

Every rank copies its own share of every block, and says how far it has come::

    rank 0   m1 m2 m3 m4 | all        one mark a block, from the first, once its bytes are found
    rank 1   m1 m2 m3    | all        on the host as they were on the device
    rank 2   m1 m2 x3 m4 | all
             -----
             the verdict: 2 blocks    nothing may be published before it, nothing beyond it

What a rank does not say is not known, so one that is late, or never speaks again, costs reuse and
nothing else.
It may still read the device and write the slabs of a copy on which the verdict is given; whoever
uses this sees to it that each rank makes its copies one after another, so that what is agreed on
later cannot be overwritten by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

from alipes.instance.engine.protocol import CopyEnd


@dataclass(slots=True)
class _Copy:
    """One that has begun; ``marks`` and ``open`` are by rank, open being who has more to say."""

    blocks: int
    due: int
    marks: list[list[int]]
    open: set[int]

    @property
    def agreed(self) -> int:
        columns = zip(*self.marks, strict=False)
        return sum(1 for _ in takewhile(lambda marks: len(set(marks)) == 1, columns))


class Agreement:
    """Of ``ranks`` ranks, 0 .. ranks - 1, on copies that are decided ``bound`` ns after they have
    begun at the latest. Misuse raises ``ValueError`` and changes nothing."""

    def __init__(self, ranks: int, bound: int) -> None:
        self._ranks: Final = ranks
        self._bound: Final = bound
        # In the order of their tickets, which is that in which they are decided.
        self._copies: dict[int, _Copy] = {}
        self._last: int | None = None

    def begin(self, ticket: int, blocks: int, now: int) -> None:
        """All ranks are told to copy ``blocks`` blocks; tickets rise."""
        if self._last is not None and ticket <= self._last:
            raise ValueError(f"copy {ticket} comes after {self._last}: tickets must rise")
        self._last = ticket
        marks: list[list[int]] = [[] for _ in range(self._ranks)]
        everyone = set(range(self._ranks))
        self._copies[ticket] = _Copy(blocks, now + self._bound, marks, everyone)

    def report(self, rank: int, ticket: int, marks: Sequence[int], ended: bool) -> None:
        """``rank`` holds so many more blocks of the copy intact, without a gap, and has nothing
        to add where ``ended``. A mark is what all ranks must have in common: a checksum of the
        bytes where all hold the same state, which is stored once, anything that is the same
        for the block where each holds a shard. What comes after the verdict is too late."""
        if not 0 <= rank < self._ranks:
            raise ValueError(f"rank {rank} is not one of {self._ranks}")
        if self._last is None or ticket > self._last:
            raise ValueError(f"copy {ticket} has not begun")
        copy = self._copies.get(ticket)
        if copy is None:
            return
        if rank not in copy.open:
            raise ValueError(f"rank {rank} has ended its copy {ticket}")
        if len(copy.marks[rank]) + len(marks) > copy.blocks:
            raise ValueError(f"copy {ticket} has no more than {copy.blocks} blocks")
        copy.marks[rank] += marks
        if ended:
            copy.open.remove(rank)

    def decided(self, now: int) -> tuple[CopyEnd, ...]:
        """Verdicts since this was last asked, in the order of tickets: of copies that every rank
        has ended, and of those whose bound has passed."""
        ends: list[CopyEnd] = []
        while self._copies:
            ticket, copy = next(iter(self._copies.items()))
            if copy.open and now < copy.due:
                break
            ends.append(CopyEnd(ticket, copy.agreed))
            del self._copies[ticket]
        return tuple(ends)

    @property
    def pending(self) -> int:
        """Copies on which there is no verdict yet."""
        return len(self._copies)
