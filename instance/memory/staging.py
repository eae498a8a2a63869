"""Which part of the next model's weights lies in the unused rows of the active model's KV area:
counts and states only, no tensors (Talaria 4.4).

A block that is allocated in a band (``staging_plan.py``) spoils all chunks of it::

    missing --next--> writing --written--> clean
       ^                | |                  |
       |    (allocated) | `--> spoiled       | (allocated)
       |                        | (written)  |
       +------------------------+------------+

Only rows that nobody uses are staged over. Rows whose blocks are cached could be given up for
staging as well, where the host has a copy of them; then they are to be evicted before ``released``
tells of them.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from alipes.instance.memory.staging_plan import StagingArea, StagingPlan

MISSING: Final = 0
WRITING: Final = 1
SPOILED: Final = 2
CLEAN: Final = 3


class SwitchPath(StrEnum):
    """Where a model's weights come from: the host, both, or the device alone."""

    H2D = "h2d"
    PARTIAL = "partial"
    D2D = "d2d"


@dataclass(frozen=True, slots=True)
class StagedSwitch:
    """How to make ``target`` active: ``clean`` runs of chunks by copies within the device, all
    other bytes from the host. ``spoiled_bytes`` had been staged, or begun, and were lost."""

    target: str
    path: SwitchPath
    clean: tuple[range, ...]
    d2d_bytes: int
    h2d_bytes: int
    spoiled_bytes: int


