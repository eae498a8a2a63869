"""Families of random models: their configs and the shapes of their tensors."""

from __future__ import annotations

from typing import Final

from alipes.instance.checkpoints import hybrid, latent
from alipes.instance.checkpoints.sizes import Size

Tensors = dict[str, tuple[int, ...]]

FAMILIES: Final = {
    "llama": ("LlamaForCausalLM", "llama", 1e-5, 500_000.0),
    "qwen3": ("Qwen3ForCausalLM", "qwen3", 1e-6, 1_000_000.0),
    "qwen3-moe": ("Qwen3MoeForCausalLM", "qwen3_moe", 1e-6, 1_000_000.0),
    "deepseek-v2": ("DeepseekV2ForCausalLM", "deepseek_v2", 1e-6, 10_000.0),
    "deepseek-v3": ("DeepseekV3ForCausalLM", "deepseek_v3", 1e-6, 10_000.0),
    "glm5": ("GlmMoeDsaForCausalLM", "glm_moe_dsa", 1e-5, 1_000_000.0),
    "qwen3-next": ("Qwen3NextForCausalLM", "qwen3_next", 1e-6, 10_000_000.0),
    "qwen3.5": ("Qwen3_5ForCausalLM", "qwen3_5_text", 1e-6, 10_000_000.0),
}
_SPARSE: Final = ("qwen3-moe", "qwen3-next", *latent.FAMILIES)


def config_of(family: str, size: Size, vocab: int, ends: list[int]) -> dict[str, object]:
    """The ``config.json`` of a random model with ``vocab`` token ids."""
    architecture, kind, epsilon, theta = FAMILIES[family]
    config: dict[str, object] = {
        "architectures": [architecture],
        "model_type": kind,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "dtype": "float16",
        "eos_token_id": ends[0],
        "head_dim": size.head_dim,
        "hidden_act": "silu",
        "hidden_size": size.hidden,
        "initializer_range": 0.02,
        "intermediate_size": size.intermediate,
        "max_position_embeddings": size.context,
        "num_attention_heads": size.heads,
        "num_hidden_layers": size.layers,
        "num_key_value_heads": size.kv_heads,
        "rms_norm_eps": epsilon,
        "rope_parameters": {"rope_type": "default", "rope_theta": theta},
        "rope_theta": theta,
        "tie_word_embeddings": False,
        "use_cache": True,
        "vocab_size": vocab,
    }
    if family == "llama":
        config["mlp_bias"] = False
    if family in hybrid.FAMILIES:
        config |= hybrid.config_fields(size, theta)
    if family in latent.FAMILIES:
        config |= latent.config_fields(family, size)
    elif family in _SPARSE:
        config |= {
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "moe_intermediate_size": size.expert_intermediate,
            "norm_topk_prob": True,
            "num_experts": size.experts,
            "num_experts_per_tok": size.experts_per_token,
        }
    return config


def tensors_of(family: str, size: Size, vocab: int) -> Tensors:
    """Checkpoint names to shapes, as published checkpoints of the family have them."""
    tensors: Tensors = {
        "model.embed_tokens.weight": (vocab, size.hidden),
        "model.norm.weight": (size.hidden,),
        "lm_head.weight": (vocab, size.hidden),
    }
    for layer in range(size.layers):
        prefix = f"model.layers.{layer}."
        tensors |= {prefix + name: shape for name, shape in _layer(family, size, layer).items()}
    return tensors


def _layer(family: str, size: Size, index: int) -> Tensors:
    layer: Tensors = {
        "input_layernorm.weight": (size.hidden,),
        "post_attention_layernorm.weight": (size.hidden,),
    }
    if family in hybrid.FAMILIES and hybrid.is_recurrent(size, index):
        layer |= hybrid.delta_net(family, size)
    elif family in latent.FAMILIES:
        layer |= latent.attention(family, size)
    else:
        layer |= _attention(family, size)
    if family not in _SPARSE or (family in latent.FAMILIES and latent.is_dense(index)):
        return layer | _gated("mlp.", size.hidden, size.intermediate)
    layer["mlp.gate.weight"] = (size.experts, size.hidden)
    for expert in range(size.experts):
        layer |= _gated(f"mlp.experts.{expert}.", size.hidden, size.expert_intermediate)
    if family in latent.FAMILIES:
        layer |= latent.router_bias(family, size)
        layer |= _gated("mlp.shared_experts.", size.hidden, size.expert_intermediate)
    if family in hybrid.FAMILIES:
        layer["mlp.shared_expert_gate.weight"] = (1, size.hidden)
        layer |= _gated("mlp.shared_expert.", size.hidden, size.expert_intermediate)
    return layer


def _attention(family: str, size: Size) -> Tensors:
    queries, keys = size.heads * size.head_dim, size.kv_heads * size.head_dim
    gated = 2 if family in hybrid.FAMILIES else 1
    layer: Tensors = {
        "self_attn.q_proj.weight": (gated * queries, size.hidden),
        "self_attn.k_proj.weight": (keys, size.hidden),
        "self_attn.v_proj.weight": (keys, size.hidden),
        "self_attn.o_proj.weight": (size.hidden, queries),
    }
    if family != "llama":
        layer["self_attn.q_norm.weight"] = layer["self_attn.k_norm.weight"] = (size.head_dim,)
    return layer


def _gated(prefix: str, hidden: int, intermediate: int) -> Tensors:
    return {
        prefix + "gate_proj.weight": (intermediate, hidden),
        prefix + "up_proj.weight": (intermediate, hidden),
        prefix + "down_proj.weight": (hidden, intermediate),
    }
