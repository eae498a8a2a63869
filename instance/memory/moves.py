"""Bytes that change places within one memory: in which order to copy them, or which pages to
exchange. Sources do not overlap one another, nor do targets; a source may overlap targets."""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Units = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Move:
    """What is at ``source`` is wanted at ``target``, bytes from the start of the memory."""

    source: int
    target: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Cycle:
    """``nbytes`` at each of ``starts`` go to the next one, those at the last to the first."""

    starts: tuple[int, ...]
    nbytes: int


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
    """The exchange that brings every source to its target and loses nothing: what a target held
    goes to where a source has left."""
    moves = [move for move in moves if move.nbytes and move.source != move.target]
    if not moves:
        return []
    unit = math.gcd(*(n for m in moves for n in (m.source, m.target, m.nbytes)))
    sources = _units([(m.source // unit, m.nbytes // unit) for m in moves])
    targets = _units([(m.target // unit, m.nbytes // unit) for m in moves])
    if len(np.unique(sources)) < len(sources) or len(np.unique(targets)) < len(targets):
        raise ValueError("two moves have a byte in common at the same end")
    follows = np.arange(max(sources.max(), targets.max()) + 2)
    follows[sources] = targets
    left = np.setdiff1d(sources, targets, assume_unique=True)
    follows[_ends_of(left, follows, sources)] = left
    starts = follows != np.roll(follows, 1) + 1
    while (joined := starts | starts[follows]).sum() > starts.sum():
        starts = joined
    return _walk(follows, np.flatnonzero(starts), unit)


def _units(spans: Sequence[tuple[int, int]]) -> Units:
    return np.concatenate([np.arange(first, first + count) for first, count in spans])


def _ends_of(begins: Units, follows: Units, sources: Units) -> Units:
    """Where the chains of moves that begin here end: at targets that are no source."""
    moving = np.zeros(len(follows), dtype=np.bool_)
    moving[sources] = True
    ends = begins.copy()
    going = np.arange(len(ends))
    while len(going):
        ends[going] = follows[ends[going]]
        going = going[moving[ends[going]]]
    return ends


def _walk(follows: Units, starts: Units, unit: int) -> list[Cycle]:
    """Runs of units that move alike, the runs of a cycle all as long as each other."""
    lengths = dict(zip(starts[:-1].tolist(), np.diff(starts).tolist(), strict=True))
    cycles: list[Cycle] = []
    seen: set[int] = set()
    for start in lengths:
        if start in seen or follows[start] == start:
            continue
        ring = [start]
        while (following := int(follows[ring[-1]])) != start:
            ring.append(following)
        seen.update(ring)
        cycles.append(Cycle(tuple(at * unit for at in ring), lengths[start] * unit))
    return cycles
