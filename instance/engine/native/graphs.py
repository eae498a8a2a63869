"""Decode steps as graphs: recorded once for each model and number of rows, then replayed.

A step of few rows is many small kernels, and launching them takes longer than running them. A
recorded step is one launch. It can only read and write what it did when it was recorded, so what
changes from step to step lies in buffers of its own (``_Inputs``), and weights and state are where
the model's shell has them: they stay there over switches, and a shell that was bound anew gets new
graphs. Steps of fewer rows than a graph has repeat one of their own rows, which then writes what is
written already.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

import torch

from alipes.instance.engine.native.batch import Batch, Bounds, DecodeRows, decode_rows
from alipes.instance.engine.native.carry import Carries, Together
from alipes.instance.engine.native.model import Shell, begin_pass, forward
from alipes.instance.engine.native.passes import Pass
from alipes.instance.engine.protocol import Row
from alipes.instance.memory.parking import Parking, parking_for
from alipes.kernels.shapes import PageTable, Workspace
from alipes.kernels.table import Kernels, kernels_for, variants

T = TypeVar("T")
_CUDA: Final[Any] = torch.cuda
Tensor = torch.Tensor
Replay = Callable[[], None]


class Uncommitted(Protocol):
    """A step that has been computed; ``commit`` makes its recurrent state that of the calls."""

    @property
    def kernels(self) -> Kernels: ...

    def commit(self) -> None: ...


Computed = tuple[Uncommitted, Tensor]
"""With its logits (draws, vocab) float32, which the next step may overwrite."""


@dataclass(frozen=True, slots=True)
class Active:
    """What the steps of the active model are computed with."""

    name: str
    shell: Shell
    bounds: Bounds
    workspace: Workspace


class Graphs(Protocol):
    sizes: tuple[int, ...]
    """Rows of decode steps that have a way of their own, to be gone once before it counts."""
    recorded: int
    """So many recordings were made; once every size of every model has run, no more."""

    def enter(self, model: str) -> None:
        """``model`` is to be the active one."""
        ...

    def step(self, active: Active, rows: Sequence[Row], eager: Callable[[], Computed]) -> Computed:
        """What ``eager`` computes. Raises ``EngineError`` as it would."""
        ...


class NoGraphs:
    """Every step is computed operation by operation."""

    sizes: tuple[int, ...] = (1,)
    recorded = 0

    def enter(self, model: str) -> None:
        pass

    def step(self, active: Active, rows: Sequence[Row], eager: Callable[[], Computed]) -> Computed:
        return eager()


class Capture(Protocol):
    """How work on a device is recorded."""

    def __call__(self, tag: str, work: Callable[[], T]) -> tuple[T, Replay]:
        """Do ``work``, which may be done any number of times and makes no choice by what tensors
        hold. Returns what it returned, and what does it again: reads and writes the same
        memory, which belongs to ``tag`` as far as ``work`` allocated it."""
        ...


class CudaCapture:
    """CUDA graphs; those of a tag share a pool of memory."""

    def __init__(self, device: torch.device, parking: Parking) -> None:
        self._device = device
        self._parking = parking
        self._stream: Any = _CUDA.Stream(device)
        self._pools: dict[str, Any] = {}

    def __call__(self, tag: str, work: Callable[[], T]) -> tuple[T, Replay]:
        # Libraries set themselves up when they are first used, which cannot be recorded.
        current = _CUDA.current_stream(self._device)
        self._stream.wait_stream(current)
        with _CUDA.stream(self._stream):
            work()
        current.wait_stream(self._stream)
        if tag not in self._pools:
            self._pools[tag] = _CUDA.graph_pool_handle()
        graph = _CUDA.CUDAGraph()
        with self._parking.capture(graph, tag, self._pools[tag], self._stream):
            done = work()
        graph.replay()
        return done, graph.replay


def graphs_for(device: torch.device, most_rows: int) -> Graphs:
    """What there is for this device: steps of up to ``most_rows``. Where attention has no form
    that a graph can hold but the reference, which would read whole contexts, there are none."""
    kernels = kernels_for(device, None)
    if device.type != "cuda" or variants(kernels)["attend_step"] == "reference":
        return NoGraphs()
    parking = parking_for(device)
    capture = CudaCapture(device, parking)
    return CapturedGraphs(capture_sizes(most_rows), device, kernels, capture, parking)


def capture_sizes(most: int) -> tuple[int, ...]:
    """Rows of graphs for steps of up to ``most``: powers of two, then multiples of 16, so that
    fewer than half of the rows repeat others, and of many fewer than 16."""
    sizes = [size for size in (1, 2, 4, 8) if size < most]
    return (*sizes, *range(16, most, 16), most)


class CapturedGraphs:
    """Implements ``Graphs`` for the numbers of rows ``sizes``, which rise."""

    def __init__(
        self,
        sizes: tuple[int, ...],
        device: torch.device,
        kernels: Kernels,
        capture: Capture,
        parking: Parking,
    ) -> None:
        self.sizes = sizes
        self.recorded = 0
        self._device = device
        self._kernels = kernels
        self._capture = capture
        self._parking = parking
        self._entered = ""
        self._captured: dict[str, dict[int, _Graph]] = {}
        self._shells: dict[str, Shell] = {}

    def enter(self, model: str) -> None:
        """Graphs of the model before give their memory to those of this one."""
        if model != self._entered:
            self._parking.pause(_tag(self._entered))
            self._parking.resume(_tag(model))
            self._entered = model

    def step(self, active: Active, rows: Sequence[Row], eager: Callable[[], Computed]) -> Computed:
        """Steps with other rows than those that decode, and with more of them than the largest
        size, are computed by ``eager``."""
        size = next((size for size in self.sizes if size >= len(rows)), None)
        decode = decode_rows(rows, active.bounds) if size is not None else None
        if size is None or decode is None or not rows:
            return eager()
        graph = self._graph(active, size)
        logits = graph.run(decode)
        return _Replayed(graph, decode), logits

    def _graph(self, active: Active, size: int) -> _Graph:
        if self._shells.get(active.name) is not active.shell:
            self._shells[active.name] = active.shell
            self._captured[active.name] = {}
        graphs = self._captured[active.name]
        if size not in graphs:
            inputs = _Inputs(size, active.bounds, self._device)
            graphs[size] = _Graph(active, inputs, self._kernels, self._record)
        return graphs[size]

    def _record(self, tag: str, work: Callable[[], T]) -> tuple[T, Replay]:
        self.recorded += 1
        return self._capture(tag, work)


@dataclass(frozen=True, slots=True)
class _Replayed:
    graph: _Graph
    decode: DecodeRows

    @property
    def kernels(self) -> Kernels:
        return self.graph.kernels

    def commit(self) -> None:
        self.graph.commit(self.decode.keep)


class _Graph:
    """The steps of one model and size. Recorded when it first runs; so is what it commits."""

    def __init__(self, active: Active, inputs: _Inputs, kernels: Kernels, capture: Capture) -> None:
        self.kernels = kernels
        self._active = active
        self._inputs = inputs
        self._capture = capture
        self._done: tuple[Pass, Tensor] | None = None
        self._replay: Replay | None = None
        self._store: Replay | None = None

    def run(self, decode: DecodeRows) -> Tensor:
        """Logits (rows, vocab)."""
        self._inputs.fill(decode)
        if self._replay is None:
            self._done, self._replay = self._capture(_tag(self._active.name), self._compute)
        else:
            self._replay()
        assert self._done is not None
        return self._done[1][: decode.count]

    def _compute(self) -> tuple[Pass, Tensor]:
        shell = self._active.shell
        step = begin_pass(shell, self._inputs.batch, self.kernels, self._active.workspace)
        return step, forward(shell, step)

    def commit(self, keep: Sequence[tuple[int, int]]) -> None:
        assert self._done is not None
        step = self._done[0]
        if not step.writes:
            return
        if self._store is None:
            _, self._store = self._capture(_tag(self._active.name), step.store)
        else:
            self._store()
        if keep:
            # Few rows are at the end of a block, and not the same ones every time.
            rows, slots = torch.tensor(keep, device=self._inputs.device).unbind(1)
            for state, _, values in step.writes:
                state.index_copy_(0, slots, values.index_select(0, rows))


class _Inputs:
    """What a step of ``size`` rows reads besides weights and state, and where it is filled in."""

    def __init__(self, size: int, bounds: Bounds, device: torch.device) -> None:
        width = -(-bounds.context // bounds.block_tokens)
        pinned = device.type == "cuda"
        self.device = device
        self._size = size
        self._block_tokens = bounds.block_tokens
        self._host = (
            torch.zeros(5, size, dtype=torch.int64, pin_memory=pinned),
            torch.zeros(size, width, dtype=torch.int32, pin_memory=pinned),
        )
        values, blocks = self._there = tuple(torch.zeros_like(x, device=device) for x in self._host)
        tokens, positions, slots, load, save = values
        together = Together(None, load, None, save, None, save)
        self.batch = Batch(
            tokens=tokens,
            positions=positions,
            slots=slots,
            segments=(),
            last=None,
            draws=size,
            carries=Carries(together, ()) if bounds.slots else None,
            pages=PageTable(blocks, positions, bounds.block_tokens),
        )

    def fill(self, decode: DecodeRows) -> None:
        """Rows that are missing repeat the one with the least to read. What was filled in before
        must have been read: whoever looked at that step's logits has waited for it."""
        values, blocks = (one.numpy() for one in self._host)
        positions = decode.values[1]
        rows = [*range(decode.count)] + [int(positions.argmin())] * (self._size - decode.count)
        values[:] = decode.values[:, rows]
        for at, row in enumerate(rows):
            used = decode.tables[row][: positions[row] // self._block_tokens + 1]
            blocks[at, : len(used)] = used
        for there, host in zip(self._there, self._host, strict=True):
            there.copy_(host, non_blocking=True)


def _tag(model: str) -> str:
    return f"graphs of {model}" if model else ""
