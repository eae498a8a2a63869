"""KV of all models in host memory: slabs, and copies to them while the engine goes on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import torch

from alipes.instance.engine.protocol import BlockCopy, EngineError, HostSlabs
from alipes.instance.memory.arena import pinned_buffer, release_pinned
from alipes.instance.memory.plan import MemoryPlan
from alipes.instance.memory.specs import StateSpec, paged
from alipes.kernels.table import kernels_for


@dataclass(frozen=True, slots=True)
class BlockRows:
    """A model's KV pool as rows of one slab each: part i of block b is row ``first[i] + b *
    stride[i]``; both (parts,) int64."""

    first: torch.Tensor
    stride: torch.Tensor
    blocks: int


def block_rows(
    states: Sequence[StateSpec], block_tokens: int, blocks: int, slab_bytes: int
) -> BlockRows:
    """Layer by layer on the device, ``blocks`` blocks in each; a block's parts are those of its
    layers in order."""
    first: list[int] = []
    stride: list[int] = []
    at = 0
    for state in paged(states):
        parts = block_tokens * state.token_bytes // slab_bytes
        first.extend(range(at, at + parts))
        stride.extend([parts] * parts)
        at += parts * blocks
    return BlockRows(torch.tensor(first), torch.tensor(stride), blocks)


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
    the device, (rows, slab_bytes) uint8."""

    def __init__(self, plan: MemoryPlan, device: torch.device) -> None:
        self.slabs = HostSlabs(plan.slab_bytes, plan.host_slabs)
        self._device = device
        self._buffer = pinned_buffer(plan.host_slabs * plan.slab_bytes, device)
        self._memory = self._buffer.view(plan.host_slabs, plan.slab_bytes)
        self._kernels = kernels_for(device, None)
        self._lane = _Thread() if device.type == "cpu" else _Stream(device)
        self._copies: deque[tuple[int, _Copy]] = deque()

    @property
    def busy(self) -> bool:
        """Whether there are copies whose end was not told yet."""
        return bool(self._copies)

    def copy_out(
        self, ticket: int, pool: torch.Tensor, rows: BlockRows, copies: Sequence[BlockCopy]
    ) -> None:
        places = self._places(rows, copies)
        work = self._kernels.copy_out

        def copy() -> None:
            with torch.inference_mode():
                work(pool, places[0], self._memory, places[1])

        self._copies.append((ticket, self._lane.begin(copy)))

    def copied(self) -> tuple[int, ...]:
        """Tickets of the copies that have ended since this was last asked."""
        ended = []
        while self._copies and self._copies[0][1].done():
            ended.append(self._finish())
        return tuple(ended)

    def drain(self) -> tuple[int, ...]:
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
        release_pinned(self._buffer, self._device)

    def _finish(self) -> int:
        ticket, copy = self._copies.popleft()
        copy.result()
        return ticket

    def _places(
        self, rows: BlockRows, copies: Sequence[BlockCopy]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows on the device and slabs on the host, (n,) int64 each, of all parts."""
        parts = len(rows.first)
        for copy in copies:
            if len(copy.slabs) != parts:
                raise EngineError(f"block {copy.device} takes {parts} slabs, not {copy.slabs}")
        blocks = torch.tensor([copy.device for copy in copies], dtype=torch.int64)
        slabs = torch.tensor([s for copy in copies for s in copy.slabs], dtype=torch.int64)
        _check_range(blocks, rows.blocks, "device block")
        _check_range(slabs, self.slabs.count, "slab")
        return (rows.first + blocks.unsqueeze(1) * rows.stride).flatten(), slabs


def _check_range(indices: torch.Tensor, count: int, what: str) -> None:
    wrong = indices[(indices < 0) | (indices >= count)]
    if len(wrong):
        raise EngineError(f"{what} {int(wrong[0])} is not one of {count}")
