"""Decode steps that are recorded once and replayed against the same steps computed one by one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from alipes.instance.contract import InstanceSettings, ModelSettings, Pool, Sampling, Targets
from alipes.instance.engine.native.engine import NativeEngine
from alipes.instance.engine.native.graphs import CapturedGraphs, Graphs, capture_sizes
from alipes.instance.engine.native.staging import Switching
from alipes.instance.engine.protocol import Draw, Recurrence, Row
from alipes.instance.memory.parking import NoParking
from alipes.kernels.portable import silu_mul
from alipes.kernels.table import PORTABLE, Kernels

from .tape import TapeCapture

NAMES = ("qwen3", "qwen3-moe", "deepseek-v3", "qwen3-next")
ROWS, BLOCK, BLOCKS, SLOTS = 6, 16, 30, 12
GREEDY = Sampling(temperature=0)
CPU = torch.device("cpu")
Tensor = torch.Tensor


def gathered(
    x: Tensor, weights: Tensor, chosen: Tensor, gate_up: Tensor, down: Tensor, workspace: Any
) -> Tensor:
    """Experts whose matrices are copied for every row: nothing depends on which they are."""
    inner = silu_mul(torch.einsum("nd,nkid->nki", x, gate_up[chosen].float()))
    out = torch.einsum("nki,nkdi->nkd", inner, down[chosen].float())
    return (out * weights.unsqueeze(2)).sum(1)


COLUMN = replace(PORTABLE, experts=gathered)


def captured(kernels: Kernels = COLUMN) -> tuple[CapturedGraphs, TapeCapture]:
    capture = TapeCapture()
    return CapturedGraphs(capture_sizes(ROWS), CPU, kernels, capture, NoParking()), capture


def engine_with(folders: dict[str, Path], graphs: Graphs | None = None) -> NativeEngine:
    models = tuple(ModelSettings(n, str(folders[n]), "float32") for n in NAMES)
    return NativeEngine(
        InstanceSettings(
            name="graphs",
            pool=Pool.COLD,
            models=models,
            targets=Targets(),
            endpoint="",
            device_bytes=36 << 20,
            host_bytes=1 << 20,
            block_tokens=BLOCK,
            prefill_chunk=64,
            max_running=ROWS,
        ),
        Switching.H2D,
        graphs=graphs,
    )


@pytest.fixture(scope="module")
def engines(tiny_folders: dict[str, Path]) -> Iterator[tuple[NativeEngine, NativeEngine]]:
    graphs, _ = captured()
    pair = engine_with(tiny_folders), engine_with(tiny_folders, graphs)
    for engine in pair:
        # What their first steps left differs.
        engine._arena.memory.data.zero_()
    yield pair
    for engine in pair:
        engine.close()


@st.composite
def steps(draw: st.DrawFn) -> tuple[str, list[Row], bool]:
    """A model, rows that decode (in few steps, one row of more), and whether the step counts. What
    earlier steps left in blocks and slots, of whichever model, is what these read."""
    name = draw(st.sampled_from(NAMES))
    blocks, slots = draw(st.permutations(range(BLOCKS))), draw(st.permutations(range(SLOTS)))
    rows = []
    for at in range(draw(st.integers(1, ROWS))):
        own = blocks[5 * at : 5 * at + 5]
        count = 1 + (at == 0 and draw(st.integers(0, 9)) == 0)
        start = draw(st.integers(1, 5 * BLOCK - count))
        tokens = draw(st.lists(st.integers(0, 1999), min_size=count, max_size=count))
        keep = slots[2 * at + 1] if draw(st.integers(0, 3)) == 0 else None
        load = draw(st.integers(0, SLOTS - 1))
        given = Recurrence(load, slots[2 * at], keep, count if keep is not None else 0)
        history = np.zeros(start + count, dtype=np.int32)
        rows.append(
            Row(
                bytes([at]),
                np.array(tokens, dtype=np.int32),
                start,
                own,
                Draw(GREEDY, history, 1),
                given if name == "qwen3-next" else None,
            )
        )
    return name, rows, draw(st.integers(0, 4)) > 0


def after(engine: NativeEngine, step: tuple[str, list[Row], bool]) -> tuple[Tensor, Tensor]:
    """Logits, and all that the device then holds of the calls."""
    name, rows, counts = step
    assert engine.activate(name).addresses_kept
    done, logits = engine.compute(rows)
    logits = logits.clone()
    if counts:
        with torch.inference_mode():
            done.commit()
    plan = engine._models[name].plan
    return logits, engine._arena.kv(plan).view(torch.float32)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(steps(), min_size=1, max_size=4))
def test_replayed_steps_are_those_computed_one_by_one(
    engines: tuple[NativeEngine, NativeEngine], steps: list[tuple[str, list[Row], bool]]
) -> None:
    for step in steps:
        want, got = (after(engine, step) for engine in engines)
        for one, other in zip(got, want, strict=True):
            torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)
