"""Where chunks of other models' weights may lie in the KV area of the active one (Talaria 4.4).

The KV area holds one stretch of rows for each layer. Blocks are allocated low rows first, so the
high ends of the stretches stay unused longest; there the weights go, chunk by chunk::

    weights | layer 0: rows 0 ........ | 1 | 0 | layer 1: rows 0 ........ | 3 | 2 | slots | runtime
                       KV grows -->    <-- chunks

A *place* has room for one chunk within one layer. Place 0 is the one whose lowest row is highest:
blocks that grow from row 0 take the last place first.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

LARGEST_CHUNK: Final = 64 << 20
GRANULE: Final = 64 << 10
"""Process memory changes places in these: a multiple of every page size that Linux has on the
machines it runs torch on."""


@dataclass(frozen=True, slots=True)
class Place:
    """Room for a chunk ``offset`` bytes into the arena, in these rows of a layer's blocks."""

    offset: int
    rows: range


@dataclass(frozen=True)
class StagingArea:
    """The KV area of the active model, ``base`` bytes into the arena: ``kv_blocks`` rows in each
    layer, of ``row_bytes[layer]`` bytes each. A place begins at a multiple of ``align`` bytes of
    the arena and has room for ``chunk_bytes``."""

    kv_blocks: int
    row_bytes: tuple[int, ...]
    chunk_bytes: int
    base: int = 0
    align: int = 1

    def __post_init__(self) -> None:
        if self.kv_blocks < 0 or not self.row_bytes or min(self.row_bytes) < 1:
            raise ValueError(f"no such KV area: {self}")
        if self.chunk_bytes < 1 or self.align < 1 or self.chunk_bytes % self.align:
            raise ValueError(f"chunks of {self.chunk_bytes} bytes do not lie {self.align} apart")

    @cached_property
    def places(self) -> tuple[Place, ...]:
        """All of them, the one with the highest lowest row first."""
        found, start = [], self.base
        for row in self.row_bytes:
            end = start + self.kv_blocks * row
            offset = (end - self.chunk_bytes) // self.align * self.align
            while offset >= start:
                last = -(-(offset + self.chunk_bytes - start) // row)
                found.append(Place(offset, range((offset - start) // row, last)))
                offset -= self.chunk_bytes
            start = end
        return tuple(sorted(found, key=lambda place: -place.rows.start))

    @cached_property
    def _falling(self) -> list[int]:
        return [-place.rows.start for place in self.places]

    def above(self, rows: int) -> int:
        """How many places, from the first, lie wholly in rows from ``rows`` on."""
        return bisect_right(self._falling, -rows)


@dataclass(frozen=True, slots=True)
class Chunks:
    """Weights of ``nbytes`` cut into chunks of ``size``, of which the last may be shorter."""

    nbytes: int
    size: int

    @property
    def count(self) -> int:
        return -(-self.nbytes // self.size)

    def bytes_of(self, chunk: int) -> int:
        return min(self.size, self.nbytes - chunk * self.size)


def part_held(area: StagingArea, weights: Sequence[int]) -> float:
    """Of models with so many bytes of weights each, the part for whose chunks ``area`` has places
    while none of its rows is in use; 1 at most."""
    chunks = sum(Chunks(nbytes, area.chunk_bytes).count for nbytes in weights)
    return min(1.0, len(area.places) / chunks) if chunks else 1.0


def frame_bytes(layer: int, weights: int, granule: int) -> int:
    """Chunks that change places by exchanging pages of ``granule`` bytes: the arena is cut into
    frames of one size, and a chunk fills one wherever it is, so that nothing but whole frames ever
    moves. As large as they can be while a layer's blocks, ``layer`` bytes at least, have several
    and ``weights``, the largest of any model, are not all in a few: moving a frame costs much the
    same whatever its size."""
    frame = granule
    while 2 * frame <= min(LARGEST_CHUNK, layer // 4, weights // 16):
        frame *= 2
    return frame
