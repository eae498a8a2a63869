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
        unused = self._free_bands * self.area.layers * self.area.chunk_bytes
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
        self._states = bytearray(self._plan.placed)
        planned = -(-self._plan.placed // self.area.layers)
        self._open = list(range(planned))

    def cancel(self) -> None:
        """Stage nothing any more. Writes under way are still to be reported."""
        self._spoil(range(len(self._states)))
        self.target, self._open = "", []
        self._plan = StagingPlan(self.area, 0)

    def next(self, limit: int = 1) -> range:
        """Begin writing: up to ``limit`` chunks, consecutive and of one band, the highest that has
        any; empty when there is nothing to write. They count as being written until ``written``."""
        if limit < 1:
            raise ValueError(f"a write has at least one chunk, not {limit}")
        while self._open:
            band = self._open[0]
            chunks = self._plan.in_band(band)
            first = self._states.find(MISSING, chunks.start, chunks.stop)
            if self._used[band] or first < 0:
                heapq.heappop(self._open)
                continue
            missing = self._states[first : min(chunks.stop, first + limit)]
            run = range(first, first + len(missing) - len(missing.lstrip(b"\0")))
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
            if self._plan.placed and not self._used[self._plan.band(chunk)]:
                heapq.heappush(self._open, self._plan.band(chunk))

    def busy_rows(self) -> tuple[range, ...]:
        """Rows under an active write, which an allocator should pass over. Where it cannot, the
        write must end before the rows are used."""
        begun = (i for i, state in enumerate(self._states) if state in (WRITING, SPOILED))
        return tuple(
            self.area.rows(band) for band in sorted({i // self.area.layers for i in begun})
        )

    def allocated(self, first: int, end: int) -> None:
        """Rows ``first`` to ``end`` (exclusive), all unused so far, belong to blocks now."""
        for band, rows in self._shares(first, end, self.area.rows_per_chunk):
            if not self._used[band]:
                self._free_bands -= 1
                self._spoil(self._plan.in_band(band))
            self._used[band] += rows

    def released(self, first: int, end: int) -> None:
        """Rows ``first`` to ``end`` (exclusive), all in use so far, are unused again."""
        for band, rows in self._shares(first, end, 0):
            self._used[band] -= rows
            if not self._used[band]:
                self._free_bands += 1
                if self._plan.in_band(band):
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

    def _shares(self, first: int, end: int, full: int) -> list[tuple[int, int]]:
        """(band, rows of it) of a range of rows, checked: bands ``full`` of used rows, or without
        any, cannot take a change."""
        if not 0 <= first <= end <= self.area.kv_blocks:
            raise ValueError(f"rows {first} to {end} are not in 0 to {self.area.kv_blocks}")
        shares = []
        start = max(first, self.area.lowest)
        while start < end:
            band = self.area.band_of(start)
            stop = min(end, self.area.rows(band).stop)
            used = self._used[band] + stop - start if full else self._used[band] - (stop - start)
            if not 0 <= used <= self.area.rows_per_chunk:
                state = "in use already" if full else "not all in use"
                raise ValueError(f"rows {start} to {stop} are {state}")
            shares.append((band, stop - start))
            start = stop
        return shares
