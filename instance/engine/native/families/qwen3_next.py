"""Qwen3-Next and the text models of Qwen3.5: most layers are gated delta nets, every few attend."""

from __future__ import annotations

from typing import Any

from alipes.instance.engine.native.config import (
    FeedForward,
    LayerConfig,
    Mixer,
    ModelConfig,
    ModelError,
)
from alipes.instance.engine.native.families.fields import Raw, decoder, norm_eps, read_rope
from alipes.instance.engine.native.families.llama import dense, experts, layer_count, sparse_layers
from alipes.instance.engine.native.feed_forward import SharedExpert
from alipes.instance.engine.native.mixers.attention import Attention
from alipes.instance.engine.native.mixers.gated_delta import GatedDelta


def qwen3_next(raw: Raw) -> ModelConfig:
    raw = {"norm_topk_prob": True} | dict(raw)
    sparse = sparse_layers(raw)
    kinds: dict[bool, FeedForward] = {False: dense(raw)}
    if sparse:
        kinds[True] = _shared(raw)
    halves = [kinds[index in sparse] for index in range(layer_count(raw))]
    return _hybrid("qwen3_next", raw, halves, fused=True)


def qwen3_5(raw: Raw) -> ModelConfig:
    return _hybrid("qwen3_5", raw, [dense(raw)] * layer_count(raw), fused=False)


def qwen3_5_moe(raw: Raw) -> ModelConfig:
    shared = _shared(dict(raw) | {"norm_topk_prob": True})
    return _hybrid("qwen3_5_moe", raw, [shared] * layer_count(raw), fused=False)


def _hybrid(family: str, raw: Raw, halves: list[FeedForward], fused: bool) -> ModelConfig:
    mixers: dict[str, Mixer] = {
        "full_attention": _attention(raw),
        "linear_attention": _delta(raw, fused),
    }
    kinds = _layer_types(raw, len(halves))
    layers = [LayerConfig(mixers[kind], half) for kind, half in zip(kinds, halves, strict=True)]
    return decoder(family, raw, layers, centred=True)


def _layer_types(raw: Raw, layers: int) -> list[str]:
    every = int(raw.get("full_attention_interval", 4))
    usual = ["linear_attention" if (i + 1) % every else "full_attention" for i in range(layers)]
    types = list(raw.get("layer_types") or usual)
    if len(types) != layers:
        raise ModelError(f"layer_types: it names {len(types)} layers of {layers}")
    for kind in types:
        if kind not in ("linear_attention", "full_attention"):
            reason = "only 'linear_attention' and 'full_attention' are"
            raise ModelError(f"layer_types: {kind!r} is not supported; {reason}")
    return types


def _attention(raw: Raw) -> Attention:
    dim = int(raw["head_dim"])
    nested = raw.get("rope_parameters") or {}
    share: Any = nested.get("partial_rotary_factor", raw.get("partial_rotary_factor", 0.25))
    return Attention(
        hidden=int(raw["hidden_size"]),
        heads=int(raw["num_attention_heads"]),
        kv_heads=int(raw["num_key_value_heads"]),
        dim=dim,
        rope=read_rope(raw, int(dim * float(share))),
        norm_eps=norm_eps(raw),
        gated=True,
        centred=True,
    )


def _delta(raw: Raw, fused: bool) -> GatedDelta:
    return GatedDelta(
        hidden=int(raw["hidden_size"]),
        key_heads=int(raw["linear_num_key_heads"]),
        heads=int(raw["linear_num_value_heads"]),
        key_size=int(raw["linear_key_head_dim"]),
        size=int(raw["linear_value_head_dim"]),
        width=int(raw["linear_conv_kernel_dim"]),
        eps=norm_eps(raw),
        fused=fused,
    )


def _shared(raw: Raw) -> SharedExpert:
    return SharedExpert(experts(raw), int(raw["shared_expert_intermediate_size"]))
