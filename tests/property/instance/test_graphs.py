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


def captured(
    kernels: Kernels = COLUMN, sizes: tuple[int, ...] = capture_sizes(ROWS)
) -> tuple[CapturedGraphs, TapeCapture]:
    capture = TapeCapture()
    return CapturedGraphs(sizes, CPU, kernels, capture, NoParking()), capture


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


def blank(engine: NativeEngine) -> NativeEngine:
    """Without what earlier steps left."""
    engine._arena.memory.data.zero_()
    engine._active = ""
    return engine


@pytest.fixture(scope="module")
def eager(tiny_folders: dict[str, Path]) -> Iterator[NativeEngine]:
    engine = blank(engine_with(tiny_folders))
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def recorded(tiny_folders: dict[str, Path]) -> Iterator[tuple[NativeEngine, TapeCapture]]:
    graphs, capture = captured()
    engine = blank(engine_with(tiny_folders, graphs))
    yield engine, capture
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


def check(engines: tuple[NativeEngine, NativeEngine], step: tuple[str, list[Row], bool]) -> None:
    want, got = (after(engine, step) for engine in engines)
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(steps(), min_size=1, max_size=4))
def test_replayed_steps_are_those_computed_one_by_one(
    eager: NativeEngine,
    recorded: tuple[NativeEngine, TapeCapture],
    steps: list[tuple[str, list[Row], bool]],
) -> None:
    for step in steps:
        check((eager, recorded[0]), step)


def decoding(engine: NativeEngine, name: str, count: int, start: int) -> list[Row]:
    """Rows at ``start``, ``start - 1`` and so on, the last at the end of a block that is kept."""
    given = [
        Recurrence(at, 2 * at, 2 * at + 1 if at == count - 1 else None, 1) for at in range(count)
    ]
    return [
        Row(
            bytes([at]),
            np.array([7 * start + at], dtype=np.int32),
            start - at,
            range(5 * at, 5 * at + 5),
            Draw(GREEDY, np.zeros(start - at + 1, dtype=np.int32), 1),
            given[at] if name == "qwen3-next" else None,
        )
        for at in range(count)
    ]


def test_a_hundred_switches_need_no_graph_anew(
    recorded: tuple[NativeEngine, TapeCapture],
) -> None:
    """What is first committed is recorded then: before that, nobody knows that it counts."""
    engine, capture = recorded
    for name in NAMES:
        for size in capture_sizes(ROWS):
            engine.activate(name)
            engine.step(decoding(engine, name, size, 40))
    before, replayed = capture.recorded.copy(), capture.replayed.total()
    for turn in range(100):
        name = NAMES[turn % len(NAMES)]
        assert engine.activate(name).addresses_kept
        engine.step(decoding(engine, name, 1 + turn % ROWS, 50 + turn % 20))
    assert capture.recorded == before
    assert capture.recorded["graphs of qwen3"] == len(capture_sizes(ROWS))
    assert capture.replayed.total() - replayed == 100 + 25  # A hybrid's steps are also committed.


def test_a_model_that_was_bound_elsewhere_gets_new_graphs(
    eager: NativeEngine, recorded: tuple[NativeEngine, TapeCapture]
) -> None:
    engine, capture = blank(recorded[0]), recorded[1]
    blank(eager)
    engine._models["qwen3"].base = (0, 0)
    before = capture.recorded.copy()
    assert not engine.activate("qwen3").addresses_kept
    check((eager, engine), ("qwen3", decoding(engine, "qwen3", 3, 60), True))
    assert capture.recorded - before == {"graphs of qwen3": 1}


def test_kernels_of_gpus_can_be_recorded(
    monkeypatch: pytest.MonkeyPatch, tiny_folders: dict[str, Path], eager: NativeEngine
) -> None:
    pytest.importorskip("triton")
    from alipes.kernels import triton_attention
    from alipes.kernels.triton_column import triton_column

    monkeypatch.setattr(triton_attention, "_SPLITS", 2)
    graphs, capture = captured(triton_column(), (2,))
    engine = blank(engine_with(tiny_folders, graphs))
    blank(eager)
    for name in NAMES:
        for count in (1, 2):
            check((eager, engine), (name, decoding(engine, name, count, 40), True))
    assert capture.recorded.total() == len(NAMES) + 1
    engine.close()
