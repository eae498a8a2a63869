"""KV of all models in host memory: slabs, and copies to them while the engine goes on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch

from alipes.instance.engine.native.intact import CheckedCopy, Places
from alipes.instance.engine.native.parallel.messages import Held
from alipes.instance.engine.native.parallel.share import WHOLE, Share
from alipes.instance.engine.protocol import BlockCopy, CopyEnd, EngineError, HostSlabs
from alipes.instance.memory.device import pinned_buffer, unpin
from alipes.instance.memory.plan import MemoryPlan, ModelPlan
from alipes.instance.memory.specs import PagedLatent, StateSpec, paged
from alipes.kernels.table import kernels_for

if TYPE_CHECKING:
    from alipes.instance.engine.native.parallel.group import Group


@dataclass(frozen=True, slots=True)
class BlockRows:
    """A model's KV pool as rows of one slab each: part i of block b is row ``first[i] + b *
    stride[i]``; both (parts,) int64. Slot s is all rows from ``slot_first + s * slot_parts`` to
    the next one's.

    On the host, part i lies in slab ``place[i]`` of those of the block, in the memory of rank
    ``writer[i]``; both (parts,) int64. That is one's own rank but for parts that are ``common``
    (parts,) bool to all ranks: those are stored once, and each rank writes its share of them."""

    first: torch.Tensor
    stride: torch.Tensor
    place: torch.Tensor
    writer: torch.Tensor
    common: torch.Tensor
    rank: int
    blocks: int
    slot_first: int
    slot_parts: int
    slots: int

    @property
    def slabs(self) -> int:
        """Those of one block, in the memory of each rank."""
        return int(self.place.max()) + 1 if len(self.place) else 0

    def slabs_of(self, device: int) -> int:
        """Those of one device block, which is a slot behind the blocks."""
        return self.slabs if device < self.blocks else self.slot_parts

    def places(self, devices: torch.Tensor) -> torch.Tensor:
        """Rows of device blocks (n,) int64, one after another; those that are slots come last."""
        is_slot = devices >= self.blocks
        blocks, slots = devices[~is_slot].unsqueeze(1), devices[is_slot].unsqueeze(1)
        parts = torch.arange(self.slot_parts)
        of_slots = self.slot_first + (slots - self.blocks) * self.slot_parts + parts
        return torch.cat([(self.first + blocks * self.stride).flatten(), of_slots.flatten()])


def block_rows(
    states: Sequence[StateSpec],
    block_tokens: int,
    plan: ModelPlan,
    slab_bytes: int,
    share: Share = WHOLE,
) -> BlockRows:
    """Layer by layer on the device, ``plan.kv_blocks`` blocks in each; a block's parts are those
    of its layers in order. Slots follow, each in one piece."""
    first: list[int] = []
    stride: list[int] = []
    common: list[bool] = []
    at = 0
    for state in paged(states):
        parts = block_tokens * state.token_bytes // slab_bytes
        first.extend(range(at, at + parts))
        stride.extend([parts] * parts)
        common.extend([share.ranks > 1 and isinstance(state, PagedLatent)] * parts)
        at += parts * plan.kv_blocks
    shared = torch.tensor(common, dtype=torch.bool)
    place, writer = _divide(shared, share)
    return BlockRows(
        torch.tensor(first, dtype=torch.int64),
        torch.tensor(stride, dtype=torch.int64),
        place,
        writer,
        shared,
        share.rank,
        plan.kv_blocks,
        slot_first=at,
        slot_parts=plan.slot_bytes // slab_bytes,
        slots=plan.slots,
    )


def _divide(common: torch.Tensor, share: Share) -> tuple[torch.Tensor, torch.Tensor]:
    """Places and writers of parts: one's own come first, those in common are dealt out."""
    own = int((~common).sum())
    dealt = common.cumsum(0) - 1
    place = torch.where(common, own + dealt // share.ranks, (~common).cumsum(0) - 1)
    return place, torch.where(common, dealt % share.ranks, share.rank)


class _Copy(Protocol):
    """One that has begun; ``result`` waits for its end."""

    def done(self) -> bool: ...

    def result(self) -> None: ...


class _Thread:
    """Copies of plain memory: they hold no interpreter lock and leave the other cores alone."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, "copy-out")

    def begin(self, work: Callable[[], None]) -> _Copy:
        return self._executor.submit(work)

    def close(self) -> None:
        self._executor.shutdown()


@dataclass(frozen=True, slots=True)
class _Landing:
    event: torch.Event

    def done(self) -> bool:
        return self.event.query()

    def result(self) -> None:
        self.event.synchronize()


class _Stream:
    """Copies from an accelerator, after all the work that it was given before."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.Stream(device)

    def begin(self, work: Callable[[], None]) -> _Copy:
        self._stream.wait_stream(torch.accelerator.current_stream(self._device))
        with self._stream:
            work()
        return _Landing(self._stream.record_event())

    def close(self) -> None:
        self._stream.synchronize()


class HostPool:
    """Owns the slabs; who may use which is the scheduler's affair. ``pool`` is a model's KV on
    the device, (rows, slab_bytes) uint8. In a ``group`` ends of copies are not told, but what
    ``held`` says of them, and all ranks see the slabs of all."""

    def __init__(self, plan: MemoryPlan, device: torch.device, group: Group | None = None) -> None:
        self.slabs = HostSlabs(plan.slab_bytes, plan.host_slabs)
        self._device = device
        nbytes = plan.host_slabs * plan.slab_bytes
        self._buffer = pinned_buffer(nbytes, device) if group is None else group.shared(nbytes)
        self._memory = self._buffer.view(-1, plan.slab_bytes)
        self._kernels = kernels_for(device, None)
        self._lane = _Thread() if device.type == "cpu" else _Stream(device)
        self._copies: deque[tuple[int, _Copy]] = deque()
        self._checked: dict[int, CheckedCopy] | None = None if group is None else {}

    @property
    def busy(self) -> bool:
        """Whether there are copies whose end was not told yet."""
        return bool(self._copies)

    def copy_out(
        self, ticket: int, pool: torch.Tensor, rows: BlockRows, copies: Sequence[BlockCopy]
    ) -> None:
        places = self._places(rows, copies)
        work = self._kernels.copy_out
        if self._checked is not None:
            self._begin_checked(ticket, pool, rows, copies)
            return

        def copy() -> None:
            with torch.inference_mode():
                work(pool, places[0], self._memory, places[1])

        self._copies.append((ticket, self._lane.begin(copy)))

    def _begin_checked(
        self, ticket: int, pool: torch.Tensor, rows: BlockRows, copies: Sequence[BlockCopy]
    ) -> None:
        assert self._checked is not None
        each = [self._checked_places(rows, copy) for copy in copies]
        copy = CheckedCopy(pool, self._memory, each, self._kernels)
        self._checked[ticket] = copy
        self._copies.append((ticket, self._lane.begin(copy.run)))

    def _checked_places(self, rows: BlockRows, copy: BlockCopy) -> Places:
        devices, slabs = self._places(rows, [copy])
        if copy.device < rows.blocks:
            return Places(devices, slabs, rows.common, rows.writer == rows.rank)
        ours = torch.ones(rows.slot_parts, dtype=torch.bool)
        return Places(devices, slabs, ~ours, ours)

    def held(self) -> tuple[Held, ...]:
        """What is to be said of copies since this was last asked."""
        said = []
        for ticket, copy in list((self._checked or {}).items()):
            ended = self._copies[0][0] == ticket and self._copies[0][1].done()
            marks = copy.take()
            if ended:
                self._finish()
            if marks or ended:
                said.append(Held(ticket, marks, ended))
        return tuple(said)

    def copied(self) -> tuple[CopyEnd, ...]:
        """The copies that have ended since this was last asked."""
        ended = []
        while self._copies and self._copies[0][1].done():
            ended.append(self._finish())
        return tuple(ended)

    def drain(self) -> tuple[CopyEnd, ...]:
        """As ``copied``, but all of them."""
        return tuple(self._finish() for _ in range(len(self._copies)))

    def copy_in(self, pool: torch.Tensor, rows: BlockRows, copies: Sequence[BlockCopy]) -> None:
        """Waits for its end, so that the slabs may be written after it."""
        places = self._places(rows, copies)
        with torch.inference_mode():
            self._kernels.copy_in(self._memory, places[1], pool, places[0])
        if self._device.type != "cpu":
            torch.accelerator.current_stream(self._device).synchronize()

    def close(self) -> None:
        self._lane.close()
        self._copies.clear()
        unpin(self._buffer, self._device)

    def _finish(self) -> CopyEnd:
        ticket, copy = self._copies.popleft()
        copy.result()
        if self._checked is not None:
            del self._checked[ticket]
        return CopyEnd(ticket)

    def _places(
        self, rows: BlockRows, copies: Sequence[BlockCopy]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows on the device and slabs on the host, (n,) int64 each, of all parts."""
        for copy in copies:
            count = rows.slabs_of(copy.device)
            if len(copy.slabs) != count:
                raise EngineError(f"block {copy.device} takes {count} slabs, not {copy.slabs}")
        blocks = [copy for copy in copies if copy.device < rows.blocks]
        slots = [copy for copy in copies if copy.device >= rows.blocks]
        devices = torch.tensor([copy.device for copy in (*blocks, *slots)], dtype=torch.int64)
        _check_range(devices, rows.blocks + rows.slots, "device block")
        of_blocks = (
            self._slabs_of(blocks, rows.slabs)[:, rows.place] + rows.writer * self.slabs.count
        )
        of_slots = self._slabs_of(slots, rows.slot_parts) + rows.rank * self.slabs.count
        return rows.places(devices), torch.cat([of_blocks.flatten(), of_slots.flatten()])

    def _slabs_of(self, copies: Sequence[BlockCopy], each: int) -> torch.Tensor:
        """(n, each) int64"""
        slabs = torch.tensor([copy.slabs for copy in copies], dtype=torch.int64).view(
            len(copies), each
        )
        _check_range(slabs, self.slabs.count, "slab")
        return slabs


def _check_range(indices: torch.Tensor, count: int, what: str) -> None:
    wrong = indices[(indices < 0) | (indices >= count)]
    if len(wrong):
        raise EngineError(f"{what} {int(wrong[0])} is not one of {count}")
