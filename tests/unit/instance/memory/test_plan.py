from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from alipes.instance.contract import InstanceSettings, ModelSettings, Pool, Targets
from alipes.instance.memory.plan import (
    PAGE,
    SNAPSHOT_SHARE,
    Footprint,
    plan_instance,
)
from alipes.instance.memory.specs import (
    PagedKV,
    PagedLatent,
    Recurrent,
    block_bytes,
    describe,
    slot_bytes,
)


def footprint(layers: int = 2, hidden: int = 64, context: int = 4096) -> Footprint:
    return Footprint(
        weight_bytes=layers * hidden * 1001,
        step_bytes=0,
        runtime_bytes=context * 2 * 2 * 16 * 4,
        context=context,
        states=(PagedKV(2, 16),) * layers,
    )


def settings(
    device_bytes: int, *names: str, chunk: int = 512, host_bytes: int = 5
) -> InstanceSettings:
    return InstanceSettings(
        name="i0",
        pool=Pool.COLD,
        models=tuple(ModelSettings(name, "") for name in names),
        targets=Targets(),
        endpoint="",
        device_bytes=device_bytes,
        host_bytes=host_bytes,
        prefill_chunk=chunk,
    )


def test_the_pool_is_what_weights_and_runtime_leave() -> None:
    models = {"a": footprint(), "b": footprint(3, 128)}
    plan = plan_instance(settings(8 << 20, *models), models)
    assert plan.refusals == ()
    assert plan.runtime_bytes == -(-max(m.runtime_bytes for m in models.values()) // PAGE) * PAGE
    assert plan.host_weight_bytes == sum(m.weight_bytes for m in models.values())
    for model in plan.models:
        weights = -(-model.weight_bytes // PAGE) * PAGE
        left = plan.runtime_offset - weights - model.kv_bytes
        assert 0 <= left < model.block_bytes


def test_slabs_divide_the_blocks_of_every_model() -> None:
    states = {"a": (PagedKV(2, 16),) * 3, "b": (PagedKV(3, 16), PagedKV(5, 16, "float16"))}
    models = {name: replace(footprint(), states=state) for name, state in states.items()}
    plan = plan_instance(settings(8 << 20, *models, host_bytes=1_000_000), models)
    assert plan.slab_bytes == 64 * 2 * 16 * 2
    assert plan.host_slabs == 1_000_000 // 4096
    for model in plan.models:
        assert model.block_bytes % plan.slab_bytes == 0
    assert plan_instance(settings(8 << 20, "a"), {"a": footprint()}).host_slabs == 0


def test_a_pool_under_the_context_shortens_it() -> None:
    models = {"a": footprint(context=1 << 17)}
    [model] = plan_instance(settings(40 << 20, "a"), models).models
    assert model.refusal == ""
    assert model.context == model.kv_blocks * 64 < 1 << 17


def test_what_can_never_fit_is_refused_with_the_numbers() -> None:
    shape = footprint()
    plan = plan_instance(settings(1 << 20, "a"), {"a": shape})
    [refusal] = plan.refusals
    for number in (shape.weight_bytes, plan.runtime_bytes, 9 * block_bytes(shape.states, 64)):
        assert f"{number:,}" in refusal
    assert "model a needs" in refusal
    assert "device_bytes is 1,048,576" in refusal


@given(st.integers(0, 1 << 24), st.integers(1, 2000), st.integers(100, 5000), st.integers(0, 5000))
def test_the_total_it_asks_for_is_enough(device: int, chunk: int, context: int, state: int) -> None:
    recurrent = (Recurrent(((state,),)),) if state else ()
    shape = footprint(context=context)
    models = {"a": replace(shape, states=shape.states + recurrent)}
    [model] = plan_instance(settings(device, "a", chunk=chunk), models).models
    if model.refusal:
        needed = int(model.refusal.split(" needs ")[1].split(" bytes")[0].replace(",", ""))
        assert needed > device
        [model] = plan_instance(settings(needed, "a", chunk=chunk), models).models
        assert model.refusal == ""
    assert model.context >= min(context, chunk + 1)


def test_specs_of_different_layers_are_told_apart() -> None:
    states = (PagedKV(2, 16), PagedKV(2, 16), PagedKV(4, 16, "float16"))
    assert describe(states) == "2*kv2x16:float32+1*kv4x16:float16"
    assert block_bytes(states, 10) == 10 * (2 * 256 + 256)


def test_slots_of_recurrent_state_are_whole_slabs_within_their_share() -> None:
    shape = footprint()
    models = {"a": replace(shape, states=(*shape.states, Recurrent(((7, 9), (11,)))))}
    plan = plan_instance(settings(4 << 20, "a"), models)
    [model] = plan.models
    assert plan.slab_bytes == 64 * PagedKV(2, 16).token_bytes
    assert model.slot_bytes == plan.slab_bytes >= (7 * 9 + 11) * 4
    room = plan.runtime_offset - -(-shape.weight_bytes // PAGE) * PAGE
    running = 2 * settings(0, "a").max_running
    assert running < model.slots <= running + room * SNAPSHOT_SHARE / model.slot_bytes
    assert model.kv_bytes == model.kv_blocks * model.block_bytes + model.slots * model.slot_bytes
    assert model.kv_bytes <= room


def test_states_of_all_kinds_are_told_apart() -> None:
    states = (PagedLatent(20), PagedLatent(20), Recurrent(((2, 3), (4,)), "float16"), PagedKV(1, 8))
    assert describe(states) == "2*latent20:float32+1*recurrent2x3+4:float16+1*kv1x8:float32"
    assert block_bytes(states, 10) == 10 * (2 * 80 + 64)
    assert slot_bytes(states) == 2 * (6 + 4)
