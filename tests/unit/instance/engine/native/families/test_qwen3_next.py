from __future__ import annotations

from typing import Any

import pytest

from alipes.instance.engine.native.config import ModelConfig, ModelError
from alipes.instance.engine.native.families.read import parse_config
from alipes.instance.engine.native.feed_forward import Dense, SharedExpert
from alipes.instance.engine.native.mixers.attention import Attention
from alipes.instance.engine.native.mixers.gated_delta import GatedDelta
from alipes.instance.memory.specs import PagedKV, Recurrent

HYBRID: dict[str, Any] = {
    "architectures": ["Qwen3NextForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 500,
    "max_position_embeddings": 1024,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 40,
    "num_experts": 8,
    "num_experts_per_tok": 3,
}


def parse(**changes: Any) -> ModelConfig:
    return parse_config(HYBRID | changes)


def test_every_fourth_layer_attends_and_the_others_keep_a_state() -> None:
    config = parse()
    delta = Recurrent(((4, 16, 8), (2 * 32 + 32, 3)))
    assert config.states == (delta, delta, delta, PagedKV(2, 32))
    assert config.centred
    attention = config.layers[3].mixer
    assert isinstance(attention, Attention)
    assert (attention.gated, attention.centred) == (True, True)
    assert attention.rope.dim == 8


def test_fields_that_newer_files_have_come_first() -> None:
    rope = {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.5}
    types = ["full_attention", "linear_attention"] * 2
    config = parse(rope_parameters=rope, layer_types=types, partial_rotary_factor=0.25)
    attention = config.layers[2].mixer
    assert isinstance(attention, Attention)
    assert (attention.rope.dim, attention.rope.theta) == (16, 1e7)
    assert isinstance(config.layers[1].mixer, GatedDelta)
    interval = parse(full_attention_interval=2)
    assert interval.states[1] == interval.states[3] == PagedKV(2, 32)


@pytest.mark.parametrize(
    ("architecture", "fused", "kind"),
    [
        ("Qwen3NextForCausalLM", True, SharedExpert),
        ("Qwen3_5ForCausalLM", False, Dense),
        ("Qwen3_5MoeForCausalLM", False, SharedExpert),
    ],
)
def test_families_differ_in_storage_and_feed_forward(
    architecture: str, fused: bool, kind: type
) -> None:
    config = parse(architectures=[architecture])
    mixer = config.layers[0].mixer
    assert isinstance(mixer, GatedDelta)
    assert mixer.fused is fused
    assert all(isinstance(layer.feed_forward, kind) for layer in config.layers)


def test_layers_without_experts_are_dense() -> None:
    halves = [layer.feed_forward for layer in parse(mlp_only_layers=[2]).layers]
    assert [isinstance(half, Dense) for half in halves] == [False, False, True, False]
    assert all(isinstance(layer.feed_forward, Dense) for layer in parse(num_experts=0).layers)


@pytest.mark.parametrize(
    ("types", "words"),
    [
        (["full_attention"] * 3, "names 3 layers of 4"),
        (["full_attention"] * 3 + ["sliding_attention"], "'sliding_attention' is not supported"),
    ],
)
def test_layer_types_that_cannot_be_are_refused(types: list[str], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        parse(layer_types=types)


def test_a_field_that_is_missing_is_named() -> None:
    raw = {key: value for key, value in HYBRID.items() if key != "linear_key_head_dim"}
    with pytest.raises(KeyError, match="linear_key_head_dim"):
        parse_config(raw)
