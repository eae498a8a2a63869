"""An engine without a model: tokens are a hash of the context, time is what the settings say.

It serves tests and gateway benchmarks, and it is an oracle for schedulers: a row whose blocks
are not the state of its tokens is refused.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from alipes.instance.contract import InstanceSettings, ModelReport, ModelSettings, TopLogprob
from alipes.instance.engine.fake.device import BlockStates, SavedBlocks, refusal
from alipes.instance.engine.fake.words import context_of, words_of
from alipes.instance.engine.protocol import Draw, EngineError, Row, Sampled, SwitchReport

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
        self._saved: dict[bytes, tuple[str, SavedBlocks]] = {}
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

    @property
    def kind(self) -> str:
        return "fake"

    @property
    def reports(self) -> tuple[ModelReport, ...]:
        return self._reports

    @property
    def host_used(self) -> int:
        return sum(len(saved.filled) for _, saved in self._saved.values()) * self._block_bytes

    def activate(self, model: str) -> SwitchReport:
        if model not in self._words:
            raise EngineError(f"model {model} is not of this instance; it has {list(self._words)}")
        if model == self._active:
            return SwitchReport(0.0, 0, addresses_kept=True)
        self._spend(self._costs.switch)
        self._device.clear(model)
        self._active = model
        return SwitchReport(self._costs.switch, WEIGHT_BYTES, addresses_kept=True)

    def step(self, rows: Sequence[Row]) -> tuple[Sampled, ...]:
        if not self._active:
            raise EngineError("no model is active; activate one before the first step")
        prompt = sum(len(row.tokens) for row in rows if len(row.tokens) > 1)
        self._spend(self._costs.step + prompt * self._costs.prefill_token)
        tables = [self._compute(row) for row in rows]
        return tuple(
            self._draw(row, row.draw, table)
            for row, table in zip(rows, tables, strict=True)
            if row.draw is not None
        )

    def save(self, call_id: bytes, blocks: Sequence[int], tokens: int) -> None:
        table = self._device.table(call_id, blocks, tokens)
        self._saved[call_id] = (self._active, self._device.copy_out(call_id, table, tokens))

    def load(self, call_id: bytes, blocks: Sequence[int]) -> None:
        model, saved = self._saved.get(call_id, ("", None))
        if saved is None:
            raise EngineError(f"call {call_id.hex()} has no saved state")
        if model != self._active:
            raise EngineError(f"call {call_id.hex()} is of {model}, active is {self._active}")
        positions = len(saved.filled) * self._device.block_tokens
        self._device.copy_in(self._device.table(call_id, blocks, positions), saved)
        del self._saved[call_id]

    def discard(self, call_id: bytes) -> None:
        self._saved.pop(call_id, None)

    def close(self) -> None:
        self._saved.clear()

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
