"""Which host slabs hold the state of which block of which model: counts only, no tensors.

Every slab is free or belongs to one block, and every block is in one of these places::

    reserve -> copying --commit, keyed--> published --pin, hold--> published, held
                |   |                      |   ^                        |
              abort commit, private      evict +------ unpin, drop -----+
                v   v                      v
              free  private, held --last unpin or drop--> free

A block is *held* by pins (a copy from or to it is under way) and by references (a saved call
will come back for it), counted apart; a block that is being copied has one pin. Only published
blocks that nobody holds are evicted.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from alipes.instance.memory.changes import ChangeLog, HostChange


@dataclass(slots=True, eq=False)
class HostBlock:
    """One block of a model on the host; only the registry changes it. ``key`` names the whole
    prefix that ends in it; without one only its owner can use it. ``slabs`` are in the order in
    which the block's bytes fill them, and empty once the block is gone."""

    revision: str
    key: bytes | None
    parent: bytes
    slabs: tuple[int, ...]
    pins: int = 1
    references: int = 0
    complete: bool = False
    access: int = 0
    queued: bool = field(default=False, repr=False)

    @property
    def published(self) -> bool:
        return self.complete and self.key is not None and bool(self.slabs)

    @property
    def held(self) -> bool:
        return self.pins > 0 or self.references > 0


Priority = Callable[[HostBlock], tuple[int, ...]]
"""Sort key of a block that could be evicted; the smallest goes first."""


def least_recent(block: HostBlock) -> tuple[int, ...]:
    return (block.access,)


@dataclass(slots=True)
class Kept:
    """Blocks that nobody holds and that are not to be evicted now, by ``id``."""

    ids: set[int] = field(default_factory=set)
    slabs: int = 0

    def add(self, block: HostBlock) -> None:
        self.ids.add(id(block))
        self.slabs += len(block.slabs)


