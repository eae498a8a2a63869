from __future__ import annotations

from typing import Any

import pytest

from alipes.instance.engine.native.config import ModelError
from alipes.instance.engine.native.families.read import parse_config
from alipes.instance.engine.native.feed_forward import Dense, Experts
from alipes.instance.engine.native.mixers.latent import LatentAttention
from alipes.instance.engine.native.rope import Rope, Yarn
from alipes.instance.memory.specs import PagedLatent
from alipes.kernels.routing import Routing

V3: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "first_k_dense_replace": 1,
    "hidden_size": 64,
    "intermediate_size": 128,
    "kv_lora_rank": 24,
    "max_position_embeddings": 512,
    "moe_intermediate_size": 32,
    "n_group": 2,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_attention_heads": 4,
    "num_experts_per_tok": 3,
    "num_hidden_layers": 3,
    "q_lora_rank": 20,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "rms_norm_eps": 1e-5,
    "routed_scaling_factor": 2.5,
    "topk_group": 1,
    "v_head_dim": 12,
    "vocab_size": 300,
}
V2 = V3 | {"architectures": ["DeepseekV2ForCausalLM"], "topk_method": "greedy"}
GLM = V3 | {"architectures": ["GlmMoeDsaForCausalLM"], "model_type": "glm_moe_dsa"}
YARN = {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096, "beta_fast": 32}


def mixer(raw: dict[str, Any]) -> LatentAttention:
    """That of every layer."""
    [found] = {layer.mixer for layer in parse_config(raw).layers}
    assert isinstance(found, LatentAttention)
    return found


def test_every_layer_keeps_one_vector_a_token() -> None:
    assert mixer(V3) == LatentAttention(
        64, 4, 20, 24, 16, 12, Rope(8, 10000.0), 24**-0.5, 1e-6, interleaved=True
    )
    assert parse_config(V3).states == (PagedLatent(24 + 8),) * 3
    assert mixer(V3 | {"q_lora_rank": None}).query_rank is None


def test_layers_behind_the_first_have_experts_chosen_by_sigmoids_in_groups() -> None:
    config = parse_config(V3)
    routing = Routing(3, True, sigmoid=True, groups=2, top_groups=1, group_best=2, scale=2.5)
    experts = Experts(64, 32, 8, routing, shared=64, biased=True)
    assert [layer.feed_forward for layer in config.layers] == [Dense(64, 128), experts, experts]
    assert config.eps == 1e-5


@pytest.mark.parametrize(
    ("method", "routing"),
    [
        ("greedy", Routing(3, False, scale=2.5)),
        ("group_limited_greedy", Routing(3, False, groups=2, top_groups=1, scale=2.5)),
    ],
)
def test_the_second_version_chooses_by_softmax(method: str, routing: Routing) -> None:
    last = parse_config(V2 | {"topk_method": method}).layers[-1].feed_forward
    assert last == Experts(64, 32, 8, routing, shared=64)


def test_layers_may_be_named_one_by_one() -> None:
    config = parse_config(
        GLM | {"index_topk": 512, "mlp_layer_types": ["sparse", "dense", "dense"]}
    )
    kinds = [isinstance(layer.feed_forward, Experts) for layer in config.layers]
    assert kinds == [True, False, False]


def test_sparse_attention_is_served_as_far_as_it_selects_everything() -> None:
    config = parse_config(GLM | {"index_topk": 256})
    assert (config.family, config.context) == ("glm_moe_dsa", 256)
    assert "context is 256 (index_topk), not 512" in config.note
    whole = parse_config(GLM | {"index_topk": 2048})
    assert (whole.context, whole.note) == (512, "")


def test_yarn_stretches_positions_and_sharpens_scores() -> None:
    raw = V3 | {"rope_scaling": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}}
    found = mixer(raw)
    assert found.rope == Rope(8, 10000.0, Yarn(40.0, 4096, 32.0, 1.0, 1.0, truncate=True))
    # 0.1 ln 40 + 1, squared, as DeepSeek-V3 publishes it.
    assert found.scale == pytest.approx(24**-0.5 * 1.3688879**2)
    plain = mixer(V3 | {"rope_scaling": YARN})
    assert plain.rope.yarn is not None
    assert plain.rope.yarn.magnitude == pytest.approx(1.3688879)
    assert plain.scale == 24**-0.5


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (V2 | {"topk_method": "noaux_tc"}, "topk_method: 'noaux_tc'"),
        (V2 | {"norm_topk_prob": True}, "norm_topk_prob: true is not supported"),
        (V3 | {"topk_method": "greedy"}, "topk_method: 'greedy' is not supported"),
        (V3 | {"scoring_func": "softmax"}, "scoring_func: 'softmax' is not supported"),
        (V3 | {"n_group": 3}, "n_group: 8 experts do not divide into 3 groups"),
        (V3 | {"topk_group": 3}, "topk_group: 3 is more than 2 groups"),
        (V3 | {"num_experts_per_tok": 5}, "num_experts_per_tok: 5 is more than 1 groups have"),
        (V3 | {"num_experts_per_tok": 9}, "num_experts_per_tok: 9 is more than the 8 experts"),
        (V3 | {"moe_layer_freq": 2}, "moe_layer_freq: only 1"),
        (V3 | {"qk_rope_head_dim": 7}, "qk_rope_head_dim: 7 is odd"),
        (GLM | {"index_topk": 9, "mlp_layer_types": ["dense"]}, "mlp_layer_types: needs"),
    ],
)
def test_what_we_cannot_do_is_refused_by_name(raw: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        parse_config(raw)


def test_a_stretched_context_needs_its_origin() -> None:
    with pytest.raises(KeyError, match="original_max_position_embeddings"):
        parse_config(V3 | {"rope_scaling": {"type": "yarn", "factor": 40}})
