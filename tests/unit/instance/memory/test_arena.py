from __future__ import annotations

import pytest
import torch

from alipes.instance.memory.arena import Arena
from alipes.instance.memory.device import PlainMemory
from alipes.instance.memory.mapped import MappedMemory
from alipes.instance.memory.plan import PAGE, MemoryPlan, ModelPlan

SMALL = ModelPlan("small", 5000, 300, 10, 640)
LARGE = ModelPlan("large", 3 * PAGE, 700, 20, 1280)
PLAN = MemoryPlan(16 * PAGE, 2 * PAGE, 0, 100, (SMALL, LARGE))


@pytest.fixture(params=["plain", "mapped"])
def arena(request: pytest.FixtureRequest) -> Arena:
    if request.param == "mapped":
        return Arena(PLAN, MappedMemory(PLAN.device_bytes))
    return Arena(PLAN, PlainMemory(PLAN.device_bytes, torch.device("cpu")))


@pytest.mark.parametrize("model", [SMALL, LARGE])
def test_regions_of_a_model_do_not_touch(arena: Arena, model: ModelPlan) -> None:
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


def test_models_share_the_low_end_and_the_runtime(arena: Arena) -> None:
    low = arena.weights(SMALL).data_ptr()
    assert arena.weights(LARGE).data_ptr() == low
    assert arena.kv(LARGE).data_ptr() == low + arena.kv_offset(LARGE) == low + 3 * PAGE
    assert arena.runtime.data_ptr() == low + 14 * PAGE
