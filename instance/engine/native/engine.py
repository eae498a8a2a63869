"""The built-in engine: torch models that take turns in one arena."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import torch

from alipes.instance.contract import InstanceSettings, ModelReport, Sampling
from alipes.instance.engine.grammar import NOTHING_MASKED, Grammars, Vocabulary
from alipes.instance.engine.native.about import engine_facts
from alipes.instance.engine.native.batch import Bounds, build_batch
from alipes.instance.engine.native.graphs import Active, Computed, Graphs, graphs_for
from alipes.instance.engine.native.host import BlockRows, HostPool, block_rows
from alipes.instance.engine.native.model import (
    Shell,
    begin_pass,
    build_shell,
    forward,
    rotary_angles,
)
from alipes.instance.engine.native.parallel.messages import Held
from alipes.instance.engine.native.parallel.share import WHOLE, Share
from alipes.instance.engine.native.sampler import check_finite, sample
from alipes.instance.engine.native.shape import (
    ModelShape,
    gather_elements,
    shape_on,
    widen_elements,
)
from alipes.instance.engine.native.staging import (
    Stager,
    Switching,
    Weights,
    best_switching,
    device_memory,
)
from alipes.instance.engine.native.states import heads_held
from alipes.instance.engine.native.weights import load_packed
from alipes.instance.engine.protocol import (
    BlockCopy,
    CopyEnd,
    Draw,
    EngineError,
    EngineFacts,
    HostSlabs,
    Recurrence,
    Row,
    Sampled,
    Staged,
    SwitchReport,
)
from alipes.instance.memory.arena import Arena
from alipes.instance.memory.device import pin, unpin
from alipes.instance.memory.plan import ModelPlan, plan_instance
from alipes.instance.memory.specs import describe, paged
from alipes.kernels.shapes import KvHeads, Workspace
from alipes.kernels.table import kernels_for

if TYPE_CHECKING:
    from alipes.instance.engine.native.parallel.group import Group

_WARM_TOKENS: Final = 32


@dataclass(slots=True)
class _Resident:
    """A model of this instance: what never leaves host memory, and its shell once it has one."""

    shape: ModelShape
    plan: ModelPlan
    host: torch.Tensor
    report: ModelReport
    rows: BlockRows
    held: frozenset[KvHeads]
    shell: Shell | None = None
    base: tuple[int, int] = (0, 0)


class NativeEngine:
    """Implements ``Engine``. Construction reads every model's weights into host memory; raises
    ``EngineError`` when one can never fit, a folder is broken or the device is not there.
    ``switching`` is how models come to the device, ``graphs`` how steps that decode are computed,
    by default the best way that there is here and that the settings allow. In a ``group`` it is one
    rank: it has its share of every model, and ends of copies are not told but what ``held`` says of
    them."""

    def __init__(
        self,
        settings: InstanceSettings,
        switching: Switching | None = None,
        group: Group | None = None,
        graphs: Graphs | None = None,
    ) -> None:
        torch.set_num_threads(max(1, settings.threads))
        self._settings = settings
        self._device = _usable(settings.device)
        self._reduce = group.sum if group is not None else None
        share = group.share if group is not None else WHOLE
        shapes = {m.name: shape_on(settings.device, m, share) for m in settings.models}
        size = settings.block_tokens
        plan = plan_instance(settings, {n: s.footprint(size) for n, s in shapes.items()})
        if plan.refusals:
            raise EngineError("; ".join(plan.refusals))
        if switching is None:
            switching = best_switching(self._device) if settings.staging else Switching.H2D
        memory = device_memory(
            plan.device_bytes,
            self._device,
            switching,
            layer=min(p.kv_blocks * min(_row_bytes(shapes[p.name], size)) for p in plan.models),
            weights=max(p.weight_bytes for p in plan.models),
        )
        self._arena = Arena(plan, memory)
        states = {name: shape.states for name, shape in shapes.items()}
        self._about = engine_facts(plan, states, size, memory, switching)
        self._workspaces = {
            name: _workspace(shape, self._arena.runtime, size) for name, shape in shapes.items()
        }
        self._models = {
            m.name: _load_model(
                Path(m.folder), shapes[m.name], planned, settings, plan.slab_bytes, share
            )
            for m, planned in zip(settings.models, plan.models, strict=True)
        }
        self._host = HostPool(plan, self._device, group)
        weights = {name: _weights(model, size) for name, model in self._models.items()}
        self._stager = Stager(self._arena, weights, self._device, switching)
        self._graphs = graphs or graphs_for(self._device, settings.max_running)
        self._grammars = Grammars(
            {
                m.name: Vocabulary(Path(m.folder), shapes[m.name].config.vocab)
                for m in settings.models
            },
            settings.max_running,
        )
        self._ticket: float = -math.inf
        self._active = ""
        for name in self._models:
            self._warm(name)

    def _warm(self, name: str) -> None:
        """Touch a model's pages and prepare its products once, so that the first call of a model
        costs what later ones do and measured costs are not those of a first time."""
        self.activate(name)
        count = min(_WARM_TOKENS, self._models[name].plan.context - 1)
        ids = np.zeros(count + 1, dtype=np.int32)
        blocks = range(-(-len(ids) // self._settings.block_tokens))
        prompt = Draw(Sampling(temperature=0), ids[:count], count)
        recurrent = bool(self._models[name].plan.slots)
        first = Recurrence(None, 0) if recurrent else None
        self.step([Row(b"", ids[:count], 0, blocks, prompt, first)])
        following = Draw(prompt.sampling, ids, count)
        for size in self._graphs.sizes:
            slots = (Recurrence(0, slot) if recurrent else None for slot in range(size))
            self.step([Row(b"", ids[count:], count, blocks, following, one) for one in slots])
        self._active = ""

    @property
    def kind(self) -> str:
        return "native"

    @property
    def reports(self) -> tuple[ModelReport, ...]:
        return tuple(model.report for model in self._models.values())

    @property
    def host(self) -> HostSlabs:
        return self._host.slabs

    @property
    def about(self) -> EngineFacts:
        return self._about

    def activate(self, model: str) -> SwitchReport:
        """The switch of Talaria 4.2 and 4.4: stop staging, bring the packed weights to the start
        of the arena, rebind the shell, check that every region is where the shell knows it."""
        if model not in self._models:
            raise EngineError(f"model {model} is not one of this instance's")
        if self._host.busy:
            raise EngineError(f"copies are under way: drain them before {model} becomes active")
        if model == self._active:
            return SwitchReport()
        begin = time.perf_counter()
        entry = self._models[model]
        self._active = ""
        self._graphs.enter(model)
        moved = self._stager.switch(model)
        kept = self._rebind(entry, self._arena.weights(entry.plan))
        if self._device.type != "cpu":
            torch.accelerator.synchronize(self._device)
        self._active = model
        return SwitchReport(
            seconds=time.perf_counter() - begin,
            addresses_kept=kept,
            path=str(moved.path),
            h2d_bytes=moved.h2d_bytes,
            d2d_bytes=moved.d2d_bytes,
            mapped_bytes=moved.mapped_bytes,
        )

    def stage(self, following: str | None, rows: int) -> Staged:
        if not self._active:
            return Staged()
        if self._host.busy:
            # Rows that are being copied to the host still hold what is needed.
            rows = max(rows, self._stager.rows)
        self._stager.serving(following, rows)
        return self._stager.state

    def _rebind(self, entry: _Resident, weights: torch.Tensor) -> bool:
        """Whether the shell's views are where the regions are; builds it where they are not."""
        kv = self._arena.kv(entry.plan)
        base = (weights.data_ptr(), kv.data_ptr())
        kept = entry.shell is None or entry.base == base
        if entry.shell is None or not kept:
            angles = rotary_angles(entry.shape.config, entry.plan.context, self._device)
            size = self._settings.block_tokens
            entry.shell = build_shell(entry.shape, weights, kv, entry.plan, size, angles)
            entry.base = base
        return kept

    def expect(self, model: str, grammar: str) -> None:
        self._grammars.expect(model, grammar)

    def step(self, rows: Sequence[Row]) -> tuple[Sampled, ...]:
        """Recurrent state is written last of all. What grammars allow is found meanwhile."""
        masks = self._grammars.begin(self._active, rows)
        with torch.inference_mode():
            step, logits = self.compute(rows)
            allowed = masks.take() if masks is not None else NOTHING_MASKED
            sampled = sample(rows, logits, step.kernels, allowed)
            step.commit()
            return sampled

    def compute(self, rows: Sequence[Row]) -> Computed:
        """A step before anything is drawn, to be committed; and its logits (draws, vocab). Rows of
        few tokens that all draw multiply in the weights' own dtype; should float16 overflow
        there, all is computed again with widened weights."""
        entry, shell = self._current()
        bounds = Bounds(
            self._settings.block_tokens,
            entry.plan.kv_blocks,
            entry.plan.context,
            entry.shape.config.vocab,
            entry.plan.slots,
        )
        active = Active(self._active, shell, bounds, self._workspaces[self._active])
        self._stager.use(_rows_written(rows, bounds))
        with torch.inference_mode():
            step, logits = self._graphs.step(active, rows, partial(self._eager, active, rows))
            if math.isfinite(float(logits.sum())):
                return step, logits
            step, logits = self._eager(active, rows, widened=True)
            if entry.shape.narrow_kv:
                check_finite(self._active, rows, logits)
            return step, logits

    def _eager(self, active: Active, rows: Sequence[Row], widened: bool = False) -> Computed:
        batch = build_batch(rows, active.bounds, self._device)
        if self._reduce is not None:
            self._clear_begun(rows)
        narrow = not widened and batch.draws == len(rows) == batch.rows
        held = self._models[active.name].held
        kernels = kernels_for(self._device, batch.rows if narrow else None, held)
        step = begin_pass(active.shell, batch, kernels, active.workspace, self._reduce)
        return step, forward(active.shell, step)

    def _clear_begun(self, rows: Sequence[Row]) -> None:
        """Of blocks that are not full ranks compare all bytes that they have in common, and what
        is left there of weights or of another model's KV each has for itself."""
        entry, _ = self._current()
        begun = _begun(rows, self._settings.block_tokens)
        if begun and bool(entry.rows.common.any()):
            parts = entry.rows.places(torch.tensor(begun)).view(len(begun), -1)
            self._kv_rows(entry)[parts[:, entry.rows.common].flatten()] = 0

    def copy_out(self, ticket: int, copies: Sequence[BlockCopy]) -> None:
        entry, _ = self._current()
        if ticket <= self._ticket:
            raise EngineError(f"copy {ticket} comes after {self._ticket}: tickets must rise")
        self._host.copy_out(ticket, self._kv_rows(entry), entry.rows, copies)
        self._ticket = ticket

    def copied(self) -> tuple[CopyEnd, ...]:
        return self._host.copied()

    def drain(self) -> tuple[CopyEnd, ...]:
        return self._host.drain()

    @property
    def copying(self) -> bool:
        """Whether there are copies of whose end nothing was said yet."""
        return self._host.busy

    def held(self) -> tuple[Held, ...]:
        """What this rank has to say of copies since this was last asked."""
        return self._host.held()

    def copy_in(self, copies: Sequence[BlockCopy]) -> None:
        entry, _ = self._current()
        blocks = entry.plan.kv_blocks
        self._stager.use(max((c.device + 1 for c in copies if c.device < blocks), default=0))
        self._host.copy_in(self._kv_rows(entry), entry.rows, copies)

    def close(self) -> None:
        """Give the memory back; the engine cannot be used after it."""
        self._active = ""
        self._grammars.close()
        self._stager.close()
        self._host.close()
        for model in self._models.values():
            unpin(model.host, self._device)
        self._models.clear()
        self._workspaces.clear()
        del self._arena, self._stager, self._graphs

    def _current(self) -> tuple[_Resident, Shell]:
        if not self._active:
            raise EngineError("no model is active: activate one first")
        entry = self._models[self._active]
        assert entry.shell is not None
        return entry, entry.shell

    def _kv_rows(self, entry: _Resident) -> torch.Tensor:
        return self._arena.kv(entry.plan).view(-1, self.host.slab_bytes)


