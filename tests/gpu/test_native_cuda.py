"""The native engine on a CUDA device says what it says on the CPU, in float32."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from alipes.instance.contract import InstanceSettings, ModelSettings, Pool, Sampling, Targets
from alipes.instance.engine.native.engine import NativeEngine
from alipes.instance.engine.protocol import BlockCopy, CopyEnd, Draw, EngineError, Row

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
NAMES = ("llama", "qwen3", "qwen3-moe", "deepseek-v2", "deepseek-v3")
TICKETS = itertools.count(1)


def engine_on(device: str, folders: dict[str, Path]) -> NativeEngine:
    return NativeEngine(
        InstanceSettings(
            name=device,
            pool=Pool.COLD,
            models=tuple(ModelSettings(n, str(folders[n]), "float32") for n in NAMES),
            targets=Targets(),
            endpoint="",
            device=device,
            device_bytes=256 << 20,
        )
    )


@pytest.fixture(scope="module")
def engines(tiny_folders: dict[str, Path]) -> Iterator[tuple[NativeEngine, NativeEngine]]:
    pair = engine_on("cpu", tiny_folders), engine_on("cuda", tiny_folders)
    yield pair
    for engine in pair:
        engine.close()


def copies(engine: NativeEngine, name: str, blocks: range) -> list[BlockCopy]:
    """Each block with slabs of its own, some of them neighbours."""
    report = next(report for report in engine.reports if report.name == name)
    parts = report.block_bytes // engine.host.slab_bytes
    first = (3 * engine.host.count // 4) // parts
    return [
        BlockCopy(block, tuple(range(place * parts, (place + 1) * parts)))
        for block, place in zip(
            blocks, [7, 6, 2, 3, 4, 0, 5, 1, *range(first, first + 4)], strict=True
        )
    ]


def copy_out(engine: NativeEngine, moved: list[BlockCopy]) -> None:
    """The step that runs meanwhile writes blocks that no copy reads."""
    ticket = next(TICKETS)
    engine.copy_out(ticket, moved)
    with pytest.raises(EngineError, match="drain them"):
        engine.activate(engine.reports[0].name)
    tokens = np.arange(100, dtype=np.int32)
    engine.step([Row(b"meanwhile", tokens, 0, range(40, 42), None)])
    assert [*engine.copied(), *engine.drain()] == [CopyEnd(ticket)]


def greedy(engine: NativeEngine, name: str, other: str) -> list[int]:
    """Twenty tokens after 700 in chunks; in the middle, another model takes the device and the
    call's KV goes to the host and comes back elsewhere, while a step runs."""
    engine.activate(name)
    ids = np.random.default_rng(4).integers(100, 40_000, 700).astype(np.int32)
    blocks, sampling, done = range(1, 13), Sampling(temperature=0), 0
    while len(ids) < 720:
        end = min(done + 256, len(ids))
        draw = Draw(sampling, ids, 700) if end == len(ids) else None
        drawn = engine.step([Row(b"call", ids[done:end], done, blocks, draw)])
        done = end
        if draw is not None:
            ids = np.append(ids, np.int32(drawn[0].token))
        if len(ids) == 710:
            copy_out(engine, copies(engine, name, blocks))
            engine.activate(other)
            engine.step([Row(b"other", ids[:100], 0, range(2), None)])
            assert engine.activate(name).addresses_kept
            blocks = range(20, 32)
            engine.copy_in(copies(engine, name, blocks))
    return ids[700:].tolist()


@pytest.mark.parametrize("name", NAMES)
def test_greedy_is_the_cpus(engines: tuple[NativeEngine, NativeEngine], name: str) -> None:
    other = NAMES[NAMES.index(name) - 1]
    on_cpu, on_cuda = (greedy(engine, name, other) for engine in engines)
    assert on_cuda == on_cpu
