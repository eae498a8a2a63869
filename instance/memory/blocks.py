"""Who owns which device block of the active model: counts only, no tensors.

Every block is in exactly one place::

    free --allocate--> held --release, published--> cached --allocate (evicts)--> held
      ^                 | ^                            | |
      +--release, else--+ +------------share-----------+ |
      +------------------------drop----------------------+

A held block has one reference for each call that uses it; a cached block has none, but its
content is published and can be shared again until it is evicted.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Final

Priority = Callable[[int, int], tuple[int, ...]]
"""(block, last access) -> sort key; the cached block with the smallest goes first."""


def least_recent(_block: int, last_access: int) -> tuple[int, ...]:
    return (last_access,)


@dataclass(frozen=True, slots=True)
class Allocation:
    """``blocks`` now held once each; ``evicted`` are those among them that were cached."""

    blocks: list[int]
    evicted: list[int]


class BlockPool:
    """``total`` blocks, 0 .. total - 1. The lowest free block goes first; cached blocks are
    evicted only when none is free, in the order of ``priority``."""

    def __init__(self, total: int, priority: Priority = least_recent) -> None:
        self.total: Final = total
        self._priority = priority
        # Free are the blocks given back, in a heap, and all those never used yet: the latter are
        # above every block in use, so the heap's first is the lowest of all.
        self._returned: list[int] = []
        self._unused = 0
        # Of the blocks that have been used: a pool of thousands is made at every switch, and most
        # are never full.
        self._references: list[int] = []
        self._published = bytearray()
        # A block is in the eviction heap, or among those that go there before the next eviction, at
        # most once: whether it is cached, and since when, is found out when its turn seems to have
        # come. Until a pool is full nobody asks, and so nothing is sorted.
        self._ticket: list[int] = []
        self._queued = bytearray()
        self._evictable: list[tuple[tuple[int, ...], int, int]] = []
        self._unsorted: list[int] = []
        self._cached = 0
        self._access = 0
        # No block above this one is held or cached.
        self._top = -1

    @property
    def free(self) -> int:
        return len(self._returned) + self.total - self._unused

    @property
    def cached(self) -> int:
        return self._cached

    @property
    def held(self) -> int:
        return self._unused - len(self._returned) - self._cached

    @property
    def available(self) -> int:
        """Blocks that ``allocate`` could hand out now."""
        return self.free + self._cached

    @property
    def highest(self) -> int:
        """The highest block that is held or cached, -1 without any. Amortised O(1): blocks are
        handed out low first, so all that it passes were given back since they were below one."""
        while self._top >= 0 and not (self._references[self._top] or self._ticket[self._top]):
            self._top -= 1
        return self._top

    def references(self, block: int) -> int:
        return self._references[block] if block < self._unused else 0

    def is_cached(self, block: int) -> bool:
        return 0 <= block < self._unused and self._ticket[block] != 0

    def count_cached(self, blocks: Sequence[int]) -> int:
        """How many of these are cached."""
        return len(blocks) - list(map(self._ticket.__getitem__, blocks)).count(0)

    def allocate(self, count: int) -> Allocation | None:
        """Hold ``count`` blocks, or change nothing and return None when there are too few."""
        if count > self.available:
            return None
        returned = min(count, len(self._returned))
        blocks = [heapq.heappop(self._returned) for _ in range(returned)]
        unused = min(count - returned, self.total - self._unused)
        blocks.extend(self._first_used(unused))
        if blocks:
            self._top = max(self._top, blocks[-1])
        evicted = [self._evict() for _ in range(count - returned - unused)]
        blocks.extend(evicted)
        for block in blocks:
            self._references[block] = 1
        return Allocation(blocks, evicted)

    def _first_used(self, count: int) -> range:
        """The lowest blocks that were never used."""
        first, self._unused = self._unused, self._unused + count
        for known in (self._references, self._ticket):
            known.extend(repeat(0, count))
        for marks in (self._published, self._queued):
            marks.extend(bytes(count))
        return range(first, self._unused)

    def share(self, blocks: Sequence[int]) -> None:
        """Add a reference to each of these held or cached blocks."""
        references, ticket = self._references, self._ticket
        self._check_used(blocks, "shared")
        for block in blocks:
            count = references[block]
            if not count:
                if not ticket[block]:
                    raise ValueError(f"block {block} is free and cannot be shared")
                ticket[block] = 0
                self._cached -= 1
            references[block] = count + 1

    def publish(self, blocks: Sequence[int]) -> None:
        """Keep these held blocks as cached once their last reference goes."""
        references, published = self._references, self._published
        self._check_used(blocks, "published")
        for block in blocks:
            if not references[block]:
                raise ValueError(f"block {block} is not held and cannot be published")
            published[block] = 1

    def release(self, blocks: Sequence[int]) -> None:
        """Drop one reference to each block of a path; its end will be evicted before its start."""
        references, published, ticket = self._references, self._published, self._ticket
        self._check_used(blocks, "released")
        for block in reversed(blocks):
            left = references[block] - 1
            if left < 0:
                raise ValueError(f"block {block} is not held and cannot be released")
            references[block] = left
            if left:
                continue
            if not published[block]:
                heapq.heappush(self._returned, block)
                continue
            self._cached += 1
            self._access += 1
            ticket[block] = self._access
            if not self._queued[block]:
                self._queued[block] = 1
                self._unsorted.append(block)

    def drop(self, block: int) -> None:
        """Free a cached block."""
        if not self.is_cached(block):
            raise ValueError(f"block {block} is not cached and cannot be dropped")
        self._ticket[block] = self._published[block] = 0
        self._cached -= 1
        heapq.heappush(self._returned, block)

    def _check_used(self, blocks: Sequence[int], what: str) -> None:
        if blocks and max(blocks) >= self._unused:
            raise ValueError(f"block {max(blocks)} was never held and cannot be {what}")

    def _sort(self) -> None:
        for block in self._unsorted:
            if ticket := self._ticket[block]:
                heapq.heappush(self._evictable, (self._priority(block, ticket), ticket, block))
            else:
                self._queued[block] = 0
        self._unsorted.clear()

    def _evict(self) -> int:
        while True:
            self._sort()
            _, ticket, block = heapq.heappop(self._evictable)
            self._queued[block] = 0
            if self._ticket[block] == ticket:
                self._ticket[block] = 0
                self._published[block] = 0
                self._cached -= 1
                return block
            if self._ticket[block]:
                self._queued[block] = 1
                self._unsorted.append(block)
