from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alipes.instance.contract import InstanceSettings, ModelSettings, Pool, Targets
from alipes.instance.engine.native.config import ModelConfig, ModelError
from alipes.instance.memory.plan import (
    PAGE,
    ModelShape,
    plan_instance,
    read_shape,
    runtime_bytes,
    shape_of,
)
from alipes.instance.memory.specs import PagedKV, block_bytes, describe


def config(layers: int = 2, hidden: int = 64, context: int = 4096) -> ModelConfig:
    return ModelConfig(
        family="llama",
        layers=layers,
        hidden=hidden,
        heads=4,
        kv_heads=2,
        head_dim=16,
        intermediate=2 * hidden,
        vocab=1000,
        context=context,
        eps=1e-5,
        rope_theta=1e4,
        qk_norm=False,
        tied=True,
        experts=None,
        sparse=(False,) * layers,
    )


def settings(device_bytes: int, *names: str, chunk: int = 512) -> InstanceSettings:
    return InstanceSettings(
        name="i0",
        pool=Pool.COLD,
        models=tuple(ModelSettings(name, "") for name in names),
        targets=Targets(),
        endpoint="",
        device_bytes=device_bytes,
        host_bytes=5,
        prefill_chunk=chunk,
    )


def test_sizes_are_exact() -> None:
    shape = shape_of(config(), "float16")
    matrices = 1000 * 64 + 2 * (128 * 64 + 64 * 64 + 256 * 64 + 64 * 128)
    norms = 5 * 64
    assert shape.layout.nbytes == 2 * matrices + 4 * norms
    assert shape.states == (PagedKV(2, 16),) * 2
    assert block_bytes(shape.states, 64) == 64 * 2 * 2 * 2 * 16 * 4
    # Scratch: the gate and up matrix widened, and a full context of one layer gathered.
    assert runtime_bytes(shape, 64) == 4 * (256 * 64) + 4096 * 2 * 2 * 16 * 4


def test_float32_needs_no_scratch_to_widen() -> None:
    assert runtime_bytes(shape_of(config(), "float32"), 64) == 4096 * 2 * 2 * 16 * 4


def test_the_pool_is_what_weights_and_runtime_leave() -> None:
    shapes = {"a": shape_of(config(), "float16"), "b": shape_of(config(3, 128), "float32")}
    plan = plan_instance(settings(8 << 20, *shapes), shapes)
    assert plan.refusals == ()
    assert plan.runtime_bytes == max(runtime_bytes(s, 64) for s in shapes.values())
    assert plan.host_weight_bytes == sum(s.layout.nbytes for s in shapes.values())
    for model in plan.models:
        weights = -(-model.weight_bytes // PAGE) * PAGE
        left = plan.runtime_offset - weights - model.kv_bytes
        assert 0 <= left < model.block_bytes


def test_a_pool_under_the_context_shortens_it() -> None:
    shapes = {"a": shape_of(config(context=1 << 17), "float16")}
    [model] = plan_instance(settings(40 << 20, "a"), shapes).models
    assert model.refusal == ""
    assert model.context == model.kv_blocks * 64 < 1 << 17


def test_what_can_never_fit_is_refused_with_the_numbers() -> None:
    shape = shape_of(config(), "float16")
    plan = plan_instance(settings(1 << 20, "a"), {"a": shape})
    [refusal] = plan.refusals
    for number in (shape.layout.nbytes, plan.runtime_bytes, 9 * block_bytes(shape.states, 64)):
        assert f"{number:,}" in refusal
    assert "model a on i0" in refusal
    assert "device_bytes is 1,048,576" in refusal


@given(st.integers(0, 1 << 24), st.integers(1, 2000), st.integers(100, 5000))
def test_the_total_it_asks_for_is_enough(device: int, chunk: int, context: int) -> None:
    shapes: dict[str, ModelShape] = {"a": shape_of(config(context=context), "float16")}
    [model] = plan_instance(settings(device, "a", chunk=chunk), shapes).models
    if model.refusal:
        needed = int(model.refusal.split(" needs ")[1].split(" bytes")[0].replace(",", ""))
        assert needed > device
        [model] = plan_instance(settings(needed, "a", chunk=chunk), shapes).models
        assert model.refusal == ""
    assert model.context >= min(context, chunk + 1)


def test_shapes_of_real_folders(tiny_folders: dict[str, Path], smollm2_folder: Path) -> None:
    for folder in tiny_folders.values():
        assert read_shape(folder, "float16").layout.nbytes > 0
    shape = read_shape(smollm2_folder, "float32")
    parameters = sum(tensor.nbytes // 4 for tensor in shape.layout.tensors)
    assert parameters == 134_515_008
    assert describe(shape.states) == "30*kv3x64:float32"


def test_an_unknown_dtype_is_refused(smollm2_folder: Path) -> None:
    with pytest.raises(ModelError, match="dtype: 'int4' is not one of float16, float32"):
        read_shape(smollm2_folder, "int4")


def test_specs_of_different_layers_are_told_apart() -> None:
    states = (PagedKV(2, 16), PagedKV(2, 16), PagedKV(4, 16, "float16"))
    assert describe(states) == "2*kv2x16:float32+1*kv4x16:float16"
    assert block_bytes(states, 10) == 10 * (2 * 256 + 256)
