"""Which steps are recorded, in what form, and whose memory that takes. That replayed steps are
right is in ``tests/property/instance/test_graphs.py``."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import torch

from alipes.instance.contract import InstanceSettings, ModelSettings, Pool, Sampling, Targets
from alipes.instance.engine.native import graphs
from alipes.instance.engine.native.batch import Bounds, decode_rows
from alipes.instance.engine.native.engine import NativeEngine
from alipes.instance.engine.native.graphs import (
    CapturedGraphs,
    CudaCapture,
    NoGraphs,
    _Inputs,
    graphs_for,
)
from alipes.instance.engine.native.graphs import capture_sizes as sizes_for
from alipes.instance.engine.protocol import Draw, EngineError, Recurrence, Row
from alipes.instance.memory.specs import slot_bytes
from alipes.kernels.table import PORTABLE, REFERENCE

T = TypeVar("T")
CPU = torch.device("cpu")
BOUNDS = Bounds(block_tokens=4, blocks=20, context=14, vocab=100)
DRAW = Draw(Sampling(temperature=0), np.zeros(1, dtype=np.int32), 1)


def row(start: int, blocks: list[int], given: Recurrence | None = None, **changes: Any) -> Row:
    fields = {"tokens": np.array([start + 50], dtype=np.int32), "draw": DRAW} | changes
    return Row(b"%d" % start, start=start, blocks=blocks, recurrence=given, **fields)


class Parked:
    """Notes what is asked of it."""

    kind = "noted"

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    def region(self, tag: str, backup: bool = False) -> AbstractContextManager[None]:
        return nullcontext()

    def capture(
        self, graph: Any, tag: str, pool: Any = None, stream: Any = None
    ) -> AbstractContextManager[None]:
        self.asked.append((f"capture in pool {pool}", tag))
        return nullcontext()

    def pause(self, tag: str) -> None:
        self.asked.append(("pause", tag))

    def resume(self, tag: str) -> None:
        self.asked.append(("resume", tag))


def again(tag: str, work: Callable[[], T]) -> tuple[T, Callable[[], None]]:
    """Cannot replay: for what is recorded and run once."""
    return work(), lambda: pytest.fail("replayed")


def test_sizes_double_and_then_rise_by_sixteen() -> None:
    assert sizes_for(1) == (1,)
    assert sizes_for(6) == (1, 2, 4, 6)
    assert sizes_for(16) == (1, 2, 4, 8, 16)
    assert sizes_for(50) == (1, 2, 4, 8, 16, 32, 48, 50)


def test_rows_that_decode_become_arrays() -> None:
    rows = [row(5, [7, 3], Recurrence(2, 4)), row(4, [0, 9], Recurrence(4, 5, 1, 1))]
    decode = decode_rows(rows, Bounds(4, 20, 14, 100, slots=6))
    assert decode is not None
    assert decode.values.tolist() == [[55, 54], [5, 4], [13, 36], [2, 4], [4, 5]]
    assert decode.keep == ((1, 1),)
    without = decode_rows([row(5, [7, 3])], BOUNDS)
    assert without is not None
    assert without.values[3:].tolist() == [[0], [0]]


@pytest.mark.parametrize(
    "other",
    [
        row(0, [1]),
        row(5, [1, 2], draw=None),
        row(5, [1, 2], tokens=np.array([1, 2], dtype=np.int32)),
    ],
    ids=["begins", "draws nothing", "two tokens"],
)
def test_other_rows_do_not_decode(other: Row) -> None:
    assert decode_rows([row(5, [7, 3]), other], BOUNDS) is None


def test_rows_out_of_bounds_are_refused() -> None:
    with pytest.raises(EngineError, match="block id is outside"):
        decode_rows([row(5, [7, 20])], BOUNDS)
    slots = Bounds(4, 20, 14, 100, slots=6)
    with pytest.raises(EngineError, match="slot 4 gets another row's state"):
        decode_rows([row(5, [7, 3], Recurrence(0, 4)), row(6, [1, 2], Recurrence(0, 4))], slots)


def test_missing_rows_repeat_the_one_with_the_least_to_read() -> None:
    inputs = _Inputs(4, BOUNDS, CPU)
    for rows in ([row(13, [1, 2, 3, 4, 5])], [row(9, [7, 3, 5]), row(2, [6])]):
        decode = decode_rows(rows, BOUNDS)
        assert decode is not None
        inputs.fill(decode)
    batch = inputs.batch
    assert batch.pages is not None
    assert batch.tokens.tolist() == [59, 52, 52, 52]
    assert batch.positions.tolist() == batch.pages.positions.tolist() == [9, 2, 2, 2]
    assert batch.slots.tolist() == [21, 26, 26, 26]
    assert batch.pages.blocks.tolist() == [[7, 3, 5, 4], *[[6, 2, 3, 4]] * 3]


def test_what_a_graph_takes_is_parked_while_another_model_is_active() -> None:
    parking = Parked()
    captured = CapturedGraphs((1,), CPU, PORTABLE, again, parking)
    for model in ("a", "a", "b"):
        captured.enter(model)
    assert parking.asked[-2:] == [("pause", "graphs of a"), ("resume", "graphs of b")]
    assert len(parking.asked) == 4


def engine_with(folder: Path, captured: CapturedGraphs) -> NativeEngine:
    engine = NativeEngine(
        InstanceSettings(
            name="graphs",
            pool=Pool.COLD,
            models=(ModelSettings("m", str(folder), "float32"),),
            targets=Targets(),
            endpoint="",
            device_bytes=48 << 20,
            host_bytes=1 << 20,
            max_running=4,
        ),
        graphs=captured,
    )
    engine.activate("m")
    return engine


def test_steps_of_other_kinds_and_of_too_many_rows_are_not_recorded(
    tiny_folders: dict[str, Path],
) -> None:
    captured = CapturedGraphs((1,), CPU, PORTABLE, again, Parked())
    engine = engine_with(tiny_folders["qwen3"], captured)  # Its only size ran once.
    token, one = np.array([3], dtype=np.int32), Draw(DRAW.sampling, np.zeros(6, np.int32), 1)
    rows = [Row(bytes([at]), token, 5, [at], one) for at in range(2)]
    assert len(engine.step(rows)) == 2
    assert len(engine.step([Row(b"b", token, 0, [2], one), *rows])) == 3
    with pytest.raises(pytest.fail.Exception, match="replayed"):
        engine.step(rows[:1])
    engine.close()


def test_state_of_a_step_that_is_not_committed_stays(tiny_folders: dict[str, Path]) -> None:
    def anew(tag: str, work: Callable[[], T]) -> tuple[T, Callable[[], None]]:
        return work(), lambda: None

    captured = CapturedGraphs((1,), CPU, PORTABLE, anew, Parked())
    engine = engine_with(tiny_folders["qwen3.5"], captured)
    plan = engine._models["m"].plan
    slots = engine._arena.kv(plan)[plan.kv_blocks * plan.block_bytes :]
    slots.view(torch.float32).normal_(std=0.1)
    before = slots.clone()
    token = Row(b"a", np.array([3], dtype=np.int32), 5, [1], DRAW, Recurrence(2, 3, 4, 1))
    captured._captured.clear()
    captured._shells.clear()
    step, _ = engine.compute([token])
    assert torch.equal(slots, before)
    with torch.inference_mode():
        step.commit()
    changed = (slots != before).view(plan.slots, -1).any(1)
    assert changed.nonzero().flatten().tolist() == [3, 4]
    used = slots.view(plan.slots, -1)[:, : slot_bytes(engine._models["m"].shape.states)]
    assert torch.equal(used[3], used[4])
    engine.close()


def test_there_are_none_on_the_cpu_nor_without_fitting_kernels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert isinstance(graphs_for(CPU, 8), NoGraphs)
    monkeypatch.setattr(graphs, "kernels_for", lambda device, rows: REFERENCE)
    assert isinstance(graphs_for(torch.device("cuda"), 8), NoGraphs)


class FakeCuda:
    """Of ``torch.cuda``, what recording needs; notes the order."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.pools = 0

    def Stream(self, device: torch.device) -> FakeStream:
        return FakeStream("side", self.events)

    def current_stream(self, device: torch.device) -> FakeStream:
        return FakeStream("main", self.events)

    def stream(self, stream: FakeStream) -> AbstractContextManager[None]:
        self.events.append(f"on {stream.name}")
        return nullcontext()

    def graph_pool_handle(self) -> int:
        self.pools += 1
        return self.pools

    def CUDAGraph(self) -> FakeCuda:
        return self

    def replay(self) -> None:
        self.events.append("replay")


class FakeStream:
    def __init__(self, name: str, events: list[str]) -> None:
        self.name = name
        self._events = events

    def wait_stream(self, other: FakeStream) -> None:
        self._events.append(f"{self.name} waits for {other.name}")


def test_cuda_records_behind_a_first_run_on_the_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what is returned is valid at once: recording computes nothing."""
    cuda, parking = FakeCuda(), Parked()
    monkeypatch.setattr(graphs, "_CUDA", cuda)
    capture = CudaCapture(torch.device("cuda"), parking)

    def work() -> int:
        cuda.events.append("work")
        return len(cuda.events)

    done, replay = capture("a", work)
    assert cuda.events == [
        *("side waits for main", "on side", "work", "main waits for side"),
        *("work", "replay"),
    ]
    assert done == 5
    replay()
    assert cuda.events[-2:] == ["replay", "replay"]
    for tag in "ab":
        capture(tag, work)
    assert parking.asked == [
        (f"capture in pool {n}", tag) for n, tag in ((1, "a"), (1, "a"), (2, "b"))
    ]
