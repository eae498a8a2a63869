"""Fields that ``config.json`` files of many families share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from alipes.instance.engine.native.config import LayerConfig, ModelConfig, ModelError
from alipes.instance.engine.native.rope import Rope

Raw = Mapping[str, Any]


def decoder(
    family: str, raw: Raw, layers: Sequence[LayerConfig], centred: bool = False
) -> ModelConfig:
    """The fields that every decoder has, around ``layers``."""
    return ModelConfig(
        family=family,
        hidden=int(raw["hidden_size"]),
        vocab=int(raw["vocab_size"]),
        context=int(raw["max_position_embeddings"]),
        eps=norm_eps(raw),
        tied=bool(raw.get("tie_word_embeddings", False)),
        layers=tuple(layers),
        centred=centred,
    )


def norm_eps(raw: Raw) -> float:
    return float(raw.get("rms_norm_eps", 1e-6))


def refuse_unsupported(raw: Raw) -> None:
    for field in ("attention_bias", "mlp_bias", "use_sliding_window"):
        if raw.get(field):
            raise ModelError(f"{field}: true is not supported; only models without it are")
    activation = raw.get("hidden_act", "silu")
    if activation != "silu":
        raise ModelError(f"hidden_act: {activation!r} is not supported; only 'silu' is")


def read_rope(raw: Raw, dim: int) -> Rope:
    """Newer files nest theta in ``rope_parameters``; older ones have it beside
    ``rope_scaling``."""
    nested = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    kind = nested.get("rope_type", nested.get("type", "default"))
    if kind != "default":
        raise ModelError(f"rope scaling {kind!r} is not supported; only 'default' is")
    theta: Any = nested.get("rope_theta", raw.get("rope_theta", 10000.0))
    return Rope(dim, float(theta))


def top_k_of(raw: Raw, experts: int) -> int:
    top_k = int(raw["num_experts_per_tok"])
    if top_k > experts:
        raise ModelError(f"num_experts_per_tok: {top_k} is more than the {experts} experts")
    return top_k