class HostRegistry:
    """``slabs`` slabs, 0 .. slabs - 1, shared by all models of an instance. A revision is a
    model's ``kv_format``: models of one revision share blocks. Misuse raises ``ValueError``."""

    def __init__(self, slabs: int, priority: Priority = least_recent) -> None:
        self.total: Final = slabs
        self.evicted = 0
        self._priority = priority
        self._keyed: dict[tuple[str, bytes], HostBlock] = {}
        # Slabs given back, in a heap, and all those never used yet, which are above them: the
        # lowest go first, so that a block's slabs are neighbours where that is possible.
        self._returned: list[int] = []
        self._unused = 0
        self._held = 0
        self._clock = 0
        self._order = 0
        # Each block is there at most once, with the priority it had then: one that has risen since
        # is found out when its turn seems to have come.
        self._queue: list[tuple[tuple[int, ...], int, HostBlock]] = []
        self._log = ChangeLog()

    @property
    def free(self) -> int:
        return len(self._returned) + self.total - self._unused

    @property
    def used(self) -> int:
        return self._unused - len(self._returned)

    @property
    def held(self) -> int:
        """Slabs of pinned or referenced blocks; all others in use can be evicted."""
        return self._held

    def find(self, revision: str, key: bytes) -> HostBlock | None:
        """The block of this key, be it published or still being copied."""
        return self._keyed.get((revision, key))

    def match(self, revision: str, keys: Iterable[bytes]) -> list[HostBlock]:
        """Published blocks of the longest beginning of a path; ``keys`` is read no further."""
        blocks: list[HostBlock] = []
        for key in keys:
            block = self._keyed.get((revision, key))
            if block is None or not block.published:
                break
            blocks.append(block)
        return blocks

    def touch(self, blocks: Sequence[HostBlock]) -> None:
        """Note that this path was used: its end will be evicted before its start."""
        _require(blocks, lambda block: True, "")
        for block in reversed(blocks):
            self._clock += 1
            block.access = self._clock
            self._enqueue(block)

    def reserve(
        self, revision: str, key: bytes | None, slabs: int, parent: bytes = b""
    ) -> HostBlock | None:
        """A new block that is about to be copied, pinned and not matchable, evicting others as
        needed; None, with nothing changed, when too much is held."""
        if key is not None and (revision, key) in self._keyed:
            raise ValueError(f"block {key.hex()} of {revision} is on the host already")
        self._clock += 1
        return self._reserve(
            HostBlock(revision, key, parent, (), access=self._clock), slabs, Kept()
        )

    def reserve_path(
        self, revision: str, parent: bytes, keys: Sequence[bytes], slabs: int
    ) -> tuple[list[HostBlock], list[int]]:
        """Blocks of the longest beginning of a path after ``parent`` that the host has or has
        room for, ``slabs`` each, and the places in it of those that are new and must be copied.
        No part of the path is evicted for another."""
        path: list[HostBlock] = []
        new: list[int] = []
        kept = Kept()
        last = self._clock = self._clock + len(keys)
        for place, key in enumerate(keys):
            known = self._keyed.get((revision, key))
            block = known or self._reserve(HostBlock(revision, key, parent, ()), slabs, kept)
            if block is None:
                break
            if known is None:
                new.append(place)
            elif not known.held:
                kept.add(known)
            block.access = last - place
            self._enqueue(block)
            path.append(block)
            parent = key
        return path, new

    def commit(self, blocks: Sequence[HostBlock]) -> None:
        """The copies of these blocks have ended: publish those with a key. A private one that
        nobody refers to any more is freed."""
        _require(blocks, lambda block: not block.complete, "is not being copied")
        for block in blocks:
            block.complete = True
            if block.key is not None:
                self._log.stored(block.revision, block.parent, block.key)
            self._count(block, -1, 0)

    def abort(self, blocks: Sequence[HostBlock]) -> None:
        """The copies of these blocks will not be made: free them. Drop references first."""
        idle = "is not being copied, or a saved call refers to it"
        _require(blocks, lambda block: not block.complete and not block.references, idle)
        for block in blocks:
            self._count(block, -1, 0)

    def pin(self, blocks: Sequence[HostBlock]) -> None:
        """Copies from these blocks begin."""
        _require(blocks, lambda block: block.complete, "is still being copied")
        for block in blocks:
            self._count(block, 1, 0)

    def unpin(self, blocks: Sequence[HostBlock]) -> None:
        _require(blocks, lambda block: block.complete and block.pins > 0, "has no such pin")
        for block in blocks:
            self._count(block, -1, 0)

    def hold(self, blocks: Sequence[HostBlock]) -> None:
        """A saved call refers to these blocks, whose copies may be under way."""
        _require(blocks, lambda block: True, "")
        for block in blocks:
            self._count(block, 0, 1)

    def drop(self, blocks: Sequence[HostBlock]) -> None:
        """Undo one ``hold``; a private block goes with the last one."""
        _require(blocks, lambda block: block.references > 0, "has no reference")
        for block in blocks:
            self._count(block, 0, -1)

    def take_changes(self) -> tuple[HostChange, ...]:
        """What was published and evicted since this was last asked, in order."""
        return self._log.take()

    def known(self) -> tuple[HostChange, ...]:
        """All that can be matched now, as ``take_changes`` would tell it."""
        log = ChangeLog()
        for block in self._keyed.values():
            if block.published and block.key is not None:
                log.stored(block.revision, block.parent, block.key)
        return log.take()

    def _count(self, block: HostBlock, pins: int, references: int) -> None:
        before = block.held
        block.pins += pins
        block.references += references
        self._held += (block.held - before) * len(block.slabs)
        if not block.held and not block.published:
            self._free(block)
        self._enqueue(block)

    def _enqueue(self, block: HostBlock) -> None:
        if block.queued or block.held or not block.slabs:
            return
        block.queued = True
        self._order += 1
        heapq.heappush(self._queue, (self._priority(block), self._order, block))

    def _reserve(self, block: HostBlock, slabs: int, kept: Kept) -> HostBlock | None:
        """Give a new block its slabs; those ``kept`` are not evicted for it."""
        if slabs < 1:
            raise ValueError(f"a block has at least one slab, not {slabs}")
        if slabs > self.total - self._held - kept.slabs:
            return None
        while self.free < slabs:
            self._evict(kept)
        block.slabs = self._take(slabs)
        self._held += slabs
        if block.key is not None:
            self._keyed[block.revision, block.key] = block
        return block

    def _evict(self, kept: Kept) -> None:
        passed: list[HostBlock] = []
        while True:
            priority, _, block = heapq.heappop(self._queue)
            block.queued = False
            if id(block) in kept.ids:
                passed.append(block)
            elif self._priority(block) != priority:
                self._enqueue(block)
            elif not block.held:
                break
        assert block.key is not None
        self._log.removed(block.revision, block.key)
        self.evicted += 1
        self._free(block)
        for other in passed:
            self._enqueue(other)

    def _take(self, count: int) -> tuple[int, ...]:
        returned = min(count, len(self._returned))
        slabs = [heapq.heappop(self._returned) for _ in range(returned)]
        slabs.extend(range(self._unused, self._unused + count - returned))
        self._unused += count - returned
        return tuple(slabs)

    def _free(self, block: HostBlock) -> None:
        if block.key is not None:
            del self._keyed[block.revision, block.key]
        for slab in block.slabs:
            heapq.heappush(self._returned, slab)
        block.slabs = ()


def _require(
    blocks: Sequence[HostBlock], fits: Callable[[HostBlock], bool], otherwise: str
) -> None:
    for block in blocks:
        if not block.slabs or not fits(block):
            name = "private" if block.key is None else block.key.hex()
            why = otherwise if block.slabs else "is gone from the host"
            raise ValueError(f"block {name} of {block.revision} {why}")
