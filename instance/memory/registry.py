"""Which host slabs hold the state of which block of which model: counts only, no tensors.

Every slab is free or belongs to one block, and every block is in one of these places::

    reserve -> copying --commit, keyed--> published --pin, hold--> published, held
                |   |                      |   ^                        |
              abort commit, private      evict +------ unpin, drop -----+
                v   v                      v
              free  private, held --last unpin or drop--> free

A block is *held* by pins (a copy from or to it is under way) and by references (a saved call
will come back for it), counted apart; a block that is being copied has one pin. Only published
blocks that nobody holds are evicted, those of one row from its end.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import islice, repeat
from typing import Final

from alipes.instance.memory.changes import ChangeLog, HostChange
from alipes.instance.memory.rows import HostBlock, Row, joined, name_of, rows_of, still_here
from alipes.instance.memory.slabs import FreeSlabs

Priority = Callable[[HostBlock], tuple[int, ...]]
"""Sort key of a block that could be evicted; the smallest goes first. Of one path no block comes
before one that follows it."""


def least_recent(block: HostBlock) -> tuple[int, ...]:
    return (block.access,)


class HostRegistry:
    """``slabs`` slabs, 0 .. slabs - 1, shared by all models of an instance. A revision is a
    model's ``kv_format``: models of one revision share blocks. Misuse raises ``ValueError``."""

    def __init__(self, slabs: int, priority: Priority = least_recent) -> None:
        self.total: Final = slabs
        self.evicted = 0
        self._priority = priority
        self._keyed: defaultdict[str, dict[bytes, HostBlock]] = defaultdict(dict)
        self._published: defaultdict[str, dict[bytes, HostBlock]] = defaultdict(dict)
        self._slabs = FreeSlabs(slabs)
        self._held = 0
        self._clock = 0
        self._order = 0
        # Each row is there at most once, with the priority its last block had then: one that has
        # risen since is found out when its turn seems to have come.
        self._queue: list[tuple[tuple[int, ...], int, Row]] = []
        self._log = ChangeLog()

    @property
    def free(self) -> int:
        return self._slabs.count

    @property
    def used(self) -> int:
        return self.total - self._slabs.count

    @property
    def held(self) -> int:
        """Slabs of pinned or referenced blocks; all others in use can be evicted."""
        return self._held

    def find(self, revision: str, key: bytes) -> HostBlock | None:
        """The block of this key, be it published or still being copied."""
        return self._keyed[revision].get(key)

    def missing(self, revision: str, keys: Iterable[bytes]) -> list[int]:
        """The places of keys whose blocks are not here, published or still being copied."""
        known = self._keyed[revision]
        return [place for place, key in enumerate(keys) if key not in known]

    def match(self, revision: str, keys: Iterable[bytes]) -> list[HostBlock]:
        """Published blocks of the longest beginning of a path; ``keys`` is read no further."""
        return _until_none(self._published[revision].get, keys)

    def touch(self, blocks: Sequence[HostBlock]) -> None:
        """Note that this path was used: its end will be evicted before its start."""
        rows = self._rows(blocks)
        self._clock += len(blocks)
        self._stamp(rows, self._clock - len(blocks))

    def reserve(
        self, revision: str, key: bytes | None, slabs: int, parent: bytes = b""
    ) -> HostBlock | None:
        """A new block that is about to be copied, pinned and not matchable, evicting others as
        needed; None, with nothing changed, when too much is held."""
        if key is not None and key in self._keyed[revision]:
            raise ValueError(f"block {key.hex()} of {revision} is on the host already")
        row = self._add(revision, parent, [key], slabs)
        if row is None:
            return None
        self._clock += 1
        row.access = self._clock
        return row.blocks[0]

    def reserve_path(
        self,
        revision: str,
        parent: bytes,
        keys: Sequence[bytes],
        slabs: int,
        begun: Sequence[HostBlock] = (),
    ) -> tuple[list[HostBlock], list[int]]:
        """Blocks of the longest beginning of a path after ``parent`` that the host has or has
        room for, ``slabs`` each, and the places in it of those that are new and must be copied.
        No part of the path is evicted for another. ``begun`` are the blocks that it began with
        when it was last looked at: those that are still here need not be looked up."""
        self._clock += len(keys)
        rows, new = self._take_path(revision, parent, keys, slabs, begun)
        path = [block for row in rows for block in row.blocks]
        self._count(self._stamp(rows, self._clock - len(path)), 0, -1)
        return path, new

    def hold_path(
        self,
        revision: str,
        parent: bytes,
        keys: Sequence[bytes],
        private: int,
        slabs: int,
        begun: Sequence[HostBlock] = (),
    ) -> tuple[list[HostBlock], list[int]] | None:
        """As ``reserve_path`` for a saved call, which refers to all of it: the whole path, and
        ``private`` more blocks; None, with nothing changed, when too much is held."""
        begun = _as_far(begun, keys)
        rest = islice(keys, len(begun), None)
        found = [*begun, *filter(None, map(self._keyed[revision].get, rest))]
        there = self._rows(found)
        needed = len(keys) + private - sum(len(row.blocks) for row in there if row.held)
        if needed * slabs > self.total - self._held:
            return None
        # What is here cannot be evicted for what is new.
        self._count(there, 0, 1)
        rows, new = self._take_path(revision, parent, keys, slabs, begun)
        self._count(there, 0, -1)
        if private and (own := self._add(revision, b"", [None] * private, slabs)) is not None:
            own.references += 1
            rows.append(own)
            new.extend(range(len(keys), len(keys) + private))
        path = [block for row in rows for block in row.blocks]
        self._clock += len(path)
        self._stamp(rows, self._clock - len(path))
        return path, new

    def commit(self, blocks: Sequence[HostBlock]) -> None:
        """The copies of these blocks have ended: publish those with a key. A private one that
        nobody refers to any more is freed."""
        rows = self._those(blocks, lambda row: not row.complete, "is not being copied")
        for row in rows:
            row.complete = True
            if not row.private:
                keys = _keys(row.blocks)
                first = row.blocks[0]
                self._published[first.revision].update(zip(keys, row.blocks, strict=True))
                self._log.stored(first.revision, first.parent, keys)
        self._count(rows, -1, 0)

    def abort(self, blocks: Sequence[HostBlock]) -> None:
        """The copies of these blocks will not be made: free them. Drop references first."""
        idle = "is not being copied, or a saved call refers to it"
        rows = self._those(blocks, lambda row: not row.complete and not row.references, idle)
        self._count(rows, -1, 0)

    def pin(self, blocks: Sequence[HostBlock]) -> None:
        """Copies from these blocks begin."""
        rows = self._those(blocks, lambda row: row.complete, "is still being copied")
        self._count(rows, 1, 0)

    def unpin(self, blocks: Sequence[HostBlock]) -> None:
        fits = "has no such pin"
        self._count(self._those(blocks, lambda row: row.complete and row.pins > 0, fits), -1, 0)

    def hold(self, blocks: Sequence[HostBlock]) -> None:
        """A saved call refers to these blocks, whose copies may be under way."""
        self._count(self._rows(blocks), 0, 1)

    def drop(self, blocks: Sequence[HostBlock]) -> None:
        """Undo one ``hold``; a private block goes with the last one."""
        rows = self._those(blocks, lambda row: row.references > 0, "has no reference")
        self._count(rows, 0, -1)

    def take_changes(self) -> tuple[HostChange, ...]:
        """What was published and evicted since this was last asked, in order."""
        return self._log.take()

    def known(self) -> tuple[HostChange, ...]:
        """All that can be matched now, as ``take_changes`` would tell it."""
        log = ChangeLog()
        for revision, published in self._published.items():
            for key, block in published.items():
                log.stored(revision, block.parent, (key,))
        return log.take()

    # --- rows ----------------------------------------------------------------------------------

    def _rows(self, blocks: Sequence[HostBlock]) -> list[Row]:
        return rows_of(blocks, self._enqueue)

    def _those(
        self, blocks: Sequence[HostBlock], fit: Callable[[Row], bool], otherwise: str
    ) -> list[Row]:
        """The rows of the blocks, all of which must ``fit``."""
        rows = self._rows(blocks)
        for row in rows:
            if not fit(row):
                raise ValueError(f"{name_of(row.blocks[0])} {otherwise}")
        return rows

    def _count(self, rows: Iterable[Row], pins: int, references: int) -> None:
        for row in rows:
            before = row.held
            row.pins += pins
            row.references += references
            self._held += (row.held - before) * row.slabs
            if row.held:
                continue
            if row.private or not row.complete:
                blocks, row.blocks = row.blocks, []
                self._forget(blocks)
            self._enqueue(row)

    def _stamp(self, rows: Sequence[Row], access: int) -> list[Row]:
        """The blocks of a path were used, its end right after ``access``; the rows they are in
        then."""
        for row in reversed(rows):
            row.access = access + 1
            access += len(row.blocks)
        rows = joined(rows)
        for row in rows:
            self._enqueue(row)
        return rows

    def _take_path(
        self,
        revision: str,
        parent: bytes,
        keys: Sequence[bytes],
        slabs: int,
        begun: Sequence[HostBlock],
    ) -> tuple[list[Row], list[int]]:
        """The rows of the longest beginning that is here or has room, each referred to once more,
        and the places of what is new."""
        known = self._keyed[revision]
        rows: list[Row] = []
        new: list[int] = []
        place = 0
        while place < len(keys):
            there = _as_far(begun, keys) if place == 0 else []
            there += _until_none(known.get, islice(keys, place + len(there), None))
            if there:
                self._count(found := self._rows(there), 0, 1)
                rows += found
                place += len(there)
                continue
            end = next((at for at in range(place, len(keys)) if keys[at] in known), len(keys))
            before = keys[place - 1] if place else parent
            row = self._add(revision, before, keys[place:end], slabs)
            if row is None:
                break
            row.references += 1
            rows.append(row)
            new.extend(range(place, place + len(row.blocks)))
            place += len(row.blocks)
            if place < end:
                break
        return rows, new

    def _add(
        self, revision: str, parent: bytes, keys: Sequence[bytes | None], slabs: int
    ) -> Row | None:
        """A new row of the longest beginning of ``keys``, all of them None or none, that there is
        room for; None without any."""
        if slabs < 1:
            raise ValueError(f"a block has at least one slab, not {slabs}")
        keys = keys[: (self.total - self._held) // slabs]
        if not keys:
            return None
        self._make_room(len(keys) * slabs)
        row = Row(slabs, self._clock)
        each = iter(self._slabs.take(len(keys) * slabs))
        parents = (parent, *(key or b"" for key in keys[:-1]))
        places = zip(*[each] * slabs, strict=True)
        row.blocks = list(map(HostBlock, repeat(revision), keys, parents, places, repeat(row)))
        self._held += row.slabs
        if not row.private:
            self._keyed[revision].update(zip(_keys(row.blocks), row.blocks, strict=True))
        return row

    # --- eviction ------------------------------------------------------------------------------

    def _enqueue(self, row: Row) -> None:
        if row.queued or row.held or not row.blocks:
            return
        row.queued = True
        self._order += 1
        heapq.heappush(self._queue, (self._priority(row.blocks[-1]), self._order, row))

    def _make_room(self, slabs: int) -> None:
        """Evict until so many slabs are free."""
        gone: list[HostBlock] = []
        missing = slabs - self._slabs.count
        while missing > 0:
            row = self._next_row()
            while missing > 0 and row.blocks and self._is_next(row.blocks[-1]):
                gone.append(row.blocks.pop())
                row.access += 1
                missing -= row.size
            self._enqueue(row)
        for block in gone:
            assert block.key is not None
            self._log.removed(block.revision, block.key)
        self.evicted += len(gone)
        self._forget(gone)

    def _next_row(self) -> Row:
        """Take the row out of the queue whose last block is to be evicted next."""
        while True:
            priority, _, row = heapq.heappop(self._queue)
            row.queued = False
            if row.held or not row.blocks:
                continue
            if self._priority(row.blocks[-1]) == priority:
                return row
            self._enqueue(row)

    def _is_next(self, block: HostBlock) -> bool:
        return not self._queue or self._priority(block) <= self._queue[0][0]

    def _forget(self, blocks: Sequence[HostBlock]) -> None:
        """These blocks are in no row any more."""
        self._slabs.give(block.slabs for block in blocks)
        for block in blocks:
            block.slabs = ()
            if block.key is not None:
                del self._keyed[block.revision][block.key]
                self._published[block.revision].pop(block.key, None)


def _until_none(get: Callable[[bytes], HostBlock | None], keys: Iterable[bytes]) -> list[HostBlock]:
    # Stops at the first None, without a loop in Python: paths have thousands of blocks.
    return list(iter(map(get, keys).__next__, None))


def _as_far(begun: Sequence[HostBlock], keys: Sequence[bytes]) -> list[HostBlock]:
    """Of the blocks that a path began with, those that are still here."""
    return list(begun[: still_here(begun[: len(keys)], published=False)])


def _keys(blocks: Sequence[HostBlock]) -> list[bytes]:
    return [block.key for block in blocks if block.key is not None]
