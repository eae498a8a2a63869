"""Decode steps as recorded graphs against the same steps computed operation by operation, over
switches among three models: for ``gpu_check.py``."""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
import torch
from common import Claim, at_least

from alipes.instance.contract import InstanceSettings, ModelSettings, Pool, Sampling, Targets
from alipes.instance.engine.native.engine import NativeEngine
from alipes.instance.engine.native.graphs import Graphs, NoGraphs, graphs_for
from alipes.instance.engine.protocol import Draw, Recurrence, Row

MODELS: Final = ("qwen3-moe", "deepseek-v3", "qwen3-next")
"""One of each kind of state, experts among them."""
ROWS: Final = 8
CLOSE: Final = 1e-3
"""Logits in float32, whose largest are about ten, whichever way attention is split."""
Cells = dict[str, Any]


def graph_steps(
    device: str, folders: dict[str, Path], switches: int, steps: int
) -> tuple[list[Cells], list[Claim]]:
    """``switches`` in all, a decode step of one to ``ROWS`` rows after each, then ``steps`` timed
    ones of each model; ``folders`` has a checkpoint for every name."""
    recorder = graphs_for(torch.device(device), ROWS)
    plain, graphs = _engine(device, folders, NoGraphs()), _engine(device, folders, recorder)
    kept, worst, before = True, 0.0, recorder.recorded
    for turn in range(switches):
        name = MODELS[turn % len(MODELS)]
        rows = _rows(name, 1 + turn % ROWS, 100 + turn % 20)
        kept = graphs.activate(name).addresses_kept and kept
        plain.activate(name)
        for engine in (graphs, plain):
            engine.step(_prompts(name))
        want, got = (_computed(engine, rows) for engine in (plain, graphs))
        worst = max(worst, float((got - want).abs().max()))
    anew = recorder.recorded - before
    cells = [
        _speed(device, graphs, plain, name, count, steps) for name in MODELS for count in (1, ROWS)
    ]
    for engine in (plain, graphs):
        engine.close()
    over = f"over {switches} switches among three models"
    return cells, [
        Claim(f"addresses under graphs stay {over}", float(kept), "", "= 1", kept),
        Claim(f"replayed logits {over}, off by", worst, "", f"<= {CLOSE:g}", worst <= CLOSE),
        Claim(f"graphs recorded anew {over}", anew, f"of {before}", "= 0", before > 0 == anew),
        at_least("decode with graphs", min(row["x"] for row in cells), "x without", 1.0),
    ]


def _engine(device: str, folders: dict[str, Path], graphs: Graphs) -> NativeEngine:
    models = tuple(ModelSettings(name, str(folders[name]), "float32") for name in MODELS)
    settings = InstanceSettings(
        name="graphs",
        pool=Pool.COLD,
        models=models,
        targets=Targets(),
        endpoint="",
        device=device,
        device_bytes=1 << 30,
        host_bytes=64 << 20,
        max_running=ROWS,
    )
    return NativeEngine(settings, graphs=graphs)


def _rows(name: str, count: int, start: int) -> list[Row]:
    """``count`` calls that decode, each a position behind the one before it."""
    return [
        Row(
            bytes([at]),
            np.array([17 * at + start], dtype=np.int32),
            start - at,
            range(8 * at, 8 * at + 8),
            Draw(Sampling(temperature=0), np.zeros(start - at + 1, dtype=np.int32), 1),
            Recurrence(at, at) if name == "qwen3-next" else None,
        )
        for at in range(count)
    ]


def _prompts(name: str) -> list[Row]:
    """Something to see for each of the calls that are to decode."""
    ids = np.random.default_rng(6).integers(100, 2000, 128).astype(np.int32)
    recurrent = name == "qwen3-next"
    return [
        Row(
            bytes([at]),
            ids,
            0,
            range(8 * at, 8 * at + 8),
            None,
            Recurrence(None, at) if recurrent else None,
        )
        for at in range(ROWS)
    ]


def _computed(engine: NativeEngine, rows: list[Row]) -> torch.Tensor:
    step, logits = engine.compute(rows)
    with torch.inference_mode():
        logits = logits.clone()
        step.commit()
    return logits


def _speed(
    device: str, graphs: NativeEngine, plain: NativeEngine, name: str, count: int, steps: int
) -> Cells:
    """The two take turns, so that both see the same weather."""
    rows = _rows(name, count, 120)
    seconds: dict[str, list[float]] = {"graphs": [], "plain": []}
    for engine in (graphs, plain):
        engine.activate(name)
        engine.step(_prompts(name))
    for _ in range(steps):
        for way, engine in (("graphs", graphs), ("plain", plain)):
            begin = time.perf_counter()
            engine.step(rows)
            if device != "cpu":
                torch.cuda.synchronize()
            seconds[way].append(time.perf_counter() - begin)
    with_graphs, without = median(seconds["graphs"]), median(seconds["plain"])
    return {
        "step": f"decode x{count} {name}",
        "tokens/s with graphs": count / with_graphs,
        "tokens/s without": count / without,
        "x": without / with_graphs,
    }
