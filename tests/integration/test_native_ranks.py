"""Models divided among two processes: the tokens are those of one, whatever goes wrong between
them, or there are none."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from alipes.instance.contract import (
    Finished,
    InstanceSettings,
    ModelSettings,
    Pool,
    Sampling,
    Targets,
    TokenIds,
)
from alipes.instance.engine.native.engine import NativeEngine
from alipes.instance.engine.native.parallel.engine import ParallelEngine, Patience
from alipes.instance.engine.native.parallel.links import RankLost
from alipes.instance.engine.protocol import (
    BlockCopy,
    CopyEnd,
    Draw,
    Engine,
    EngineError,
    Recurrence,
    Row,
)

from .native_instance import Instance, calls_of, served

FAMILIES = ("llama", "qwen3-moe", "deepseek-v3", "qwen3-next")
PROMPT = np.random.default_rng(0).integers(0, 2000, 150).astype(np.int32)
GREEDY = Sampling(temperature=0)


HALVED = ("llama", "deepseek-v3")
"""Families whose keys and values, or latents, are float16 here."""


def settings(folders: dict[str, Path], ranks: int) -> InstanceSettings:
    kv_dtypes = {name: "float16" if name in HALVED else "auto" for name in FAMILIES}
    return InstanceSettings(
        name="i0",
        pool=Pool.COLD,
        models=tuple(
            ModelSettings(name, str(folders[name]), "float32", kv_dtypes[name]) for name in FAMILIES
        ),
        targets=Targets(),
        endpoint="",
        device_bytes=96 << 20,
        host_bytes=ranks << 20,
        ranks=ranks,
    )


@pytest.fixture(scope="module")
def engines(tiny_folders: dict[str, Path]) -> Iterator[tuple[ParallelEngine, NativeEngine]]:
    both = ParallelEngine(settings(tiny_folders, 2)), NativeEngine(settings(tiny_folders, 1))
    yield both
    for engine in both:
        engine.close()


def generate(engine: Engine, model: int, count: int, done: int = 0) -> TokenIds:
    """``count`` tokens after ``PROMPT``, of which ``done`` are computed already."""
    recurrent = engine.reports[model].slots > 0
    ids = PROMPT
    while len(ids) < len(PROMPT) + count:
        state = Recurrence(0 if done else None, 0) if recurrent else None
        row = Row(b"a", ids[done:], done, range(8), Draw(GREEDY, ids, len(ids)), state)
        done = len(ids)
        ids = np.append(ids, np.int32(engine.step([row])[0].token))
    return ids


@pytest.mark.parametrize("model", range(len(FAMILIES)), ids=FAMILIES)
def test_two_ranks_draw_what_one_does(
    engines: tuple[ParallelEngine, NativeEngine], model: int
) -> None:
    drawn = []
    for engine in engines:
        engine.activate(FAMILIES[model])
        drawn.append(generate(engine, model, 24).tolist())
    assert drawn[0] == drawn[1]


def test_each_rank_has_its_part(engines: tuple[ParallelEngine, NativeEngine]) -> None:
    divided, whole = (engine.reports for engine in engines)
    for part, all_ in zip(divided, whole, strict=True):
        assert part.weight_bytes < all_.weight_bytes
        assert part.kv_format != all_.kv_format
        # Latent state is not divided, but stored once on the host.
        shared = "latent" in all_.kv_format
        assert part.block_bytes == all_.block_bytes // (1 if shared else 2)
        assert part.host_block_bytes == all_.host_block_bytes // 2


def test_refused_rows_leave_the_ranks_together(
    engines: tuple[ParallelEngine, NativeEngine],
) -> None:
    engine, _ = engines
    engine.activate("llama")
    want = generate(engine, 0, 5).tolist()
    with pytest.raises(EngineError, match="outside the pool"):
        engine.step([Row(b"a", PROMPT, 0, [10**6] * 8, None)])
    with pytest.raises(EngineError, match="model x is not one of"):
        engine.activate("x")
    assert generate(engine, 0, 5).tolist() == want


@pytest.mark.parametrize("model", [0, 2], ids=["a part in each", "stored once"])
def test_state_comes_back_from_the_hosts_of_both(
    engines: tuple[ParallelEngine, NativeEngine], model: int
) -> None:
    engine, _ = engines
    engine.activate(FAMILIES[model])
    want = generate(engine, model, 8).tolist()
    each = engine.reports[model].block_slabs(engine.host.slab_bytes)
    copies = [BlockCopy(i, tuple(range(i * each, (i + 1) * each))) for i in range(2)]
    engine.copy_out(model + 1, copies)
    with pytest.raises(EngineError, match="drain them before qwen3-moe becomes active"):
        engine.activate("qwen3-moe")
    assert engine.drain() == (CopyEnd(model + 1, 2),)
    engine.activate("qwen3-moe")
    generate(engine, 1, 3)
    engine.activate(FAMILIES[model])
    engine.copy_in(copies)
    assert generate(engine, model, 8, done=128).tolist() == want


def test_a_block_that_is_not_full_is_the_same_in_both(
    engines: tuple[ParallelEngine, NativeEngine],
) -> None:
    """Whatever was on the device before, of which each rank had its own."""
    engine, _ = engines
    engine.activate("qwen3-moe")
    for first in range(0, engine.reports[1].kv_blocks - 8, 8):
        engine.step([Row(b"a", PROMPT, 0, range(first, first + 8), None)])
    engine.activate("deepseek-v3")
    each = engine.reports[2].block_slabs(engine.host.slab_bytes)
    # A block that is begun by a prompt, and one by a token drawn after it.
    for first, prompt in ((60, PROMPT), (70, PROMPT[:128])):
        blocks = range(first, first + 3)
        draw = Draw(GREEDY, prompt, len(prompt))
        (drawn,) = engine.step([Row(b"a", prompt, 0, blocks, draw)])
        token = np.array([drawn.token], dtype=np.int32)
        engine.step([Row(b"a", token, len(prompt), blocks, None)])
        copies = [
            BlockCopy(block, tuple(range(i * each, (i + 1) * each)))
            for i, block in enumerate(blocks)
        ]
        engine.copy_out(first, copies)
        assert engine.drain() == (CopyEnd(first, 3),)


def test_a_rank_that_dies_ends_the_engine(engines: tuple[ParallelEngine, NativeEngine]) -> None:
    """The last test of this engine."""
    engine, _ = engines
    engine.activate("llama")
    engine._links[0]._process.kill()
    with pytest.raises(RankLost, match=r"rank 1 is lost .*exit code -9.* start the instance again"):
        generate(engine, 0, 3)
    with pytest.raises(RankLost, match="rank 1 is lost"):
        engine.copied()


def test_faults_of_a_rank_cost_reuse_and_nothing_else(tiny_folders: dict[str, Path]) -> None:
    rng = random.Random(5)
    families = ["llama", "deepseek-v3"]
    folders = {name: tiny_folders[name] for name in families}
    calls = calls_of(rng, families, 14)
    command = [sys.executable, "-P", str(Path(__file__).with_name("faulty_rank.py"))]

    def faulty(settings: InstanceSettings) -> Engine:
        return ParallelEngine(settings, command, Patience(copy=0.1))

    busy = Instance(folders, blocks=12, build=faulty, ranks=2)
    counters = served(busy, rng, calls)
    busy.close()
    assert counters.torn_blocks > 0
    assert counters.resumed > 0
    assert counters.switches > 2
    alone = Instance(folders, blocks=200)
    ended = [call for call in calls if call.call_id in busy.last]
    assert len(ended) > len(calls) // 2
    for call in ended:
        alone.post(call)
        alone.until_ended(call.call_id)
        assert isinstance(busy.last[call.call_id], Finished)
        assert busy.drawn.get(call.call_id) == alone.drawn.get(call.call_id)
    alone.close()
