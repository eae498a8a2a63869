"""Llama, Qwen3 and Qwen3-MoE: grouped queries, dense or with experts in some layers."""

from __future__ import annotations

from alipes.instance.engine.native.config import FeedForward, LayerConfig, ModelConfig
from alipes.instance.engine.native.families.fields import (
    Raw,
    decoder,
    norm_eps,
    read_rope,
    top_k_of,
)
from alipes.instance.engine.native.feed_forward import Dense, Experts
from alipes.instance.engine.native.mixers.attention import Attention
from alipes.kernels.routing import Routing


def llama(raw: Raw) -> ModelConfig:
    mixer = _attention(raw, qk_norm=False)
    return decoder("llama", raw, [LayerConfig(mixer, dense(raw))] * layer_count(raw))


def qwen3(raw: Raw) -> ModelConfig:
    mixer = _attention(raw, qk_norm=True)
    return decoder("qwen3", raw, [LayerConfig(mixer, dense(raw))] * layer_count(raw))


def qwen3_moe(raw: Raw) -> ModelConfig:
    mixer, sparse = _attention(raw, qk_norm=True), sparse_layers(raw)
    kinds: dict[bool, FeedForward] = {False: dense(raw), True: experts(raw)}
    layers = [LayerConfig(mixer, kinds[index in sparse]) for index in range(layer_count(raw))]
    return decoder("qwen3_moe", raw, layers)


def layer_count(raw: Raw) -> int:
    return int(raw["num_hidden_layers"])


def _attention(raw: Raw, qk_norm: bool) -> Attention:
    hidden, heads = int(raw["hidden_size"]), int(raw["num_attention_heads"])
    dim = int(raw.get("head_dim") or hidden // heads)
    return Attention(
        hidden=hidden,
        heads=heads,
        kv_heads=int(raw.get("num_key_value_heads") or heads),
        dim=dim,
        rope=read_rope(raw, dim),
        norm_eps=norm_eps(raw) if qk_norm else None,
    )


def dense(raw: Raw) -> Dense:
    return Dense(int(raw["hidden_size"]), int(raw["intermediate_size"]))


def experts(raw: Raw) -> Experts:
    count = _count(raw)
    return Experts(
        hidden=int(raw["hidden_size"]),
        intermediate=int(raw["moe_intermediate_size"]),
        count=count,
        routing=Routing(top_k_of(raw, count), bool(raw.get("norm_topk_prob", False))),
    )


def _count(raw: Raw) -> int:
    return int(raw["num_local_experts"] if "num_local_experts" in raw else raw["num_experts"])


def sparse_layers(raw: Raw) -> set[int]:
    step, without = int(raw.get("decoder_sparse_step", 1)), set(raw.get("mlp_only_layers") or ())
    layers = range(layer_count(raw)) if _count(raw) else range(0)
    return {index for index in layers if index not in without and (index + 1) % step == 0}