class StagingLedger:
    """The state of one KV area, from one model switch to the next. A chunk that it calls clean
    holds exactly what was written; misuse raises ``ValueError`` and changes nothing.

    Told of rows, it counts them by band: what an allocation costs does not depend on how many
    chunks there are, and spoiling a chunk is paid for by having written it.
    """

    def __init__(self, area: StagingArea) -> None:
        self.area: Final = area
        self.target = ""
        self.clean_bytes = 0
        self.spoiled_bytes = 0
        self._plan = StagingPlan(area, 0)
        self._layers: Final = area.layers
        self._rows: Final = area.rows_per_chunk
        self._placed = 0
        self._states = bytearray()
        self._used = [0] * area.bands
        self._free_bands = area.bands
        self._under_way = 0
        # Bands, the highest first, that may have room and a chunk to write: whether one has is
        # found out when its turn comes.
        self._open: list[int] = []

    @property
    def plan(self) -> StagingPlan:
        return self._plan

    @property
    def writing(self) -> bool:
        """Some write was begun and has not been reported."""
        return self._under_way > 0

    @property
    def coverage(self) -> float:
        """The part of the target's weights that is staged and clean; 0 without a target."""
        return self.clean_bytes / self._plan.weight_bytes if self._plan.weight_bytes else 0.0

    @property
    def slack(self) -> int:
        """Device bytes that could still hold staged weights: those of unused bands, less what is
        clean or being written there."""
        unused = self._free_bands * self._layers * self.area.chunk_bytes
        begun = self._states.count(WRITING) * self.area.chunk_bytes
        return max(0, unused - self.clean_bytes - begun)

    def begin(self, target: str, weight_bytes: int) -> None:
        """Stage this model from now on; what was staged of another is forgotten. Writes under way
        must have been reported."""
        if self._under_way:
            raise ValueError(f"a write for {self.target} is under way; it must end first")
        self.target = target
        self.clean_bytes = self.spoiled_bytes = 0
        self._plan = StagingPlan(self.area, weight_bytes)
        self._placed = self._plan.placed
        self._states = bytearray(self._placed)
        self._open = list(range(-(-self._placed // self._layers)))

    def cancel(self) -> None:
        """Stage nothing any more. Writes under way are still to be reported."""
        self._spoil(range(len(self._states)))
        self.target, self._open, self._placed = "", [], 0
        self._plan = StagingPlan(self.area, 0)

    def next(self, limit: int = 1) -> range:
        """Begin writing: up to ``limit`` consecutive chunks, from the highest rows that can take
        any down to the next in use; empty when there is nothing to write. They count as being
        written until ``written``."""
        if limit < 1:
            raise ValueError(f"a write has at least one chunk, not {limit}")
        while self._open:
            chunks = self._chunks_in(self._open[0])
            first = self._states.find(MISSING, chunks.start, chunks.stop)
            if self._used[self._open[0]] or first < 0:
                heapq.heappop(self._open)
                continue
            run = self._missing_from(first, limit)
            self._states[run.start : run.stop] = bytes((WRITING,)) * len(run)
            self._under_way += len(run)
            return run
        return range(0)

    def written(self, chunks: range) -> None:
        """These writes, begun by ``next``, have ended: what was not spoiled meanwhile is clean."""
        states = self._states[chunks.start : chunks.stop]
        begun = states.count(WRITING) + states.count(SPOILED)
        if chunks.step != 1 or begun < len(chunks):
            raise ValueError(f"chunks {chunks.start} to {chunks.stop} are not being written")
        self._under_way -= len(chunks)
        if SPOILED not in states:
            self._states[chunks.start : chunks.stop] = bytes((CLEAN,)) * len(chunks)
            self.clean_bytes += self._plan.nbytes(chunks)
            return
        for chunk in chunks:
            if self._states[chunk] == WRITING:
                self._states[chunk] = CLEAN
                self.clean_bytes += self._plan.size(chunk)
                continue
            self._states[chunk] = MISSING
            heapq.heappush(self._open, chunk // self._layers)

    def busy_rows(self) -> tuple[range, ...]:
        """Rows under an active write, which an allocator should pass over. Where it cannot, the
        write must end before the rows are used."""
        begun = (i for i, state in enumerate(self._states) if state in (WRITING, SPOILED))
        return tuple(
            self.area.rows(band) for band in sorted({i // self.area.layers for i in begun})
        )

    def allocated(self, first: int, end: int) -> None:
        """Rows ``first`` to ``end`` (exclusive), all unused so far, belong to blocks now."""
        for band, rows in self._shares(first, end, 1):
            if not self._used[band]:
                self._free_bands -= 1
                self._spoil(self._chunks_in(band))
            self._used[band] += rows

    def released(self, first: int, end: int) -> None:
        """Rows ``first`` to ``end`` (exclusive), all in use so far, are unused again."""
        for band, rows in self._shares(first, end, -1):
            self._used[band] -= rows
            if not self._used[band]:
                self._free_bands += 1
                if self._chunks_in(band):
                    heapq.heappush(self._open, band)

    def switch(self, target: str, weight_bytes: int) -> StagedSwitch:
        """What making ``target`` active takes now. No write may be under way."""
        if self._under_way:
            raise ValueError(f"a write for {self.target} is under way; it must end first")
        if (target, weight_bytes) != (self.target, self._plan.weight_bytes):
            return StagedSwitch(target, SwitchPath.H2D, (), 0, weight_bytes, 0)
        clean = self.clean_bytes
        path = SwitchPath.PARTIAL if clean else SwitchPath.H2D
        if clean == weight_bytes:
            path = SwitchPath.D2D
        return StagedSwitch(
            target, path, self._clean_runs(), clean, weight_bytes - clean, self.spoiled_bytes
        )

    def _missing_from(self, first: int, limit: int) -> range:
        """The chunks from this missing one on that can be written now, ``limit`` at most."""
        states = self._states[first : first + limit]
        end = first + len(states) - len(states.lstrip(bytes((MISSING,))))
        band, layers = first // self._layers + 1, self._layers
        while band * layers < end and not self._used[band]:
            band += 1
        return range(first, min(end, band * layers))

    def _chunks_in(self, band: int) -> range:
        """The placed chunks of a band."""
        start, placed = band * self._layers, self._placed
        return range(min(start, placed), min(start + self._layers, placed))

    def _clean_runs(self) -> tuple[range, ...]:
        runs, start = [], self._states.find(CLEAN)
        while start >= 0:
            rest = self._states[start:]
            end = start + len(rest) - len(rest.lstrip(bytes((CLEAN,))))
            runs.append(range(start, end))
            start = self._states.find(CLEAN, end)
        return tuple(runs)

    def _spoil(self, chunks: range) -> None:
        states = self._states[chunks.start : chunks.stop]
        if not any(states):
            return
        for chunk, state in zip(chunks, states, strict=True):
            if state == CLEAN:
                self._states[chunk] = MISSING
                self.clean_bytes -= self._plan.size(chunk)
                self.spoiled_bytes += self._plan.size(chunk)
            elif state == WRITING:
                self._states[chunk] = SPOILED
                self.spoiled_bytes += self._plan.size(chunk)

    def _shares(self, first: int, end: int, sign: int) -> list[tuple[int, int]]:
        """(band, rows of it) of a range of rows, checked: ``sign`` 1 for rows to be used, -1 for
        rows to be given back."""
        if not 0 <= first <= end <= self.area.kv_blocks:
            raise ValueError(f"rows {first} to {end} are not in 0 to {self.area.kv_blocks}")
        shares = []
        start, full = max(first, self.area.lowest), self._rows
        while start < end:
            band = self.area.band_of(start)
            rows = min(end, self.area.kv_blocks - band * full) - start
            if not 0 <= self._used[band] + sign * rows <= full:
                state = "in use already" if sign > 0 else "not all in use"
                raise ValueError(f"rows {start} to {start + rows} are {state}")
            shares.append((band, rows))
            start += rows
        return shares
