"""Which chunks of other models' weights lie in the unused rows of the active model's KV area:
counts and states only, no tensors (Talaria 4.4).

Blocks that come to use rows of a place (``staging_plan.py``) spoil what it holds::

    empty --next--> writing --written--> clean <--begin--> kept
      ^               | |                  |                 |
      |   (occupied)  | `--> spoiled       | (occupied)      | (occupied, or given up by next)
      |                        | (written) |                 |
      +------------------------+-----------+-----------------+

Clean are chunks of the model that is staged, kept are those of any other. Only rows that nobody
uses hold any.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from alipes.instance.memory.staging_plan import Chunks, StagingArea

EMPTY: Final = 0
WRITING: Final = 1
SPOILED: Final = 2
CLEAN: Final = 3
KEPT: Final = 4


class SwitchPath(StrEnum):
    """Where a model's weights come from: the host, both, or the device alone, by copies or by
    mapping the memory that they are in already."""

    H2D = "h2d"
    PARTIAL = "partial"
    D2D = "d2d"
    REMAP = "remap"


@dataclass(frozen=True, slots=True)
class StagedSwitch:
    """How to make ``target`` active: chunks that are on the device, by ``(chunk, place)`` in the
    order of chunks, and all other bytes from the host. ``spoiled_bytes`` had been staged, or
    begun, and were lost."""

    target: str
    path: SwitchPath
    clean: tuple[tuple[int, int], ...]
    d2d_bytes: int
    h2d_bytes: int
    spoiled_bytes: int


@dataclass(frozen=True, slots=True)
class OnDevice:
    """Chunks of a model that are on the device: bytes from the start of the arena by chunk."""

    name: str
    weight_bytes: int
    offsets: Mapping[int, int]


def retained(
    before: StagingLedger, order: Sequence[str], weights: Mapping[str, int], target: str
) -> list[OnDevice]:
    """What the device holds of all models but ``target``, which becomes active: all of the last one
    of ``order``, whose weights lie at the start of the arena, and what the ledger knows of the
    others, which come first."""
    size, found = before.area.chunk_bytes, []
    for name in order:
        if name == order[-1]:
            at = {chunk: chunk * size for chunk in range(Chunks(weights[name], size).count)}
        else:
            at = {chunk: before.area.places[place].offset for chunk, place in before.held(name)}
        if name != target:
            found.append(OnDevice(name, weights[name], at))
    return found


class StagingLedger:
    """The state of one KV area, from one model switch to the next. A chunk that it calls clean or
    kept holds exactly what was written; misuse raises ``ValueError`` and changes nothing."""

    def __init__(self, area: StagingArea) -> None:
        self.area: Final = area
        self.target = ""
        self.spoiled_bytes = 0
        self.rows = 0
        # Places from this one on have rows that may be in use.
        self._usable = len(area.places)
        self._states: Final = bytearray(self._usable)
        # Of a place that is not empty: whose chunk, and which.
        self._owner: Final = [""] * self._usable
        self._chunk: Final = [0] * self._usable
        self._models: dict[str, Chunks] = {}
        # Bytes of each model that are clean or kept.
        self._covered: dict[str, int] = {}
        self._under_way = 0
        # Chunks of the target that are to be written, the next one last.
        self._missing: list[int] = []
        # No place before this one is empty.
        self._first_empty = 0

    @property
    def writing(self) -> bool:
        """Some write was begun and has not been reported."""
        return self._under_way > 0

    @property
    def covered(self) -> dict[str, int]:
        """Bytes of each model's weights that a switch to it would find; none of those without."""
        return {name: size for name, size in self._covered.items() if size}

    @property
    def clean_bytes(self) -> int:
        """Those of the target."""
        return self._covered.get(self.target, 0)

    @property
    def coverage(self) -> float:
        """The part of the target's weights that is staged and clean; 0 without a target."""
        return self.clean_bytes / self._models[self.target].nbytes if self.target else 0.0

    @property
    def slack(self) -> int:
        """Device bytes that could still hold staged weights: those of unused places, less what is
        clean or being written there."""
        begun = self._states.count(WRITING, 0, self._usable)
        return max(0, (self._usable - begun) * self.area.chunk_bytes - self.clean_bytes)

    @property
    def done(self) -> bool:
        """All of the target is staged, or being written."""
        return not self._missing

    def chunk_at(self, place: int) -> tuple[str, int]:
        """The model and the chunk of it that a place holds, or is to hold."""
        return self._owner[place], self._chunk[place]

    def keep(self, models: Sequence[OnDevice], rows: int = 0) -> dict[int, int]:
        """Of these chunks, the first as many as there are places from ``rows`` on are kept: there
        is no point in keeping what blocks are about to take. One that lies in a place that is among
        as many as that stays there; for the others, the place that each is to be moved to by its
        offset now. Only before anything is staged."""
        if self.target:
            raise ValueError(f"{self.target} is being staged: no chunks can be kept")
        for model in models:
            self._know(model.name, model.weight_bytes)
        chunks = [(m.name, chunk, at) for m in models for chunk, at in m.offsets.items()]
        del chunks[min(self._usable, self.area.above(rows)) :]
        near = {self.area.places[i].offset: i for i in range(len(chunks))}
        moving: dict[int, int] = {}
        for name, chunk, at in chunks:
            if at in near:
                self._hold(near[at], name, chunk)
        for name, chunk, at in chunks:
            if at not in near:
                moving[at] = self._empty_place()
                self._hold(moving[at], name, chunk)
        return moving

    def begin(self, target: str, weight_bytes: int) -> None:
        """Stage this model from now on, beginning with what is kept of it. Writes under way must
        have been reported."""
        if self._under_way:
            raise ValueError(f"a write for {self.target} is under way; it must end first")
        self._know(target, weight_bytes)
        self.target, self.spoiled_bytes = target, 0
        here = set()
        for place, state in enumerate(self._states):
            if state:
                own = self._owner[place] == target
                self._states[place] = CLEAN if own else KEPT
                if own:
                    here.add(self._chunk[place])
        count = self._models[target].count
        self._missing = [c for c in reversed(range(count)) if c not in here]

    def next(self, limit: int = 1) -> tuple[int, ...]:
        """Begin writing up to ``limit`` chunks: their places, from the highest rows that can take
        any; none when there is nothing to write, or no room. An empty place is taken first, then
        that of a kept chunk, the last one kept first. They count as being written until
        ``written``."""
        if limit < 1:
            raise ValueError(f"a write has at least one chunk, not {limit}")
        begun: list[int] = []
        while self._missing and len(begun) < limit:
            place = self._empty_place()
            if place < 0:
                place = self._states.rfind(KEPT)
                if place < 0:
                    break
                self._give_up(place)
            self._put(place, self.target, self._missing.pop(), WRITING)
            begun.append(place)
        self._under_way += len(begun)
        return tuple(begun)

    def written(self, places: Iterable[int]) -> None:
        """These writes, begun by ``next``, have ended: what was not spoiled meanwhile is clean."""
        places = tuple(places)
        for place in places:
            if self._states[place] not in (WRITING, SPOILED):
                raise ValueError(f"place {place} is not being written")
        self._under_way -= len(places)
        for place in places:
            if self._states[place] == WRITING:
                self._states[place] = CLEAN
                self._covered[self.target] += self._size(place)
            else:
                self._empty(place)

    def busy_rows(self) -> tuple[range, ...]:
        """Rows under an active write, which an allocator should pass over. Where it cannot, the
        write must end before the rows are used."""
        begun = (i for i, state in enumerate(self._states) if state in (WRITING, SPOILED))
        return tuple(self.area.places[place].rows for place in begun)

    def occupied(self, rows: int) -> None:
        """From now on only the lowest ``rows`` rows of every layer may be in use."""
        if not 0 <= rows <= self.area.kv_blocks:
            raise ValueError(f"there are {self.area.kv_blocks} rows, not {rows}")
        before, self._usable, self.rows = self._usable, self.area.above(rows), rows
        for place in range(self._usable, before):
            self._spoil(place)

    def switch(self, target: str, weight_bytes: int) -> StagedSwitch:
        """What making ``target`` active takes now. No write may be under way."""
        if self._under_way:
            raise ValueError(f"a write for {self.target} is under way; it must end first")
        clean = tuple(sorted(self.held(target))) if self._knows(target, weight_bytes) else ()
        size = Chunks(weight_bytes, self.area.chunk_bytes).bytes_of
        staged = sum(size(chunk) for chunk, _ in clean)
        path = SwitchPath.PARTIAL if staged else SwitchPath.H2D
        if staged == weight_bytes:
            path = SwitchPath.D2D
        lost = self.spoiled_bytes if target == self.target else 0
        return StagedSwitch(target, path, clean, staged, weight_bytes - staged, lost)

    def held(self, model: str) -> list[tuple[int, int]]:
        """(chunk, place) of all chunks of ``model`` that are clean or kept."""
        states = enumerate(self._states)
        here = (i for i, s in states if s >= CLEAN and self._owner[i] == model)
        return [(self._chunk[place], place) for place in here]

    def _knows(self, model: str, weight_bytes: int) -> bool:
        known = self._models.get(model)
        return known is not None and known.nbytes == weight_bytes

    def _know(self, model: str, weight_bytes: int) -> None:
        """Other weights of the same name are another model: what is there of it is forgotten."""
        if model in self._models and not self._knows(model, weight_bytes):
            for _, place in self.held(model):
                self._give_up(place)
        self._models[model] = Chunks(weight_bytes, self.area.chunk_bytes)
        self._covered.setdefault(model, 0)

    def _hold(self, place: int, model: str, chunk: int) -> None:
        self._put(place, model, chunk, KEPT)
        self._covered[model] += self._size(place)

    def _give_up(self, place: int) -> None:
        """What is there, clean or kept, counts no more."""
        self._covered[self._owner[place]] -= self._size(place)
        self._empty(place)

    def _put(self, place: int, model: str, chunk: int, state: int) -> None:
        self._states[place] = state
        self._owner[place], self._chunk[place] = model, chunk

    def _empty(self, place: int) -> None:
        self._states[place] = EMPTY
        self._first_empty = min(self._first_empty, place)

    def _size(self, place: int) -> int:
        return self._models[self._owner[place]].bytes_of(self._chunk[place])

    def _empty_place(self) -> int:
        """The first one in unused rows, or -1."""
        place = self._states.find(EMPTY, self._first_empty, self._usable)
        self._first_empty = place if place >= 0 else self._usable
        return place

    def _spoil(self, place: int) -> None:
        state = self._states[place]
        if state in (CLEAN, WRITING):
            self.spoiled_bytes += self._size(place)
            self._missing.append(self._chunk[place])
        if state in (CLEAN, KEPT):
            self._give_up(place)
        elif state == WRITING:
            self._states[place] = SPOILED
