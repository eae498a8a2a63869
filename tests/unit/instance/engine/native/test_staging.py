from __future__ import annotations

import random
import threading
import time

import pytest
import torch

from alipes.instance.engine.native import writer
from alipes.instance.engine.native.staging import (
    Moved,
    Stager,
    Switching,
    Weights,
    best_switching,
    chunk_bytes,
    device_memory,
)
from alipes.instance.memory.arena import Arena
from alipes.instance.memory.mapped import can_exchange
from alipes.instance.memory.plan import PAGE, MemoryPlan, ModelPlan
from alipes.instance.memory.staging import SwitchPath
from alipes.instance.memory.staging_plan import GRANULE, frame_bytes

CPU = torch.device("cpu")
BLOCK = 32 << 10
SIZES = {"a": 20 * GRANULE - 100, "b": 12 * GRANULE, "c": 25 * GRANULE - 7}
ARENA = 128 * GRANULE
# One model leaves others little room, and one has a single block: its last frame is not its own.
LARGE = {"a": 10 * GRANULE - 3, "b": 100 * GRANULE - 5, "c": 127 * GRANULE + 3 * PAGE}
WAYS = [
    pytest.param(
        way,
        marks=pytest.mark.skipif(
            way is Switching.REMAP and not can_exchange(), reason="pages cannot be moved here"
        ),
    )
    for way in Switching
]


