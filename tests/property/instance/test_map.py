from __future__ import annotations

from hypothesis import given

from alipes.instance.contract import Content, InstanceSettings, Region
from alipes.instance.memory.map import memory_map
from alipes.instance.memory.plan import Footprint, plan_instance
from alipes.instance.memory.specs import Recurrent

from .plans import instances


def of(regions: tuple[Region, ...], content: Content) -> list[Region]:
    return [region for region in regions if region.content is content]


@given(instances())
def test_regions_tile_the_arena(instance: tuple[InstanceSettings, dict[str, Footprint]]) -> None:
    settings, models = instance
    plan = plan_instance(settings, models)
    shown = memory_map(plan, {n: m.states for n, m in models.items()}, settings.block_tokens)
    fitting = [model for model in plan.models if not model.refusal]
    assert [model.model for model in shown.models] == [model.name for model in fitting]
    assert (shown.device_bytes, shown.slab_bytes) == (settings.device_bytes, plan.slab_bytes)
    assert 0 <= settings.host_bytes - shown.slabs * shown.slab_bytes < shown.slab_bytes
    for model, regions in zip(fitting, (m.regions for m in shown.models), strict=True):
        end = 0
        for region in regions:
            assert region.offset == end
            assert region.nbytes > 0
            end += region.nbytes
        assert end == settings.device_bytes
        [weights] = of(regions, Content.WEIGHTS)
        assert (weights.offset, weights.nbytes) == (0, model.weight_bytes)
        assert sum(r.nbytes for r in of(regions, Content.RUNTIME)) == plan.runtime_bytes
        states = models[model.name].states
        kv, slots = of(regions, Content.KV), of(regions, Content.SLOTS)
        layers = [i for i, state in enumerate(states) if not isinstance(state, Recurrent)]
        assert [layer for region in kv for layer in region.layers] == layers
        for region in (*kv, *slots):
            copies = len(region.layers) if region.content is Content.KV else 1
            assert region.nbytes == copies * region.rows * region.row_bytes
        assert all({str(states[layer]) for layer in r.layers} == {r.state} for r in kv)
        assert sum(region.nbytes for region in kv) == model.kv_blocks * model.block_bytes
        kept = [(r.rows, r.row_bytes, r.layers) for r in slots]
        recurrent = tuple(i for i, state in enumerate(states) if isinstance(state, Recurrent))
        wanted = (model.slots, model.slot_bytes, recurrent)
        assert kept == ([wanted] if model.slots else [])
