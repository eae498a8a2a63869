"""An engine without a model: tokens are a hash of the context, time is what the settings say.

It serves tests and gateway benchmarks, and it is an oracle for schedulers: a row whose blocks
are not the state of its tokens is refused, and so is a copy that meets another one under way.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from alipes.instance.contract import (
    Content,
    InstanceSettings,
    MemoryMap,
    ModelMap,
    ModelReport,
    ModelSettings,
    Region,
    TopLogprob,
)
from alipes.instance.engine.fake.device import BlockStates, refusal
from alipes.instance.engine.fake.host import BLOCK_SLABS, HostStates
from alipes.instance.engine.fake.words import context_of, words_of
from alipes.instance.engine.protocol import (
    BlockCopy,
    CopyEnd,
    Draw,
    EngineError,
    EngineFacts,
    HostSlabs,
    Row,
    Sampled,
    Staged,
    SwitchReport,
)

TOKEN_BYTES: Final = 4096
WEIGHT_BYTES: Final = 64 << 20
FORCED_PENALTY: Final = 8.0


class FakeEngine:
    """Implements ``Engine``. Every model has ``device_bytes`` of KV at 4 KiB a token."""

    def __init__(self, settings: InstanceSettings) -> None:
        block_bytes = settings.block_tokens * TOKEN_BYTES
        blocks = settings.device_bytes // block_bytes
        if blocks < 1:
            raise EngineError(
                f"instance {settings.name}: device_bytes {settings.device_bytes} is less than "
                f"one block of {block_bytes} bytes"
            )
        self._costs = settings.fake
        self._block_bytes = block_bytes
        self._device = BlockStates(blocks, settings.block_tokens)
        self._words = {model.name: words_of(Path(model.folder)) for model in settings.models}
        self._reports = tuple(self._report(model, blocks) for model in settings.models)
        slab_bytes = block_bytes // BLOCK_SLABS
        self._slabs = HostSlabs(slab_bytes, settings.host_bytes // slab_bytes)
        self._host = HostStates(self._slabs.count)
        self._about = EngineFacts(self._map(settings.device_bytes, blocks), {})
        self._active = ""

    def _report(self, model: ModelSettings, blocks: int) -> ModelReport:
        return ModelReport(
            name=model.name,
            kv_format=f"fake:{model.name}",
            context=context_of(Path(model.folder)),
            vocab_size=self._words[model.name][1],
            weight_bytes=WEIGHT_BYTES,
            block_bytes=self._block_bytes,
            kv_blocks=blocks,
        )

    def _map(self, device_bytes: int, blocks: int) -> MemoryMap:
        """Blocks, and what is too little for one; there are no weights."""
        used = blocks * self._block_bytes
        kv = Region(Content.KV, 0, used, (0,), blocks, self._block_bytes)
        rest = Region(Content.UNUSED, used, device_bytes - used)
        regions = (kv, rest) if rest.nbytes else (kv,)
        return MemoryMap(
            device_bytes,
            tuple(ModelMap(report.name, regions) for report in self._reports),
            slab_bytes=self._slabs.slab_bytes,
            slabs=self._slabs.count,
        )

    @property
    def kind(self) -> str:
        return "fake"

    @property
    def reports(self) -> tuple[ModelReport, ...]:
        return self._reports

    @property
    def host(self) -> HostSlabs:
        return self._slabs

    @property
    def about(self) -> EngineFacts:
        return self._about

    def activate(self, model: str) -> SwitchReport:
        if model not in self._words:
            raise EngineError(f"model {model} is not of this instance; it has {list(self._words)}")
        if self._host.busy:
            raise EngineError(f"copies are under way: drain them before {model} becomes active")
        if model == self._active:
            return SwitchReport()
        self._spend(self._costs.switch)
        self._device.clear(model)
        self._active = model
        return SwitchReport(self._costs.switch, h2d_bytes=WEIGHT_BYTES)

    def stage(self, following: str | None, rows: int) -> Staged:
        """Its weights are nowhere, so there is nothing to stage."""
        return Staged()

    def expect(self, model: str, grammar: str) -> None:
        """Its words are of no grammar."""

    def step(self, rows: Sequence[Row]) -> tuple[Sampled, ...]:
        self._check_active()
        prompt = sum(len(row.tokens) for row in rows if len(row.tokens) > 1)
        self._spend(self._costs.step + prompt * self._costs.prefill_token)
        tables = [self._compute(row) for row in rows]
        return tuple(
            self._draw(row, row.draw, table)
            for row, table in zip(rows, tables, strict=True)
            if row.draw is not None
        )

    def copy_out(self, ticket: int, copies: Sequence[BlockCopy]) -> None:
        self._check_active()
        self._host.copy_out(ticket, copies, self._active, self._device)

    def copied(self) -> tuple[CopyEnd, ...]:
        return self._host.copied(self._device)

    def drain(self) -> tuple[CopyEnd, ...]:
        return self._host.copied(self._device)

    def copy_in(self, copies: Sequence[BlockCopy]) -> None:
        self._check_active()
        self._spend(self._costs.restore_token * len(copies) * self._device.block_tokens)
        for copy in copies:
            self._host.copy_in(copy, self._active, self._device)

    def close(self) -> None:
        self._active = ""

    def _check_active(self) -> None:
        if not self._active:
            raise EngineError("no model is active: activate one first")

    def _compute(self, row: Row) -> NDArray[np.int64]:
        end = row.start + len(row.tokens)
        if not len(row.tokens):
            raise refusal(row.call_id, "its row has no tokens")
        table = self._device.table(row.call_id, row.blocks, end)
        self._device.write(row.call_id, table, row.start, row.tokens)
        if row.draw is not None:
            if len(row.draw.history) != end:
                raise refusal(
                    row.call_id,
                    f"it draws after position {end}, but its history has "
                    f"{len(row.draw.history)} tokens",
                )
            self._device.check_tokens(row.call_id, table, row.draw.history)
        return table

    def _draw(self, row: Row, draw: Draw, table: NDArray[np.int64]) -> Sampled:
        words, size = self._words[self._active]
        digest = self._device.context_hash(table, len(draw.history))
        natural = int(words[digest % len(words)])
        token = natural if draw.forced is None else draw.forced
        wanted = draw.sampling.top_logprobs
        if wanted < 0:
            return Sampled(row.call_id, token)
        best = -(digest % 997) / 997
        logprob = best if token == natural else best - FORCED_PENALTY
        top = tuple(TopLogprob((natural + rank) % size, best - rank) for rank in range(wanted))
        return Sampled(row.call_id, token, logprob, top)

    @staticmethod
    def _spend(seconds: float) -> None:
        if seconds > 0:
            time.sleep(seconds)
