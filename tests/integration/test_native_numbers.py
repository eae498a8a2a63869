"""The native engine in float32 against transformers in float32 on the same weights.

Greedy tokens must be equal up to a first difference where the reference's two best logits are
less than 1e-3 apart.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from alipes.instance.contract import (
    InstanceSettings,
    ModelSettings,
    Pool,
    Sampling,
    Targets,
    TokenIds,
)
from alipes.instance.engine.native.engine import NativeEngine
from alipes.instance.engine.protocol import BlockCopy, CopyEnd, Draw, Row
from alipes.instance.memory.registry import HostRegistry
from alipes.instance.memory.rows import HostBlock

GREEDY = Sampling(temperature=0)
BLOCK = 64
NAMES = ("llama", "qwen3", "qwen3-moe", "deepseek-v2", "deepseek-v3")
LONG = [*((name, 2048) for name in NAMES), pytest.param("llama", 4096, marks=pytest.mark.slow)]
"""Tokens of the longest prompt of each."""


class Call:
    """One call driven by hand: its ids, its blocks and how far the engine has computed it."""

    def __init__(self, name: str, prompt: TokenIds, blocks: list[int], done: int = 0) -> None:
        self.call_id = name.encode()
        self.ids, self.prompt, self.blocks, self.done = prompt, len(prompt), blocks, done

    def row(self, limit: int) -> Row:
        end = min(self.done + limit, len(self.ids))
        draw = Draw(GREEDY, self.ids, self.prompt) if end == len(self.ids) else None
        row = Row(self.call_id, self.ids[self.done : end], self.done, self.blocks, draw)
        self.done = end
        return row

    @property
    def held(self) -> list[int]:
        """Blocks that hold state."""
        return self.blocks[: -(-self.done // BLOCK)]

    @property
    def generated(self) -> list[int]:
        return self.ids[self.prompt :].tolist()


class Desk:
    """Steps calls of one engine together and hands them what they drew."""

    def __init__(self, engine: NativeEngine) -> None:
        self.engine = engine
        self.registry = HostRegistry(engine.host.count)
        self._ticket = 0

    def step(self, *calls: Call, limit: int = 512) -> None:
        drawn = {s.call_id: s.token for s in self.engine.step([c.row(limit) for c in calls])}
        for call in calls:
            if call.call_id in drawn:
                call.ids = np.append(call.ids, np.int32(drawn[call.call_id]))

    def generate(self, call: Call, count: int, limit: int = 512) -> Call:
        while len(call.generated) < count:
            self.step(call, limit=limit)
        return call

    def save(self, name: str, blocks: list[int], keys: list[bytes | None]) -> list[HostBlock]:
        """Begin to copy these blocks to the host; a block without a key is referred to."""
        report = next(report for report in self.engine.reports if report.name == name)
        slabs = report.block_bytes // self.engine.host.slab_bytes
        held = []
        for key in keys:
            block = self.registry.reserve(report.kv_format, key, slabs)
            assert block is not None
            held.append(block)
        self.registry.hold([block for block in held if block.key is None])
        self._ticket += 1
        copies = [BlockCopy(b, h.slabs) for b, h in zip(blocks, held, strict=True)]
        self.engine.copy_out(self._ticket, copies)
        return held

    def settle(self, held: list[HostBlock]) -> None:
        assert self.engine.drain() == (CopyEnd(self._ticket),)
        self.registry.commit(held)

    def restore(self, held: list[HostBlock], blocks: list[int]) -> None:
        self.engine.copy_in([BlockCopy(b, h.slabs) for b, h in zip(blocks, held, strict=True)])


class Oracle:
    def __init__(self, folder: Path) -> None:
        self.model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def check(self, call: Call) -> None:
        count = len(call.generated)
        assert count > 0
        with torch.inference_mode():
            ids = torch.from_numpy(call.ids[:-1].astype(np.int64))[None]
            logits = self.model(ids, logits_to_keep=count, use_cache=False).logits[0]
        for at, (row, token) in enumerate(zip(logits, call.generated, strict=True)):
            best = row.topk(2)
            if int(best.indices[0]) != token:
                gap = float(best.values[0] - best.values[1])
                assert gap < 1e-3, f"token {at} is {token}, not {int(best.indices[0])} by {gap}"
                return


@pytest.fixture(scope="module")
def folders(smollm2_folder: Path, small_folders: dict[str, Path]) -> dict[str, Path]:
    return small_folders | {"llama": smollm2_folder}


@pytest.fixture(scope="module")
def desk(folders: dict[str, Path]) -> Iterator[Desk]:
    models = tuple(ModelSettings(n, str(folders[n]), "float32") for n in NAMES)
    engine = NativeEngine(
        InstanceSettings(
            name="numbers",
            pool=Pool.COLD,
            models=models,
            targets=Targets(),
            endpoint="",
            device_bytes=1200 << 20,
            host_bytes=200 << 20,
            threads=2,
        )
    )
    yield Desk(engine)
    engine.close()


@pytest.fixture(scope="module")
def oracles(folders: dict[str, Path]) -> Callable[[str], Oracle]:
    return cache(lambda name: Oracle(folders[name]))


@pytest.fixture(scope="module")
def text(smollm2_folder: Path) -> TokenIds:
    """Some ten thousand ids of real code and prose, in the vocabulary all models share."""
    tokenizer = Tokenizer.from_file(str(smollm2_folder / "tokenizer.json"))
    source = inspect.getsource(textwrap) + inspect.getsource(inspect)
    return np.array(tokenizer.encode(source).ids, dtype=np.int32)


def scattered(first: int, tokens: int) -> list[int]:
    """A block table without two neighbours in order."""
    count = -(-tokens // BLOCK)
    return list(range(first, first + 2 * count, 2))[::-1]


@pytest.mark.parametrize(("name", "long"), LONG)
def test_long_prompt_and_cached_prefix(
    desk: Desk, oracles: Callable[[str], Oracle], text: TokenIds, name: str, long: int
) -> None:
    desk.engine.activate(name)
    first = desk.generate(Call("first", text[:long], list(range(66))), 12)
    oracles(name).check(first)
    # Another call over the first half of them starts behind it, on the first one's blocks.
    shared = long // 2
    prompt = np.concatenate([text[:shared], text[5000:5300]])
    blocks = list(range(shared // BLOCK)) + list(range(80, 86))
    cached = desk.generate(Call("cached", prompt, blocks, done=shared), 12)
    oracles(name).check(cached)


@pytest.mark.parametrize("name", NAMES)
def test_odd_chunks_over_scattered_blocks(
    desk: Desk, oracles: Callable[[str], Oracle], text: TokenIds, name: str
) -> None:
    desk.engine.activate(name)
    call = Call("odd", text[6000:6900], scattered(3, 960))
    for limit in (1, 2, 63, 64, 129, 300, 500):
        desk.step(call, limit=limit)
    assert len(call.generated) == 1
    oracles(name).check(desk.generate(call, 16))


OTHERS = [*zip(NAMES, NAMES[1:] + NAMES[:1], strict=True)]


@pytest.mark.parametrize(("name", "other"), OTHERS)
def test_interrupted_by_a_switch_while_decoding(
    desk: Desk, oracles: Callable[[str], Oracle], text: TokenIds, name: str, other: str
) -> None:
    """The last block is not full; the copies go on under a step of another call."""
    desk.engine.activate(name)
    call = desk.generate(Call("moved", text[100:300], [5, 2, 9, 4]), 7)
    saved = desk.save(name, call.held, [None] * 4)
    desk.generate(Call("busy", text[500:700], [10, 11, 12, 13]), 1)
    desk.settle(saved)
    desk.engine.activate(other)
    between = desk.generate(Call("between", text[300:800], list(range(9))), 5)
    assert desk.engine.activate(name).addresses_kept
    call.blocks = [0, 7, 1, 3]
    desk.restore(saved, call.held)
    desk.registry.drop(saved)
    assert desk.registry.held == 0
    oracles(name).check(desk.generate(call, 16))
    oracles(other).check(between)


@pytest.mark.parametrize(("name", "other"), OTHERS)
def test_a_prefix_restored_in_part_from_a_host_that_is_almost_full(
    desk: Desk, oracles: Callable[[str], Oracle], text: TokenIds, name: str, other: str
) -> None:
    """Of eight blocks that the host had, others have pushed out the last three."""
    registry, engine = desk.registry, desk.engine
    engine.activate(other)
    crowd = desk.generate(Call("crowd", text[2000:2640], list(range(11))), 1)
    full: list[bytes | None] = [b"crowd %d" % i for i in range(10)]
    desk.settle(desk.save(other, crowd.blocks[:10], full))

    engine.activate(name)
    prompt = text[3000:3600]
    first = desk.generate(Call("first", prompt, scattered(1, 640)), 4)
    keys: list[bytes | None] = [b"%s %d" % (name.encode(), i) for i in range(8)]
    path = desk.save(name, first.blocks[:8], keys)
    desk.settle(path)
    revision = path[0].revision
    registry.touch(registry.match(revision, [key for key in keys if key]))
    # All that is left goes to a block that stays, and then room is made for three more.
    rest = registry.free + registry.used - sum(len(block.slabs) for block in path)
    filler = registry.reserve("filler", None, rest)
    assert filler is not None
    three = registry.reserve("filler", None, 3 * len(path[0].slabs))
    assert three is not None
    known = registry.match(revision, [key for key in keys if key])
    assert known == path[:5]
    registry.pin(known)

    engine.activate(other)
    desk.generate(Call("over it", text[4000:4700], list(range(20))), 3)
    engine.activate(name)
    blocks = [8, 3, 17, 4, 12, 1, 0, 2, 5, 6, 7]
    desk.restore(known, blocks[:5])
    again = desk.generate(Call("again", prompt, blocks, done=5 * BLOCK), 12)
    oracles(name).check(again)
    oracles(name).check(first)
    registry.unpin(known)
    registry.abort([filler, three])
    assert registry.held == 0


@pytest.mark.parametrize("name", NAMES)
def test_batched_with_calls_of_every_length(
    desk: Desk, oracles: Callable[[str], Oracle], text: TokenIds, name: str
) -> None:
    desk.engine.activate(name)
    lengths = (1, 63, 64, 65, 200, 431)
    calls = [
        Call(f"call {n}", text[7000 + n : 7000 + 2 * n], scattered(20 * i + i % 2, n + 20))
        for i, n in enumerate(lengths)
    ]
    for call in calls:
        desk.step(call, *[c for c in calls if c.done and c is not call], limit=150)
    for _ in range(8):
        desk.step(*calls, limit=150)
    for call in calls:
        oracles(name).check(call)
