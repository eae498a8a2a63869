from __future__ import annotations

import pytest
import torch

from alipes.instance.engine.protocol import EngineError
from alipes.instance.memory.arena import Arena, host_buffer
from alipes.instance.memory.plan import PAGE, MemoryPlan, ModelPlan

SMALL = ModelPlan("small", 5000, 300, 10, 640)
LARGE = ModelPlan("large", 3 * PAGE, 700, 20, 1280)
PLAN = MemoryPlan(16 * PAGE, 2 * PAGE, 0, 100, (SMALL, LARGE))


@pytest.mark.parametrize("model", [SMALL, LARGE])
def test_regions_of_a_model_do_not_touch(model: ModelPlan) -> None:
    arena = Arena(PLAN, torch.device("cpu"))
    regions = arena.weights(model), arena.kv(model), arena.runtime
    for value, region in enumerate(regions, start=1):
        region.fill_(value)
    for value, region in enumerate(regions, start=1):
        assert bool((region == value).all())
        assert region.data_ptr() % PAGE == 0
    assert [len(region) for region in regions] == [
        model.weight_bytes,
        model.kv_bytes,
        PLAN.runtime_bytes,
    ]


def test_models_share_the_low_end_and_the_runtime() -> None:
    arena = Arena(PLAN, torch.device("cpu"))
    low = arena.weights(SMALL).data_ptr()
    assert arena.weights(LARGE).data_ptr() == low
    assert arena.runtime.data_ptr() == low + 14 * PAGE


@pytest.mark.parametrize("nbytes", [0, 1, 3 * PAGE + 1])
def test_host_memory_starts_zeroed(nbytes: int) -> None:
    memory = host_buffer(nbytes)
    assert memory.shape == (nbytes,)
    assert not bool(memory.any())


def test_more_than_the_machine_gives_is_refused_in_numbers() -> None:
    with pytest.raises(EngineError, match="no 1,152,921,504,606,846,976 bytes of memory: lower"):
        host_buffer(1 << 60)
