"""Bytes that change places within one memory: in which order to copy them, or which frames to
exchange. Sources do not overlap one another, nor do targets; a source may overlap targets."""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Move:
    """What is at ``source`` is wanted at ``target``, bytes from the start of the memory."""

    source: int
    target: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Cycle:
    """``nbytes`` at each of ``starts`` go to the next one. Those at the last go to the first, or,
    where nobody wants them, wherever bytes are missing then: ``open``."""

    starts: tuple[int, ...]
    nbytes: int
    open: bool = False


def order_copies(moves: Sequence[Move], needed: int) -> tuple[list[Move], list[Move]]:
    """Copies in an order in which none overwrites what another is still to read, and the moves
    that have to be given up for it. Where they block one another in a ring, those from index
    ``needed`` on go first, then those that block most."""
    by_source = sorted(range(len(moves)), key=lambda i: moves[i].source)
    starts = [moves[i].source for i in by_source]
    ends = [moves[i].source + moves[i].nbytes for i in by_source]
    blocks: list[list[int]] = [[] for _ in moves]
    waits = [0] * len(moves)
    for index, move in enumerate(moves):
        first = bisect_right(ends, move.target)
        for other in by_source[first : bisect_left(starts, move.target + move.nbytes)]:
            # One that overlaps itself waits for ever, and so is given up.
            if other != index or move.source != move.target:
                blocks[other].append(index)
                waits[index] += 1
    victims = [(i < needed, -len(blocks[i]), i) for i in range(len(moves))]
    heapq.heapify(victims)
    return _release(moves, blocks, waits, victims)


def _release(
    moves: Sequence[Move],
    blocks: list[list[int]],
    waits: list[int],
    victims: list[tuple[bool, int, int]],
) -> tuple[list[Move], list[Move]]:
    ordered: list[Move] = []
    dropped: list[Move] = []
    left = [True] * len(moves)
    ready = [i for i, count in enumerate(waits) if not count]
    while True:
        if ready:
            index = ready.pop()
            ordered.append(moves[index])
        else:
            while victims and not left[victims[0][2]]:
                heapq.heappop(victims)
            if not victims:
                return ordered, dropped
            index = heapq.heappop(victims)[2]
            dropped.append(moves[index])
        left[index] = False
        for other in blocks[index]:
            waits[other] -= 1
            if not waits[other] and left[other]:
                ready.append(other)


def exchange_cycles(moves: Sequence[Move]) -> list[Cycle]:
    """The exchange that brings every source to its target and loses nothing. All moves are of
    frames: as many bytes each, at multiples of that. Raises ``ValueError`` otherwise."""
    size = moves[0].nbytes if moves else 1
    follows = {move.source: move.target for move in moves}
    targets = set(follows.values())
    if len(follows) < len(moves) or len(targets) < len(moves):
        raise ValueError("two moves have one source or one target")
    for move in moves:
        if move.nbytes != size or move.source % size or move.target % size:
            raise ValueError(f"{move} is not of a frame of {size} bytes")
    begins = [source for source in follows if source not in targets]
    cycles = [Cycle(_chain(begin, follows), size, open=True) for begin in begins]
    while follows:
        ring = _chain(next(iter(follows)), follows)
        if len(ring) > 2:
            cycles.append(Cycle(ring[:-1], size))
    return cycles


def _chain(begin: int, follows: dict[int, int]) -> tuple[int, ...]:
    """From here on as far as moves lead; they are taken out of ``follows``."""
    chain = [begin]
    while chain[-1] in follows:
        chain.append(follows.pop(chain[-1]))
    return tuple(chain)
