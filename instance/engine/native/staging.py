"""Weights on the device: staged while another model serves, kept while their bytes are not needed,
and brought to where their model reads them at a switch (Talaria 4.4).

Three ways lead there. Every switch can copy from the host (``h2d``). Where chunks are on the
device they can be copied within it (``gather``), or the pages that they are in can be mapped to
where they belong (``remap``): then nothing is copied, and the weights that leave go to where those
chunks were kept, so that a model that comes back soon is still there.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import torch

from alipes.instance.engine.native.bringing import Loading, bring_by_copies, bring_by_exchange
from alipes.instance.engine.native.writer import Copy, Writer
from alipes.instance.engine.protocol import EngineError, Staged
from alipes.instance.memory.arena import Arena
from alipes.instance.memory.cuda_driver import cuda_driver
from alipes.instance.memory.cuda_mapped import CudaMappedMemory
from alipes.instance.memory.device import DeviceMemory, PlainMemory
from alipes.instance.memory.mapped import MappedMemory, can_exchange
from alipes.instance.memory.moves import Move
from alipes.instance.memory.plan import PAGE, ModelPlan
from alipes.instance.memory.staging import StagedSwitch, StagingLedger, SwitchPath, retained
from alipes.instance.memory.staging_plan import LARGEST_CHUNK, Chunks, StagingArea, frame_bytes

SHARE: Final = 0.25
"""The part of the time that the writer is busy while a model serves."""
CHUNKS_PER_MODEL: Final = 128


class Switching(StrEnum):
    """How weights that are on the device already come to where their model reads them."""

    H2D = "h2d"
    GATHER = "gather"
    REMAP = "remap"


def best_switching(device: torch.device) -> Switching:
    """Where pages can be exchanged nothing is copied, and weights that leave stay for as long as
    their bytes are not needed. Else copies within an accelerator are far faster than those from
    the host; on the CPU they are not, so that staging would not pay."""
    if device.type == "cpu":
        return Switching.REMAP if can_exchange() else Switching.H2D
    return Switching.REMAP if cuda_driver(device) else Switching.GATHER


def device_memory(
    nbytes: int, device: torch.device, switching: Switching, layer: int = 0, weights: int = 0
) -> DeviceMemory:
    """An accelerator's pages are exchanged in frames that it has to know from the start: as large
    as ``frame_bytes`` says of ``layer`` and ``weights``, else the smallest. Raises ``EngineError``
    when there is not so much memory, or its pages cannot be exchanged."""
    if switching is not Switching.REMAP:
        return PlainMemory(nbytes, device)
    if device.type == "cpu":
        return MappedMemory(nbytes)
    driver = cuda_driver(device)
    if driver is None:
        raise EngineError(f"pages of {device} cannot be exchanged: switch by {Switching.GATHER}")
    return CudaMappedMemory(nbytes, frame_bytes(layer, weights, driver.granularity), driver)


@dataclass(frozen=True, slots=True)
class Weights:
    """One model as the stager sees it: ``host`` (weight_bytes,) uint8, and the bytes of a block in
    each of its paged layers."""

    plan: ModelPlan
    host: torch.Tensor
    row_bytes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Moved:
    """What a switch did. The bytes add up to the weights."""

    path: SwitchPath
    h2d_bytes: int = 0
    d2d_bytes: int = 0
    mapped_bytes: int = 0


class Stager:
    """Driven by the engine's thread; a thread of its own writes. Rows of the active model's blocks
    are counted from the lowest: those below ``rows`` may be in use and are never written. Raises
    ``RuntimeError`` once the writer broke: the device is then of no more use."""

    def __init__(
        self,
        arena: Arena,
        models: Mapping[str, Weights],
        device: torch.device,
        switching: Switching,
        share: float = SHARE,
    ) -> None:
        self.switching: Final = switching
        self._arena = arena
        self._models = models
        granule = arena.memory.granule
        self._chunk = _frame(models, granule) if granule else chunk_bytes(models)
        self._areas = {name: self._area(weights) for name, weights in models.items()}
        if granule and device.type == "cpu":
            self._touch()
        # Guards the ledger and what is being written.
        self._lock = threading.Condition()
        self._ledger: StagingLedger | None = None
        self._places: tuple[int, ...] = ()
        self._first_busy: int | None = None
        self._holding = False
        self._broken: Exception | None = None
        # How many rows each had in use when it left.
        self._rows: dict[str, int] = {}
        # Models by when they were active, the last one last.
        self._order: list[str] = []
        staged = switching is not Switching.H2D and len(models) > 1
        self._writer = Writer(self, device, share) if staged else None

    # --- what the engine's thread says -----------------------------------------------------------

    @property
    def rows(self) -> int:
        return self._ledger.rows if self._ledger else 0

    @property
    def state(self) -> Staged:
        with self._lock:
            ledger = self._ledger
            if ledger is None:
                return Staged()
            return Staged(ledger.target, ledger.covered, ledger.slack)

    def serving(self, following: str | None, rows: int) -> None:
        """A model serves; only rows below ``rows`` may be in use, and ``following`` is to be
        active next, as far as anybody knows."""
        ledger = self._ledger
        if ledger is None or self._writer is None:
            return
        self._check()
        self.use(rows)
        changes = following not in (None, ledger.target, self._order[-1])
        if rows == ledger.rows and not changes:
            return
        with self._lock:
            ledger.occupied(rows)
            if changes and following is not None:
                self._hold()
                ledger.begin(following, self._models[following].plan.weight_bytes)
                self._holding = False
        self._writer.wake()

    def use(self, rows: int) -> None:
        """Rows below ``rows`` are about to be written: waits for a write that is under way there,
        and spoils what is staged there."""
        if self._ledger is None or rows <= self._ledger.rows:
            return
        with self._lock:
            self._ledger.occupied(rows)
            while self._first_busy is not None and self._first_busy < rows:
                self._lock.wait()
            self._check()

    def switch(self, model: str) -> Moved:
        """Stop writing and bring the weights of ``model`` to the start of the arena. Whatever was
        in the KV area is lost. What the device was asked for before is done before pages move."""
        weights, before = self._models[model], self._ledger
        with self._lock:
            self._hold()
            self._ledger = None
        after = StagingLedger(self._areas[model])
        moved = self._bring(weights, before, after)
        self._order = [name for name in self._order if name != model] + [model]
        with self._lock:
            self._holding = False
            self._ledger = after if self._writer is not None else None
        return moved

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    # --- what the writer's thread asks -----------------------------------------------------------

    def begin(self) -> Copy | None:
        with self._lock:
            ledger = self._ledger
            if ledger is None or self._holding or not ledger.target:
                return None
            self._places = ledger.next()
            if not self._places:
                return None
            (place,) = self._places
            model, chunk = ledger.chunk_at(place)
            source = self._models[model].host[chunk * self._chunk :][: self._chunk]
            target = ledger.area.places[place]
            self._first_busy = target.rows.start
            return self._arena.memory.data[target.offset :][: len(source)], source

    def end(self) -> None:
        with self._lock:
            assert self._ledger is not None
            self._ledger.written(self._places)
            self._places, self._first_busy = (), None
            self._lock.notify_all()

    def broke(self, error: Exception) -> None:
        """Whoever waits for the write under way would wait for ever."""
        with self._lock:
            self._broken, self._first_busy = error, None
            self._lock.notify_all()

    # --- a switch --------------------------------------------------------------------------------

    def _touch(self) -> None:
        """Where weights are to be kept, pages are there from the start: else those of the first
        switches would be, when they come to where weights are loaded from the host. Memory of an
        accelerator has all of its pages anyway."""
        for name, area in self._areas.items():
            others = [w.plan.weight_bytes for other, w in self._models.items() if other != name]
            count = sum(Chunks(nbytes, self._chunk).count for nbytes in others)
            for place in area.places[:count]:
                self._arena.memory.data[place.offset : place.offset + self._chunk] = 0

    def _hold(self) -> None:
        """Begin no write until told otherwise, and wait for the one under way."""
        self._holding = True
        while self._first_busy is not None:
            self._lock.wait()
        self._check()

    def _check(self) -> None:
        if self._broken is not None:
            raise RuntimeError(f"staging of weights broke: {self._broken!r}") from self._broken

    def _bring(self, weights: Weights, before: StagingLedger | None, after: StagingLedger) -> Moved:
        plan = weights.plan
        staged = StagedSwitch(plan.name, SwitchPath.H2D, (), 0, plan.weight_bytes, 0)
        needed: dict[int, Move] = {}
        kept: list[Move] = []
        if before is not None:
            staged = before.switch(plan.name, plan.weight_bytes)
            needed = self._needed(before.area, staged)
            kept = self._kept(before, after, plan.name)
        loading = Loading(weights.host, self._arena.weights(plan), self._chunk)
        memory, exchanges = self._arena.memory, self.switching is Switching.REMAP
        if exchanges:
            here = set(needed)
            bring_by_exchange(memory, [*needed.values(), *kept], here, loading)
        else:
            here = bring_by_copies(memory, needed, loading)
        on_device = sum(map(Chunks(plan.weight_bytes, self._chunk).bytes_of, here))
        loaded = plan.weight_bytes - on_device
        whole = SwitchPath.REMAP if exchanges else SwitchPath.D2D
        path = SwitchPath.PARTIAL if loaded else whole
        copied, mapped = (0, on_device) if exchanges else (on_device, 0)
        return Moved(path if here else SwitchPath.H2D, loaded, copied, mapped)

    def _needed(self, area: StagingArea, staged: StagedSwitch) -> dict[int, Move]:
        """Chunk by chunk from where it was staged to where it belongs."""
        weights = self._models[staged.target].plan.weight_bytes
        return {
            chunk: Move(area.places[place].offset, chunk * self._chunk, self._size(weights, chunk))
            for chunk, place in staged.clean
        }

    def _kept(self, before: StagingLedger, after: StagingLedger, model: str) -> list[Move]:
        """What is on the device of other models, the one that leaves last, and finds a place."""
        if self.switching is not Switching.REMAP:
            return []
        weights = {name: known.plan.weight_bytes for name, known in self._models.items()}
        self._rows[self._order[-1]] = before.rows
        found = retained(before, self._order, weights, model)
        return [
            Move(at, after.area.places[place].offset, self._chunk)
            for at, place in after.keep(found, self._rows.get(model, 0)).items()
        ]

    def _size(self, weight_bytes: int, chunk: int) -> int:
        """Bytes of a move: pages are exchanged for a whole chunk, also for the shorter last one.
        A last one that reaches beyond what belongs to models never moves: its weights have more
        chunks than any KV area has places, and the last comes last."""
        if self._arena.memory.granule:
            return self._chunk
        return Chunks(weight_bytes, self._chunk).bytes_of(chunk)

    def _area(self, weights: Weights) -> StagingArea:
        return StagingArea(
            weights.plan.kv_blocks,
            weights.row_bytes,
            self._chunk,
            self._arena.kv_offset(weights.plan),
            self._chunk if self._arena.memory.granule else PAGE,
        )


def chunk_bytes(models: Mapping[str, Weights]) -> int:
    """For copies, one size for all models: a small part of the largest weights, so that rows in use
    spoil little."""
    largest = max(weights.plan.weight_bytes for weights in models.values())
    size = min(LARGEST_CHUNK, largest // CHUNKS_PER_MODEL)
    return max(1, -(-size // PAGE)) * PAGE


def _frame(models: Mapping[str, Weights], granule: int) -> int:
    layers = [w.plan.kv_blocks * min(w.row_bytes) for w in models.values()]
    weights = [w.plan.weight_bytes for w in models.values()]
    return frame_bytes(min(layers), max(weights), granule)
