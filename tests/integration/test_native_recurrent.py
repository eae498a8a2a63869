"""Models with recurrent state in float32 against transformers in float32 on the same weights:
what a slot holds is the state after the tokens it is said to hold, wherever it has been."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from alipes.instance.contract import (
    Finished,
    InstanceSettings,
    ModelReport,
    ModelSettings,
    Pool,
    Sampling,
    Submit,
    Targets,
    TokenIds,
)
from alipes.instance.engine.native.engine import NativeEngine
from alipes.instance.engine.protocol import BlockCopy, CopyEnd, Recurrence, Row

from .native_instance import Instance
from .test_native_numbers import BLOCK, Call, Desk, Oracle, scattered

NAMES = ("qwen3-next", "qwen3.5")


class Stateful(Call):
    """Goes on from ``slot``, or from ``load`` at first where it begins behind another's tokens;
    leaves the state after ``kept`` tokens of all in ``keep``."""

    def __init__(
        self,
        name: str,
        prompt: TokenIds,
        blocks: list[int],
        slot: int,
        *,
        load: tuple[int, int] | None = None,
        keep: tuple[int, int] | None = None,
    ) -> None:
        first, done = load or (slot, 0)
        super().__init__(name, prompt, blocks, done)
        self.slot, self.next, self.keep = slot, first, keep

    def row(self, limit: int) -> Row:
        start = self.done
        row = super().row(limit)
        given = Recurrence(self.next if start else None, self.slot)
        if self.keep is not None and start < self.keep[1] <= self.done:
            given = replace(given, keep=self.keep[0], kept=self.keep[1] - start)
        self.next = self.slot
        return replace(row, recurrence=given)


@pytest.fixture(scope="module")
def desk(small_folders: dict[str, Path]) -> Iterator[Desk]:
    models = tuple(ModelSettings(n, str(small_folders[n]), "float32") for n in NAMES)
    engine = NativeEngine(
        InstanceSettings(
            name="recurrent",
            pool=Pool.COLD,
            models=models,
            targets=Targets(),
            endpoint="",
            device_bytes=360 << 20,
            host_bytes=64 << 20,
            max_running=12,
            threads=1,
        )
    )
    yield Desk(engine)
    engine.close()


@pytest.fixture(scope="module")
def oracles(small_folders: dict[str, Path]) -> Callable[[str], Oracle]:
    return cache(lambda name: Oracle(small_folders[name]))


@pytest.fixture(scope="module")
def text() -> TokenIds:
    """Random ids: what comes next depends on nothing but the weights and all that came before."""
    return np.random.default_rng(17).integers(0, 49152, 6000).astype(np.int32)


def report(desk: Desk, name: str) -> ModelReport:
    return next(report for report in desk.engine.reports if report.name == name)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("limits", [(600,), (1, 2, 63, 64, 129, 300, 500)], ids=["whole", "odd"])
def test_in_chunks_of_any_length(
    desk: Desk,
    oracles: Callable[[str], Oracle],
    text: TokenIds,
    name: str,
    limits: tuple[int, ...],
) -> None:
    desk.engine.activate(name)
    call = Stateful("odd", text[:600], scattered(3, 640), slot=5)
    for limit in limits:
        desk.step(call, limit=limit)
    oracles(name).check(desk.generate(call, 16))


@pytest.mark.parametrize("name", NAMES)
def test_another_call_goes_on_from_a_state_kept_at_a_block_boundary(
    desk: Desk, oracles: Callable[[str], Oracle], text: TokenIds, name: str
) -> None:
    """The boundary lies within a chunk, then at a chunk's end; the first call goes on."""
    desk.engine.activate(name)
    for kept, limit in ((5 * BLOCK, 400), (4 * BLOCK, 128)):
        first = Stateful("first", text[:430], list(range(8)), slot=0, keep=(1, kept))
        desk.generate(first, 6, limit=limit)
        blocks = [*first.blocks[: kept // BLOCK], *range(20, 28)]
        prompt = np.concatenate([text[:kept], text[2000:2130]])
        other = Stateful("other", prompt, blocks, slot=2, load=(1, kept))
        oracles(name).check(desk.generate(other, 8))
        # What was kept is still there after it was gone on from.
        again = Stateful("again", text[: kept + 1], blocks, slot=3, load=(1, kept))
        oracles(name).check(desk.generate(again, 4))
        oracles(name).check(first)


@pytest.mark.parametrize("name", NAMES)
def test_a_state_kept_while_decoding(
    desk: Desk, oracles: Callable[[str], Oracle], text: TokenIds, name: str
) -> None:
    desk.engine.activate(name)
    first = Stateful("first", text[: BLOCK - 5], [3, 1], slot=0, keep=(1, BLOCK))
    desk.generate(first, 20)
    prompt = np.concatenate([first.ids[:BLOCK], text[:70]])
    other = Stateful("other", prompt, [3, 7, 8], slot=2, load=(1, BLOCK))
    oracles(name).check(desk.generate(other, 8))
    oracles(name).check(first)


@pytest.mark.parametrize(("name", "other"), [NAMES, NAMES[::-1]])
def test_saved_to_the_host_and_restored_elsewhere(
    desk: Desk, oracles: Callable[[str], Oracle], text: TokenIds, name: str, other: str
) -> None:
    """A running call with a block that is not full; its slot is a block behind the blocks."""
    engine, of = desk.engine, report(desk, name)
    engine.activate(name)
    call = desk.generate(Stateful("moved", text[100:300], [5, 2, 9, 4], slot=3), 7)
    parts = [of.block_bytes // engine.host.slab_bytes] * 4
    parts.append(of.slot_bytes // engine.host.slab_bytes)
    free = iter(range(engine.host.count))
    slabs = [tuple(next(free) for _ in range(count)) for count in parts]
    held = [*call.held, of.kv_blocks + 3]
    ticket = 1000 + NAMES.index(name)
    engine.copy_out(ticket, [BlockCopy(*one) for one in zip(held, slabs, strict=True)])
    assert engine.drain() == (CopyEnd(ticket),)

    engine.activate(other)
    between = desk.generate(Stateful("between", text[300:800], list(range(9)), slot=3), 5)
    assert engine.activate(name).addresses_kept
    call.blocks, call.slot, call.next = [0, 7, 1, 3], 8, 8
    held = [*call.held, of.kv_blocks + 8]
    engine.copy_in([BlockCopy(*one) for one in zip(held, slabs, strict=True)])
    oracles(name).check(desk.generate(call, 16))
    oracles(other).check(between)


@pytest.mark.parametrize("name", NAMES)
def test_batched_with_calls_of_every_length(
    desk: Desk, oracles: Callable[[str], Oracle], text: TokenIds, name: str
) -> None:
    desk.engine.activate(name)
    lengths = (1, 3, 63, 64, 65, 200, 431)
    calls = [
        Stateful(f"call {n}", text[1000 + n : 1000 + 2 * n], scattered(20 * i + i % 2, n + 20), i)
        for i, n in enumerate(lengths)
    ]
    for call in calls:
        desk.step(call, *[c for c in calls if c.done and c is not call], limit=150)
    for _ in range(8):
        desk.step(*calls, limit=150)
    for call in calls:
        oracles(name).check(call)


class Asking:
    """Asks one question after another, greedily, with a call to another model after each."""

    def __init__(self, folders: dict[str, Path], name: str, **changes: Any) -> None:
        self.instance = Instance(folders, blocks=60, prefill_chunk=192, **changes)
        self.name, self._numbers = name, itertools.count(1)

    def ask(self, prompt: TokenIds) -> tuple[Finished, list[int]]:
        answer = self._ask(self.name, prompt)
        for other in self.instance.settings.models:
            if other.name != self.name:
                self._ask(other.name, prompt[:100])
        return answer

    def _ask(self, model: str, prompt: TokenIds) -> tuple[Finished, list[int]]:
        call_id = next(self._numbers).to_bytes(16, "big")
        greedy = Sampling(temperature=0.0)
        self.instance.post(Submit(call_id, model, bytes(16), prompt.tobytes(), 80, greedy))
        self.instance.until_ended(call_id)
        last = self.instance.last[call_id]
        assert isinstance(last, Finished)
        return last, [drawn.token for drawn in self.instance.drawn[call_id]]


@pytest.mark.parametrize("name", NAMES)
def test_prompts_come_back_after_other_models_and_change_no_token(
    tiny_folders: dict[str, Path], text: TokenIds, name: str
) -> None:
    folders = {n: tiny_folders[n] for n in (name, "qwen3", "deepseek-v3")}
    asking, uncached = Asking(folders, name), Asking(folders, name, host_kv=False)
    prompt, system = text[:510], 3 * BLOCK
    questions = [np.concatenate([text[:system], text[n : n + 150]]) for n in (1000, 2000, 3000)]
    # The same again; a reply that became other tokens; then others that begin as it does.
    other = np.concatenate([prompt, text[4000:4070]])
    usable = len(prompt) // BLOCK * BLOCK
    restored = [0, usable, usable, 0, system, system]
    for sent, expected in zip([prompt, prompt, other, *questions], restored, strict=True):
        (got, said), (alone, meant) = asking.ask(sent), uncached.ask(sent)
        assert alone.cached_tokens == 0
        assert got.cached_tokens == got.restored_tokens == expected
        assert said == meant
    for one in (asking, uncached):
        one.instance.until_idle()
        one.instance.close()
