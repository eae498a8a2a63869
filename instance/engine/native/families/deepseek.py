"""DeepSeek-V2, V3 and what is built like them: latent attention, experts chosen in groups."""

from __future__ import annotations

from dataclasses import replace

from alipes.instance.engine.native.config import FeedForward, LayerConfig, ModelConfig, ModelError
from alipes.instance.engine.native.families.fields import (
    Raw,
    decoder,
    read_rope,
    top_k_of,
    yarn_scale,
)
from alipes.instance.engine.native.feed_forward import Dense, Experts
from alipes.instance.engine.native.mixers.latent import LatentAttention
from alipes.kernels.routing import Routing

# Whatever ``rms_norm_eps`` says, the norms of compressed vectors have this one.
_LATENT_EPS = 1e-6


def deepseek_v2(raw: Raw) -> ModelConfig:
    raw = {**raw, "rope_interleave": True}
    return _model("deepseek_v2", raw, _experts(raw, _softmax_routing(raw), biased=False))


def deepseek_v3(raw: Raw) -> ModelConfig:
    return _model("deepseek_v3", raw, _experts(raw, _sigmoid_routing(raw), biased=True))


def sparse_attention(raw: Raw) -> ModelConfig:
    """DeepSeek-V3.2 and GLM-5 attend to the ``index_topk`` tokens that an indexer selects. Up to
    so many tokens that is all of them, so longer contexts are not served and the indexer is
    not needed."""
    config = replace(deepseek_v3({**raw, "rope_interleave": True}), family=str(raw["model_type"]))
    limit = int(raw["index_topk"])
    if limit >= config.context:
        return config
    note = (
        f"context is {limit:,} (index_topk), not {config.context:,}: beyond it sparse attention"
        " would leave tokens out, which is not supported"
    )
    return replace(config, context=limit, note=note)


def _model(family: str, raw: Raw, experts: Experts) -> ModelConfig:
    mixer = _attention(raw)
    dense: FeedForward = Dense(int(raw["hidden_size"]), int(raw["intermediate_size"]))
    return decoder(
        family,
        raw,
        [LayerConfig(mixer, experts if sparse else dense) for sparse in _sparse_layers(raw)],
    )


def _sparse_layers(raw: Raw) -> list[bool]:
    count = int(raw["num_hidden_layers"])
    if raw.get("moe_layer_freq", 1) != 1:
        raise ModelError("moe_layer_freq: only 1 is supported, experts in every layer")
    kinds = raw.get("mlp_layer_types")
    if kinds is not None:
        if len(kinds) != count or not set(kinds) <= {"dense", "sparse"}:
            raise ModelError(f"mlp_layer_types: needs 'dense' or 'sparse' for {count} layers")
        return [kind == "sparse" for kind in kinds]
    dense = int(raw.get("first_k_dense_replace") or 0)
    return [index >= dense for index in range(count)]


def _attention(raw: Raw) -> LatentAttention:
    plain, rotary = int(raw["qk_nope_head_dim"]), int(raw["qk_rope_head_dim"])
    rank, query_rank = int(raw["kv_lora_rank"]), raw.get("q_lora_rank")
    for field in ("qk_nope_head_dim", "qk_rope_head_dim", "kv_lora_rank", "q_lora_rank"):
        if int(raw.get(field) or 0) % 2:
            raise ModelError(f"{field}: {raw[field]} is odd; only even sizes are supported")
    return LatentAttention(
        hidden=int(raw["hidden_size"]),
        heads=int(raw["num_attention_heads"]),
        query_rank=None if query_rank is None else int(query_rank),
        rank=rank,
        plain=plain,
        value=int(raw["v_head_dim"]),
        rope=read_rope(raw, rotary),
        scale=(plain + rotary) ** -0.5 * yarn_scale(raw),
        eps=_LATENT_EPS,
        interleaved=bool(raw.get("rope_interleave", True)),
    )


def _experts(raw: Raw, routing: Routing, biased: bool) -> Experts:
    count, inner = int(raw["n_routed_experts"]), int(raw["moe_intermediate_size"])
    if count % routing.groups:
        raise ModelError(f"n_group: {count} experts do not divide into {routing.groups} groups")
    if routing.top_groups > routing.groups:
        raise ModelError(f"topk_group: {routing.top_groups} is more than {routing.groups} groups")
    if routing.top_k > count // routing.groups * routing.top_groups:
        raise ModelError(
            f"num_experts_per_tok: {routing.top_k} is more than {routing.top_groups} groups have"
        )
    shared = inner * int(raw.get("n_shared_experts") or 0)
    return Experts(int(raw["hidden_size"]), inner, count, routing, shared, biased)


def _softmax_routing(raw: Raw) -> Routing:
    method = raw.get("topk_method", "greedy")
    if method not in ("greedy", "group_limited_greedy"):
        raise ModelError(f"topk_method: {method!r} is not greedy or group_limited_greedy")
    if raw.get("norm_topk_prob"):
        raise ModelError("norm_topk_prob: true is not supported; implementations disagree on it")
    routing = Routing(
        top_k=top_k_of(raw, int(raw["n_routed_experts"])),
        normalize=False,
        scale=float(raw.get("routed_scaling_factor", 1.0)),
    )
    if method == "greedy":
        return routing
    return replace(routing, groups=int(raw["n_group"]), top_groups=int(raw["topk_group"]))


def _sigmoid_routing(raw: Raw) -> Routing:
    for field, only in (("scoring_func", "sigmoid"), ("topk_method", "noaux_tc")):
        if raw.get(field, only) != only:
            raise ModelError(f"{field}: {raw[field]!r} is not supported; only {only!r} is")
    return Routing(
        top_k=top_k_of(raw, int(raw["n_routed_experts"])),
        normalize=bool(raw.get("norm_topk_prob", True)),
        sigmoid=True,
        groups=int(raw.get("n_group") or 1),
        top_groups=int(raw.get("topk_group") or 1),
        group_best=2,
        scale=float(raw.get("routed_scaling_factor", 2.5)),
    )
