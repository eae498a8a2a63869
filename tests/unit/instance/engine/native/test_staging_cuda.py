"""The stager over memory of a CUDA driver, which here is a fake one of process memory."""

from __future__ import annotations

import gc
import random
import sys

import pytest
import torch
from tests.unit.instance.memory.fake_cuda import FakeCuda

from alipes.instance.engine.native import staging
from alipes.instance.engine.native.staging import Moved, Stager, Switching, Weights, device_memory
from alipes.instance.engine.protocol import EngineError
from alipes.instance.memory.arena import Arena
from alipes.instance.memory.plan import PAGE, MemoryPlan, ModelPlan
from alipes.instance.memory.staging import SwitchPath

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
UNIT = FakeCuda.granularity
ROW = 16 << 10
ARENA = 128 * UNIT + 4 * PAGE
SIZES = {"a": 20 * UNIT - 100, "b": 12 * UNIT, "c": 33 * UNIT - 7}


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    if sys.platform != "linux":
        pytest.skip("the fake maps files in memory")
    fake = FakeCuda()
    monkeypatch.setattr(staging, "cuda_driver", lambda device: fake)
    return fake


def plans() -> dict[str, ModelPlan]:
    blocks = {name: (ARENA - 3 * PAGE - nbytes) // (2 * ROW) for name, nbytes in SIZES.items()}
    return {n: ModelPlan(n, SIZES[n], 2 * ROW, blocks[n], 64 * blocks[n]) for n in SIZES}


def test_the_best_way_on_an_accelerator(monkeypatch: pytest.MonkeyPatch, driver: FakeCuda) -> None:
    assert staging.best_switching(CUDA) is Switching.REMAP
    monkeypatch.setattr(staging, "cuda_driver", lambda device: None)
    assert staging.best_switching(CUDA) is Switching.GATHER
    with pytest.raises(EngineError, match="pages of cuda cannot be exchanged: switch by gather"):
        device_memory(ARENA, CUDA, Switching.REMAP)


def test_frames_are_as_large_as_the_models_allow(driver: FakeCuda) -> None:
    layer = min(plan.kv_blocks for plan in plans().values()) * ROW
    sizes = (layer, max(SIZES.values()))
    assert device_memory(ARENA, CUDA, Switching.REMAP, *sizes).granule == 2 * UNIT
    assert device_memory(ARENA, CUDA, Switching.REMAP).granule == UNIT


@pytest.mark.parametrize("seed", range(2))
def test_weights_are_whole_after_random_switches(driver: FakeCuda, seed: int) -> None:
    rng, known = random.Random(seed), plans()
    layer = min(plan.kv_blocks for plan in known.values()) * ROW
    memory = device_memory(ARENA, CUDA, Switching.REMAP, layer, max(SIZES.values()))
    arena = Arena(MemoryPlan(ARENA, 2 * PAGE, 0, ROW, tuple(known.values())), memory)
    arena.runtime.fill_(7)
    generator = torch.Generator().manual_seed(seed)
    models = {
        name: Weights(
            plan,
            torch.randint(256, (SIZES[name],), dtype=torch.uint8, generator=generator),
            (ROW, ROW),
        )
        for name, plan in known.items()
    }
    stager = Stager(arena, models, CPU, Switching.REMAP, share=1.0)
    address, paths, active = memory.data.data_ptr(), set(), "a"
    for _ in range(20):
        driver.busy = True
        moved = stager.switch(active)
        paths.add(moved.path)
        assert driver.usable
        assert torch.equal(arena.weights(known[active]), models[active].host)
        assert bool((arena.runtime == 7).all())
        following = rng.choice([name for name in SIZES if name != active])
        rows = rng.choice([0, 0, rng.randrange(known[active].kv_blocks)])
        stager.serving(following, rows)
        kv = arena.kv(known[active]).view(2, known[active].kv_blocks, ROW)
        stager.use(rows)
        kv[:, :rows] = 5
        active = rng.choice([following, following, rng.choice([n for n in SIZES if n != active])])
    assert paths == {SwitchPath.H2D, SwitchPath.PARTIAL, SwitchPath.REMAP}
    assert memory.data.data_ptr() == address
    stager.close()
    del kv, arena, memory, stager
    gc.collect()
    assert driver.empty


def test_weights_that_leave_are_kept(driver: FakeCuda) -> None:
    known = plans()
    memory = device_memory(ARENA, CUDA, Switching.REMAP, ARENA, max(SIZES.values()))
    arena = Arena(MemoryPlan(ARENA, 2 * PAGE, 0, ROW, tuple(known.values())), memory)
    models = {
        name: Weights(plan, torch.full((SIZES[name],), ord(name), dtype=torch.uint8), (ROW, ROW))
        for name, plan in known.items()
    }
    stager = Stager(arena, models, CPU, Switching.REMAP)
    for model in SIZES:
        assert stager.switch(model) == Moved(SwitchPath.H2D, SIZES[model])
    for model in ("a", "c", "b"):
        assert stager.switch(model) == Moved(SwitchPath.REMAP, mapped_bytes=SIZES[model])
        assert bool((arena.weights(known[model]) == ord(model)).all())
    stager.close()
