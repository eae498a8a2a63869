"""Host blocks, and the rows of them that share one state.

Neighbours in a path that are in one state are one row: pins, references and order of use are kept
for the whole of it, so that what is done to a path of thousands of blocks costs as much as it has
rows. A row is cut in two where something is done to a part of it, and joined with the next one
where a path that goes through both was used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec


@dataclass(slots=True, eq=False)
class Row:
    """Consecutive blocks of one path, all private or none, of ``size`` slabs each. ``access``: when
    the last of them was used; each one before it was used one later. ``apart``: it was cut off
    where paths part, or may again. Gone once it has no blocks."""

    size: int
    access: int
    blocks: list[HostBlock] = field(default_factory=list)
    pins: int = 1
    references: int = 0
    complete: bool = False
    apart: bool = False
    queued: bool = field(default=False, repr=False)

    @property
    def slabs(self) -> int:
        return len(self.blocks) * self.size

    @property
    def private(self) -> bool:
        return self.blocks[-1].key is None

    @property
    def held(self) -> bool:
        return self.pins > 0 or self.references > 0

    def cut(self, place: int) -> Row:
        """Take the blocks from ``place`` on off into a row of their own."""
        rest = Row(
            self.size,
            self.access,
            self.blocks[place:],
            self.pins,
            self.references,
            self.complete,
            apart=True,
        )
        for block in rest.blocks:
            block.row = rest
        del self.blocks[place:]
        self.access += len(rest.blocks)
        return rest

    def join(self, after: Row) -> bool:
        """Take in the row that follows in a path, if all that is kept of both agrees."""
        if self.blocks[-1].key != after.blocks[0].parent or self.private or after.private:
            return False
        if self.access != after.access + len(after.blocks) or after.apart:
            return False
        if (self.size, self.pins, self.references) != (after.size, after.pins, after.references):
            return False
        if self.complete != after.complete:
            return False
        for block in after.blocks:
            block.row = self
        self.blocks += after.blocks
        self.access = after.access
        after.blocks = []
        return True


class HostBlock(msgspec.Struct, eq=False):
    """One block of a model on the host; only the registry changes it. ``key`` names the whole
    prefix that ends in it; without one only its owner can use it. ``slabs`` are in the order in
    which the block's bytes fill them, and empty once the block is gone."""

    revision: str
    key: bytes | None
    parent: bytes
    slabs: tuple[int, ...]
    row: Row

    def __repr__(self) -> str:
        return f"<{name_of(self)}, slabs {self.slabs}>"

    @property
    def pins(self) -> int:
        return self.row.pins

    @property
    def references(self) -> int:
        return self.row.references

    @property
    def complete(self) -> bool:
        return self.row.complete

    @property
    def held(self) -> bool:
        return self.row.held

    @property
    def access(self) -> int:
        """When it was used last."""
        row = self.row
        if row.blocks[-1] is self:
            return row.access
        return row.access + len(row.blocks) - 1 - row.blocks.index(self)


def rows_of(blocks: Sequence[HostBlock], was_cut: Callable[[Row], None]) -> list[Row]:
    """The rows that these blocks are, each as often as its blocks are named; rows of which only a
    part is named are cut, and ``was_cut`` is given what was cut off. Raises ``ValueError`` for a
    block that is gone."""
    blocks, whole = list(blocks), False
    rows: list[Row] = []
    while not whole:
        rows, whole, place = [], True, 0
        while place < len(blocks):
            row = blocks[place].row
            if not row.blocks or not blocks[place].slabs:
                raise ValueError(f"{name_of(blocks[place])} is gone from the host")
            if blocks[place : place + len(row.blocks)] != row.blocks:
                # A row that was named before may have been the one that is cut: look again.
                row, whole = _part(row, blocks, place, was_cut), False
            rows.append(row)
            place += len(row.blocks)
    return rows


def _part(row: Row, blocks: list[HostBlock], place: int, was_cut: Callable[[Row], None]) -> Row:
    """Cut from ``row`` the longest part that is named from ``place`` on."""
    first = row.blocks.index(blocks[place])
    if first:
        row = row.cut(first)
        was_cut(row)
    same = 0
    for own, named in zip(row.blocks, blocks[place:], strict=False):
        if own is not named:
            break
        same += 1
    if same < len(row.blocks):
        was_cut(row.cut(same))
    return row


def still_here(blocks: Sequence[HostBlock], published: bool) -> int:
    """How many blocks of a path, from the first, are still on the host; only as far as they are
    ``published`` where that counts. Sooner than to look every one up."""
    place = 0
    while place < len(blocks):
        block = blocks[place]
        row = block.row
        if not block.slabs or (published and not row.complete):
            break
        first = 0 if row.blocks[0] is block else row.blocks.index(block)
        part = row.blocks[first : first + len(blocks) - place]
        if blocks[place : place + len(part)] == part:
            place += len(part)
            continue
        # The row goes on with another path than this one.
        place += next(i for i, own in enumerate(part) if own is not blocks[place + i])
    return place


def joined(rows: Sequence[Row]) -> list[Row]:
    """The rows of a path that was just used, those joined that can be; each at most once."""
    left: list[Row] = []
    for row in rows:
        if row.blocks and not (left and (row is left[-1] or left[-1].join(row))):
            left.append(row)
    return left


def name_of(block: HostBlock) -> str:
    name = "private" if block.key is None else block.key.hex()
    return f"block {name} of {block.revision}"