def _usable(name: str) -> torch.device:
    device = torch.device(name)
    count = torch.cuda.device_count() if device.type == "cuda" else 1
    if (device.index or 0) >= count:
        raise EngineError(f"device {name}: torch sees {count} CUDA devices here; set device: cpu")
    return device


def _rows_written(rows: Sequence[Row], bounds: Bounds) -> int:
    """One more than the highest block that a step writes, be it one that is refused."""
    written = (row.blocks[row.start // bounds.block_tokens :] for row in rows)
    return min(bounds.blocks, 1 + max((max(blocks, default=-1) for blocks in written), default=-1))


def _begun(rows: Sequence[Row], block_tokens: int) -> list[int]:
    """The blocks that a step begins and does not fill."""
    lasts = ((row, *divmod(row.start + len(row.tokens), block_tokens)) for row in rows)
    return [
        row.blocks[last] for row, last, rest in lasts if rest and last * block_tokens >= row.start
    ]


def _weights(model: _Resident, block_tokens: int) -> Weights:
    return Weights(model.plan, model.host, _row_bytes(model.shape, block_tokens))


def _row_bytes(shape: ModelShape, block_tokens: int) -> tuple[int, ...]:
    """Of a block, in each of the paged layers."""
    return tuple(block_tokens * state.token_bytes for state in paged(shape.states))


def _workspace(shape: ModelShape, runtime: torch.Tensor, block_tokens: int) -> Workspace:
    memory = runtime.view(torch.float32)
    widen, gather = widen_elements(shape), gather_elements(shape, block_tokens)
    return Workspace(widen=memory[:widen], gather=memory[widen : widen + gather])


def _load_model(
    folder: Path,
    shape: ModelShape,
    plan: ModelPlan,
    settings: InstanceSettings,
    slab_bytes: int,
    share: Share,
) -> _Resident:
    host = load_packed(folder, shape.layout)
    rows = block_rows(shape.states, settings.block_tokens, plan, slab_bytes, share)
    report = ModelReport(
        name=plan.name,
        kv_format=_kv_format(shape, host, settings.block_tokens),
        context=plan.context,
        vocab_size=shape.config.vocab,
        weight_bytes=plan.weight_bytes,
        block_bytes=plan.block_bytes,
        kv_blocks=plan.kv_blocks,
        slot_bytes=plan.slot_bytes,
        slots=plan.slots,
        host_block_bytes=rows.slabs * slab_bytes,
    )
    pin(host, torch.device(settings.device))
    return _Resident(shape, plan, host, report, rows, heads_held(shape.states))


def _kv_format(shape: ModelShape, weights: torch.Tensor, block_tokens: int) -> str:
    """Names everything that a block's bytes depend on besides its tokens. Whoever computes with
    the same weights may rotate or normalize otherwise, hence the config."""
    config = repr(shape.config).encode()
    digests = (
        hashlib.blake2b(data, digest_size=16).hexdigest() for data in (weights.numpy().data, config)
    )
    return f"{':'.join(digests)}:{describe(shape.states)}:interleaved:{block_tokens}"
