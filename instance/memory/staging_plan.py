"""Where each chunk of the next model's weights lies in the KV area of the active one (Talaria 4.4).

The KV area holds one stretch of rows for each layer. Blocks are allocated low rows first, so the
high ends of the stretches stay unused longest; there the weights go, chunk by chunk::

    weights | layer 0: rows 0 ........ | band 1 | band 0 | layer 1: rows 0 ... | runtime
                       KV grows -->      <-- chunks grow

A *band* is as many rows as one chunk needs, the same rows in every layer, and holds a chunk for
each layer.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StagingArea:
    """The KV area of the active model: ``kv_blocks`` rows of ``row_bytes`` in each of ``layers``
    layers. A chunk is at least one row."""

    kv_blocks: int
    layers: int
    row_bytes: int
    chunk_bytes: int

    def __post_init__(self) -> None:
        if self.kv_blocks < 0 or self.layers < 1 or self.row_bytes < 1:
            raise ValueError(f"no such KV area: {self}")
        if self.chunk_bytes < self.row_bytes:
            raise ValueError(
                f"a chunk of {self.chunk_bytes} bytes is smaller than a row of {self.row_bytes}"
            )

    @property
    def rows_per_chunk(self) -> int:
        return -(-self.chunk_bytes // self.row_bytes)

    @property
    def bands(self) -> int:
        return self.kv_blocks // self.rows_per_chunk

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


@dataclass(frozen=True, slots=True)
class StagingPlan:
    """Where each chunk of ``weight_bytes`` goes: chunk 0 to the highest rows of the first layer,
    the next to those of the second, and so on. Chunks from ``placed`` on have no room."""

    area: StagingArea
    weight_bytes: int

    @property
    def chunks(self) -> int:
        return -(-self.weight_bytes // self.area.chunk_bytes)

    @property
    def placed(self) -> int:
        return min(self.chunks, self.area.bands * self.area.layers)

    def size(self, chunk: int) -> int:
        """Bytes of this chunk; the last one may be shorter."""
        return min(self.area.chunk_bytes, self.weight_bytes - chunk * self.area.chunk_bytes)

    def nbytes(self, chunks: range) -> int:
        """Bytes of a run of chunks."""
        size = self.area.chunk_bytes
        return max(0, min(chunks.stop * size, self.weight_bytes) - chunks.start * size)

    def layer(self, chunk: int) -> int:
        return chunk % self.area.layers

    def band(self, chunk: int) -> int:
        return chunk // self.area.layers

    def rows(self, chunk: int) -> range:
        """The rows of its layer that the chunk lies in, from the first byte of the lowest on."""
        return self.area.rows(self.band(chunk))

    def offset(self, chunk: int) -> int:
        """Bytes from the start of the KV area to the chunk."""
        row = self.layer(chunk) * self.area.kv_blocks + self.rows(chunk).start
        return row * self.area.row_bytes
