from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from alipes.instance.engine.native.config import ModelConfig, ModelError
from alipes.instance.engine.native.families.read import parse_config, read_config
from alipes.instance.engine.native.feed_forward import Dense, Experts
from alipes.instance.engine.native.mixers.attention import Attention
from alipes.instance.engine.native.rope import Rope
from alipes.kernels.routing import Routing

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "max_position_embeddings": 512,
    "num_attention_heads": 4,
    "num_hidden_layers": 4,
    "vocab_size": 300,
}
MOE = LLAMA | {
    "architectures": ["Qwen3MoeForCausalLM"],
    "decoder_sparse_step": 2,
    "mlp_only_layers": [3],
    "moe_intermediate_size": 32,
    "num_experts": 8,
    "num_experts_per_tok": 2,
}


def attention(config: ModelConfig) -> Attention:
    """That of every layer."""
    [mixer] = {layer.mixer for layer in config.layers}
    assert isinstance(mixer, Attention)
    return mixer


def test_a_bare_llama_gets_the_family_defaults() -> None:
    config = parse_config(LLAMA)
    assert (config.family, config.tied, len(config.layers)) == ("llama", False, 4)
    assert attention(config) == Attention(64, 4, 4, 16, Rope(16, 10000.0), norm_eps=None)
    assert {layer.feed_forward for layer in config.layers} == {Dense(64, 128)}


def test_the_head_size_may_differ_from_hidden_by_heads() -> None:
    mixer = attention(parse_config(LLAMA | {"head_dim": 32, "num_key_value_heads": 2}))
    assert (mixer.dim, mixer.kv_heads, mixer.rope.dim) == (32, 2, 32)


@pytest.mark.parametrize(
    "place",
    [{"rope_theta": 5e5}, {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}],
)
def test_theta_is_read_from_old_and_new_places(place: dict[str, Any]) -> None:
    assert attention(parse_config(LLAMA | place)).rope == Rope(16, 5e5)


def test_sparse_layers_follow_step_and_exceptions() -> None:
    config = parse_config(MOE)
    dense, experts = Dense(64, 128), Experts(64, 32, 8, Routing(2, False))
    assert [layer.feed_forward for layer in config.layers] == [dense, experts, dense, dense]
    assert attention(config).norm_eps == 1e-6


def test_experts_may_be_counted_under_the_newer_name() -> None:
    raw = {k: v for k, v in MOE.items() if k != "num_experts"} | {"num_local_experts": 6}
    experts = parse_config(raw).layers[1].feed_forward
    assert isinstance(experts, Experts)
    assert experts.count == 6


def test_the_model_type_will_do_without_architectures() -> None:
    raw = {k: v for k, v in LLAMA.items() if k != "architectures"} | {"model_type": "qwen3"}
    assert parse_config(raw).family == "qwen3"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"architectures": ["MambaForCausalLM"]}, "MambaForCausalLM is not one of"),
        ({"attention_bias": True}, "attention_bias"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        (MOE | {"num_experts_per_tok": 9}, "num_experts_per_tok: 9 is more than the 8 experts"),
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, "rope scaling 'linear'"),
    ],
)
def test_what_we_cannot_do_is_refused_by_name(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        parse_config(LLAMA | change)


def test_errors_of_a_folder_name_the_file(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json is missing"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match=r"config\.json is not JSON"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    with pytest.raises(ModelError, match=r"config\.json: field 'hidden_size' is missing"):
        read_config(tmp_path)
