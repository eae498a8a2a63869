"""Where chunks of other models' weights may lie in the KV area of the active one (Talaria 4.4).

The KV area holds one stretch of rows for each layer. Blocks are allocated low rows first, so the
high ends of the stretches stay unused longest; there the weights go, chunk by chunk::

    weights | layer 0: rows 0 ........ | band 1 | band 0 | layer 1: rows 0 ... | slots | runtime
                       KV grows -->      <-- chunks grow

A *band* is as many rows as one chunk needs, the same rows in every layer, and has a *place* for a
chunk in each layer. Place 0 is in the highest rows of the first layer, the next in those of the
second, and so on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate


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

    @property
    def layers(self) -> int:
        return len(self.row_bytes)

    @cached_property
    def rows_per_chunk(self) -> int:
        """Enough for a chunk wherever in a row its place begins, in every layer."""
        lost = self.align - math.gcd(self.align, self.base, *self.row_bytes)
        return -(-(self.chunk_bytes + lost) // min(self.row_bytes))

    @property
    def bands(self) -> int:
        return self.kv_blocks // self.rows_per_chunk

    @property
    def places(self) -> int:
        return self.bands * self.layers

    @property
    def lowest(self) -> int:
        """The lowest row of the lowest band."""
        return self.kv_blocks - self.bands * self.rows_per_chunk

    def band_of(self, row: int) -> int:
        """The band that holds ``row``, which must not be below ``lowest``; 0 is the highest."""
        return (self.kv_blocks - 1 - row) // self.rows_per_chunk

    def rows(self, band: int) -> range:
        end = self.kv_blocks - band * self.rows_per_chunk
        return range(end - self.rows_per_chunk, end)

    def offset(self, place: int) -> int:
        """Bytes from the start of the arena to the place."""
        band, layer = divmod(place, self.layers)
        first = self._starts[layer] + self.rows(band).start * self.row_bytes[layer]
        return -(-first // self.align) * self.align

    @cached_property
    def _starts(self) -> tuple[int, ...]:
        """Where each layer begins in the arena."""
        sizes = (self.kv_blocks * row for row in self.row_bytes)
        return tuple(accumulate(sizes, initial=self.base))


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
