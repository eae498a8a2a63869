"""Decode steps recorded on a CUDA device against the same steps computed operation by operation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from alipes.instance.contract import InstanceSettings, ModelSettings, Pool, Sampling, Targets
from alipes.instance.engine.native.engine import NativeEngine
from alipes.instance.engine.native.graphs import CapturedGraphs, Graphs, NoGraphs, graphs_for
from alipes.instance.engine.protocol import Draw, Recurrence, Row

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
NAMES = ("qwen3-moe", "deepseek-v3", "qwen3-next")
ROWS = 6


def engine_with(folders: dict[str, Path], graphs: Graphs) -> NativeEngine:
    settings = InstanceSettings(
        name="graphs",
        pool=Pool.COLD,
        models=tuple(ModelSettings(name, str(folders[name]), "float32") for name in NAMES),
        targets=Targets(),
        endpoint="",
        device="cuda",
        device_bytes=128 << 20,
        max_running=ROWS,
    )
    return NativeEngine(settings, graphs=graphs)


def prompts(name: str) -> list[Row]:
    """As many calls as may decode, with as many positions as they may see."""
    ids = np.random.default_rng(8).integers(100, 2000, 90).astype(np.int32)
    return [
        Row(
            bytes([at]),
            ids,
            0,
            range(4 * at, 4 * at + 4),
            None,
            Recurrence(None, at) if name == "qwen3-next" else None,
        )
        for at in range(ROWS)
    ]


def rows_of(name: str, turn: int) -> list[Row]:
    """One to ``ROWS`` calls; now and then the state of one is left in another slot too."""
    rows = []
    for at in range(1 + turn % ROWS):
        start = 30 + 7 * at + turn % 25
        keep = ROWS + at if (turn + at) % 3 == 0 else None
        given = Recurrence(at, at, keep, 0 if keep is None else 1)
        draw = Draw(Sampling(temperature=0), np.zeros(start + 1, dtype=np.int32), 1)
        token = np.array([100 + turn + at], dtype=np.int32)
        blocks, recurrence = range(4 * at, 4 * at + 4), given if name == "qwen3-next" else None
        rows.append(Row(bytes([at]), token, start, blocks, draw, recurrence))
    return rows


def test_a_hundred_switches_among_three_models(tiny_folders: dict[str, Path]) -> None:
    recorder = graphs_for(torch.device("cuda"), ROWS)
    assert isinstance(recorder, CapturedGraphs)
    engines = engine_with(tiny_folders, NoGraphs()), engine_with(tiny_folders, recorder)
    recorded = recorder.recorded
    assert recorded == len(recorder.sizes) * (len(NAMES) + 1)  # A hybrid's commits as well.
    for turn in range(100):
        name = NAMES[turn % len(NAMES)]
        found = []
        for engine in engines:
            assert engine.activate(name).addresses_kept
            engine.step(prompts(name))
            step, logits = engine.compute(rows_of(name, turn))
            with torch.inference_mode():
                found.append(logits.clone())
                step.commit()
        torch.testing.assert_close(found[1], found[0], atol=1e-3, rtol=1e-3)
    assert recorder.recorded == recorded
    for engine in engines:
        engine.close()
