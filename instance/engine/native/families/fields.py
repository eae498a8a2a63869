"""Fields that ``config.json`` files of many families share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from alipes.instance.engine.native.config import LayerConfig, ModelConfig, ModelError
from alipes.instance.engine.native.rope import Rope, Yarn, yarn_magnitude

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
    nested = _rope_fields(raw)
    theta: Any = nested.get("rope_theta", raw.get("rope_theta", 10000.0))
    return Rope(dim, float(theta), _yarn(raw, nested))


def yarn_scale(raw: Raw) -> float:
    """What multiplies attention scores beside YaRN's magnitudes (``mscale_all_dim``)."""
    nested = _rope_fields(raw)
    yarn, weight = _yarn(raw, nested), float(nested.get("mscale_all_dim") or 0)
    return yarn_magnitude(yarn.factor, weight) ** 2 if yarn is not None and weight else 1.0


def _rope_fields(raw: Raw) -> Raw:
    nested: Raw = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    return nested


def _yarn(raw: Raw, nested: Raw) -> Yarn | None:
    kind = nested.get("rope_type", nested.get("type", "default"))
    if kind == "default":
        return None
    if kind != "yarn":
        raise ModelError(f"rope scaling {kind!r} is not supported; only 'default' and 'yarn' are")
    original = int(nested["original_max_position_embeddings"])
    factor = float(nested.get("factor") or int(raw["max_position_embeddings"]) / original)
    magnitude: Any = nested.get("attention_factor")
    if magnitude is None:
        weights: tuple[Any, ...] = nested.get("mscale"), nested.get("mscale_all_dim")
        over, under = (float(w) for w in weights) if all(weights) else (1.0, 0.0)
        magnitude = yarn_magnitude(factor, over) / yarn_magnitude(factor, under)
    return Yarn(
        factor=factor,
        original=original,
        beta_fast=float(nested.get("beta_fast") or 32),
        beta_slow=float(nested.get("beta_slow") or 1),
        magnitude=float(magnitude),
        truncate=bool(nested.get("truncate", True)),
    )


def top_k_of(raw: Raw, experts: int) -> int:
    top_k = int(raw["num_experts_per_tok"])
    if top_k > experts:
        raise ModelError(f"num_experts_per_tok: {top_k} is more than the {experts} experts")
    return top_k
