"""What random models have besides where attention is latent: a first layer that is dense, experts
in groups with one that all tokens share."""

from __future__ import annotations

from typing import Final

from alipes.instance.checkpoints.sizes import Size

INDEXED: Final = ("glm5",)
FAMILIES: Final = ("deepseek-v2", "deepseek-v3", *INDEXED)
_INDEX_HEADS: Final = 2

Tensors = dict[str, tuple[int, ...]]


def config_fields(family: str, size: Size) -> dict[str, object]:
    """Queries of the second version are not compressed."""
    dim = size.head_dim
    fields: dict[str, object] = {
        "first_k_dense_replace": 1,
        "kv_lora_rank": _rank(size),
        "moe_intermediate_size": size.expert_intermediate,
        "n_group": size.experts // 2,
        "n_routed_experts": size.experts,
        "n_shared_experts": 1,
        "norm_topk_prob": family != "deepseek-v2",
        "num_experts_per_tok": size.experts_per_token,
        "num_key_value_heads": size.heads,
        "q_lora_rank": None if family == "deepseek-v2" else _query_rank(size),
        "qk_nope_head_dim": dim,
        "qk_rope_head_dim": dim,
        "routed_scaling_factor": 1.5,
        "topk_group": size.experts // 4,
        "v_head_dim": dim,
    }
    if family == "deepseek-v2":
        fields["topk_method"] = "group_limited_greedy"
    if family in INDEXED:
        fields |= {
            "index_head_dim": 2 * dim,
            "index_n_heads": _INDEX_HEADS,
            "index_topk": size.context // 2,
        }
    return fields


def is_dense(index: int) -> bool:
    return index == 0


def attention(family: str, size: Size) -> Tensors:
    rank, inner = _rank(size), _query_rank(size)
    queries, values = 2 * size.heads * size.head_dim, size.heads * size.head_dim
    layer: Tensors = {
        "kv_a_proj_with_mqa.weight": (rank + size.head_dim, size.hidden),
        "kv_a_layernorm.weight": (rank,),
        "kv_b_proj.weight": (2 * values, rank),
        "o_proj.weight": (size.hidden, values),
    }
    if family == "deepseek-v2":
        layer["q_proj.weight"] = (queries, size.hidden)
    else:
        layer["q_a_proj.weight"] = (inner, size.hidden)
        layer["q_a_layernorm.weight"] = (inner,)
        layer["q_b_proj.weight"] = (queries, inner)
    if family in INDEXED:
        layer |= {f"indexer.{name}": shape for name, shape in _indexer(size).items()}
    return {"self_attn." + name: shape for name, shape in layer.items()}


def router_bias(family: str, size: Size) -> Tensors:
    if family == "deepseek-v2":
        return {}
    return {"mlp.gate.e_score_correction_bias": (size.experts,)}


def _indexer(size: Size) -> Tensors:
    dim = 2 * size.head_dim
    return {
        "wq_b.weight": (_INDEX_HEADS * dim, _query_rank(size)),
        "wk.weight": (dim, size.hidden),
        "k_norm.weight": (dim,),
        "k_norm.bias": (dim,),
        "weights_proj.weight": (_INDEX_HEADS, size.hidden),
    }


def _rank(size: Size) -> int:
    return 3 * size.head_dim


def _query_rank(size: Size) -> int:
    return size.hidden // 2