class Bench:
    """A stager over an arena of 8 MiB, and all the KV of the active model."""

    def __init__(self, way: Switching, share: float = 1.0, sizes: dict[str, int] = SIZES) -> None:
        self.sizes = sizes
        plans = tuple(map(self.plan, sizes))
        whole = MemoryPlan(ARENA, 2 * PAGE, 0, BLOCK, plans)
        self.arena = Arena(whole, device_memory(ARENA, CPU, way))
        self.arena.runtime.fill_(7)
        self.models = {
            plan.name: Weights(plan, self.noise(seed, plan.weight_bytes), (BLOCK // 2, BLOCK // 2))
            for seed, plan in enumerate(plans)
        }
        self.stager = Stager(self.arena, self.models, CPU, way, share)
        self.way = way
        self.active = ""
        self.kv = torch.empty(0, dtype=torch.uint8)

    def plan(self, name: str) -> ModelPlan:
        blocks = (ARENA - 3 * PAGE - self.sizes[name]) // BLOCK
        return ModelPlan(name, self.sizes[name], BLOCK, blocks, blocks * 64)

    @staticmethod
    def noise(seed: int, nbytes: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.randint(1, 255, (nbytes,), dtype=torch.uint8, generator=generator)

    def switch(self, model: str) -> Moved:
        moved = self.stager.switch(model)
        weights = self.models[model]
        assert torch.equal(self.arena.weights(weights.plan), weights.host)
        assert bool((self.arena.runtime == 7).all())
        assert moved.h2d_bytes + moved.d2d_bytes + moved.mapped_bytes == self.sizes[model]
        self.active = model
        self.kv = self.arena.kv(weights.plan).view(2, weights.plan.kv_blocks, -1)
        return moved

    def write_kv(self, rows: int, value: int) -> None:
        """As a step does: say so, then write, and expect it to stay."""
        self.stager.use(rows)
        self.kv[:, :rows] = value

    def stage_all(self, following: str, rows: int = 0) -> None:
        self.stager.serving(following, rows)
        deadline = time.monotonic() + 10
        while self.stager.state.covered_bytes < SIZES[following]:
            assert time.monotonic() < deadline
            time.sleep(0.001)


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Switching:
    return Switching(request.param)


@pytest.fixture(params=WAYS[1:])
def staging(request: pytest.FixtureRequest) -> Switching:
    return Switching(request.param)


FULL = {Switching.GATHER: SwitchPath.D2D, Switching.REMAP: SwitchPath.REMAP}


def test_staged_weights_come_from_the_device_alone(staging: Switching) -> None:
    bench = Bench(staging)
    assert bench.switch("a") == Moved(SwitchPath.H2D, SIZES["a"])
    for model in ("b", "c", "a", "c"):
        bench.stage_all(model)
        moved = bench.switch(model)
        assert (moved.path, moved.h2d_bytes) == (FULL[staging], 0)
    bench.stager.close()


def test_without_staging_all_comes_from_the_host() -> None:
    bench = Bench(Switching.H2D)
    bench.switch("a")
    bench.stager.serving("b", 0)
    assert bench.stager.state.target == ""
    assert bench.switch("b") == Moved(SwitchPath.H2D, SIZES["b"])
    bench.stager.close()


def test_rows_in_use_are_left_alone_and_what_they_take_comes_from_the_host(
    staging: Switching,
) -> None:
    bench = Bench(staging)
    bench.switch("a")
    bench.stage_all("b")
    rows = bench.models["a"].plan.kv_blocks - 8
    bench.write_kv(rows, 5)
    bench.stager.serving("b", rows)
    time.sleep(0.05)
    assert bool((bench.kv[:, :rows] == 5).all())
    assert 0 < bench.stager.state.covered_bytes < SIZES["b"]
    moved = bench.switch("b")
    assert moved.path is SwitchPath.PARTIAL
    assert 0 < moved.h2d_bytes < SIZES["b"]
    bench.stager.close()


@pytest.mark.skipif(not can_exchange(), reason="pages cannot be moved here")
def test_weights_that_leave_stay_until_their_bytes_are_needed() -> None:
    bench = Bench(Switching.REMAP)
    for model in ("a", "b", "c"):
        bench.switch(model)
    assert bench.stager.state.covered == {"a": SIZES["a"], "b": SIZES["b"]}
    for model in ("a", "b", "a", "c"):
        assert bench.switch(model) == Moved(SwitchPath.REMAP, mapped_bytes=SIZES[model])
    bench.write_kv(bench.models["c"].plan.kv_blocks, 5)
    assert "a" not in bench.stager.state.covered
    assert bench.switch("a") == Moved(SwitchPath.H2D, SIZES["a"])
    bench.stager.close()


@pytest.mark.parametrize("sizes", [SIZES, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("seed", range(2))
def test_whatever_happens_weights_and_kv_are_whole(
    way: Switching, seed: int, sizes: dict[str, int]
) -> None:
    """Random switches, growth and release of rows, while the writer works as fast as it can."""
    rng, bench = random.Random(seed), Bench(way, sizes=sizes)
    for _ in range(20):
        choices = [name for name in SIZES if name != bench.active]
        bench.switch(rng.choice(choices))
        blocks = bench.models[bench.active].plan.kv_blocks
        rows = 0
        for turn in range(rng.randrange(6)):
            following = rng.choice([None, *SIZES])
            bench.stager.serving(following, rows)
            if rng.random() < 0.5:
                time.sleep(rng.random() * 0.002)
            rows = rng.randrange(blocks + 1)
            bench.write_kv(rows, turn)
            bench.stager.serving(following, rows)
            assert bool((bench.kv[:, :rows] == turn).all())
    bench.stager.close()


class Gate:
    """Holds every write of a stager between its two halves until it is let through."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.open = threading.Semaphore(0), threading.Semaphore(0)
        self.count = 0
        monkeypatch.setattr(writer, "_copier", lambda device: self.copy)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        self.count += 1
        half = len(source) // 2
        target[:half] = source[:half]
        self.begun.release()
        self.open.acquire()
        target[half:] = source[half:]


def test_rows_under_a_write_are_used_after_it(
    staging: Switching, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    bench = Bench(staging)
    bench.switch("a")
    rows = bench.models["a"].plan.kv_blocks
    bench.stager.serving("b", 0)
    gate.begun.acquire()
    # The lowest rows are not those of the write.
    bench.write_kv(1, 5)
    user = threading.Thread(target=bench.write_kv, args=(rows, 5))
    user.start()
    user.join(0.05)
    assert user.is_alive()
    gate.open.release()
    user.join()
    assert bool((bench.kv == 5).all())
    assert gate.count == 1
    bench.stager.close()


def test_a_switch_waits_for_one_write_alone(
    staging: Switching, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    bench = Bench(staging)
    bench.switch("a")
    bench.stager.serving("b", 0)
    gate.begun.acquire()
    other = threading.Thread(target=bench.stager.switch, args=("c",))
    other.start()
    other.join(0.05)
    assert other.is_alive()
    for _ in range(50):
        gate.open.release()
    other.join()
    assert gate.count == 1
    bench.stager.close()


@pytest.mark.parametrize("who", ["step", "switch", "loop"])
def test_a_writer_that_breaks_is_told_and_nobody_waits_for_it(
    staging: Switching, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    begun, end = threading.Event(), threading.Event()

    def copy(target: torch.Tensor, source: torch.Tensor) -> None:
        begun.set()
        end.wait()
        raise RuntimeError("no such device")

    monkeypatch.setattr(writer, "_copier", lambda device: copy)
    bench = Bench(staging)
    bench.switch("a")
    bench.stager.serving("b", 0)
    begun.wait()
    threading.Timer(0.05, end.set).start()

    def loop() -> None:
        while True:
            bench.stager.serving("b", 0)
            time.sleep(0.01)

    told = {
        "step": lambda: bench.stager.use(bench.models["a"].plan.kv_blocks),
        "switch": lambda: bench.stager.switch("b"),
        "loop": loop,
    }
    with pytest.raises(RuntimeError, match=r"staging of weights broke.*no such device"):
        told[who]()
    bench.stager.close()
    assert not any(thread.name == "stage-weights" for thread in threading.enumerate())


def test_a_switch_does_not_wait_for_the_rest_of_the_weights(staging: Switching) -> None:
    """The writer rests a hundred times as long as it writes: a switch ends its work at once."""
    bench = Bench(staging, share=0.01)
    bench.switch("a")
    bench.stager.serving("c", 0)
    time.sleep(0.01)
    moved = bench.switch("c")
    assert moved.path in (SwitchPath.PARTIAL, SwitchPath.H2D)
    bench.stager.close()
    assert not any(thread.name == "stage-weights" for thread in threading.enumerate())


def test_the_best_way_here() -> None:
    expected = Switching.REMAP if can_exchange() else Switching.H2D
    assert best_switching(CPU) is expected


def test_sizes_of_chunks() -> None:
    def models(weights: int, blocks: int) -> dict[str, Weights]:
        plan = ModelPlan("m", weights, 2 << 20, blocks, 640)
        return {"m": Weights(plan, torch.empty(0), (1 << 20, 1 << 20))}

    assert chunk_bytes(models(128 * PAGE + 1, 1)) == PAGE
    assert chunk_bytes(models(128 * 5000, 1)) == 2 * PAGE
    assert chunk_bytes(models(1 << 50, 1)) == 64 << 20
    assert frame_bytes(16 << 20, 1 << 30, GRANULE) == 4 << 20
    assert frame_bytes(1 << 20, 1 << 30, GRANULE) == 256 << 10
    assert frame_bytes(1000 << 20, 1 << 20, GRANULE) == GRANULE
    assert frame_bytes(1 << 40, 1 << 50, GRANULE) == 64 << 20
