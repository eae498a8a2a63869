"""The native engine on a CUDA device says what it says on the CPU, in float32."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from alipes.instance.contract import InstanceSettings, ModelSettings, Pool, Sampling, Targets
from alipes.instance.engine.native.engine import NativeEngine
from alipes.instance.engine.protocol import Draw, Row

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
NAMES = ("llama", "qwen3", "qwen3-moe")


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


def greedy(engine: NativeEngine, name: str, other: str) -> list[int]:
    """Twenty tokens after 700 in chunks; in the middle, another model takes the device."""
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
            engine.save(b"call", blocks, done)
            engine.activate(other)
            engine.step([Row(b"other", ids[:100], 0, range(2), None)])
            assert engine.activate(name).addresses_kept
            blocks = range(20, 32)
            engine.load(b"call", blocks)
    return ids[700:].tolist()


@pytest.mark.parametrize("name", NAMES)
def test_greedy_is_the_cpus(engines: tuple[NativeEngine, NativeEngine], name: str) -> None:
    other = NAMES[NAMES.index(name) - 1]
    on_cpu, on_cuda = (greedy(engine, name, other) for engine in engines)
    assert on_cuda == on_cpu
