"""``config.json`` of a Hugging Face folder as one frozen struct; no torch here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from alipes.instance.engine.protocol import EngineError

FAMILIES: Final = {
    "LlamaForCausalLM": "llama",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3_moe",
}


class ModelError(EngineError):
    """A model folder that cannot be served; the message names the file, field and remedy."""


@dataclass(frozen=True, slots=True)
class Experts:
    """A sparse feed-forward: each token goes through ``top_k`` of ``count`` experts."""

    count: int
    top_k: int
    intermediate: int
    normalize: bool


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shape of a decoder. ``sparse[i]`` tells whether layer i uses ``experts``."""

    family: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    context: int
    eps: float
    rope_theta: float
    qk_norm: bool
    tied: bool
    experts: Experts | None
    sparse: tuple[bool, ...]


def read_config(folder: Path) -> ModelConfig:
    """Raises ``ModelError`` when the file is missing, broken or asks for what we cannot do."""
    path = folder / "config.json"
    try:
        raw = json.loads(path.read_text())
    except FileNotFoundError:
        raise ModelError(f"{path} is missing: prepare the model first") from None
    except json.JSONDecodeError as error:
        raise ModelError(f"{path} is not JSON: {error}") from None
    try:
        return parse_config(raw)
    except KeyError as error:
        raise ModelError(f"{path}: field {error} is missing") from None
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from None


def parse_config(raw: Mapping[str, Any]) -> ModelConfig:
    """Raises ``KeyError`` for a missing field, ``ModelError`` for an unsupported value."""
    family = _family(raw)
    _refuse_unsupported(raw)
    heads = int(raw["num_attention_heads"])
    layers = int(raw["num_hidden_layers"])
    experts, sparse = _experts(raw, layers) if family == "qwen3_moe" else (None, (False,) * layers)
    return ModelConfig(
        family=family,
        layers=layers,
        hidden=int(raw["hidden_size"]),
        heads=heads,
        kv_heads=int(raw.get("num_key_value_heads") or heads),
        head_dim=int(raw.get("head_dim") or int(raw["hidden_size"]) // heads),
        intermediate=int(raw["intermediate_size"]),
        vocab=int(raw["vocab_size"]),
        context=int(raw["max_position_embeddings"]),
        eps=float(raw.get("rms_norm_eps", 1e-6)),
        rope_theta=_rope_theta(raw),
        qk_norm=family != "llama",
        tied=bool(raw.get("tie_word_embeddings", False)),
        experts=experts,
        sparse=sparse,
    )


def _family(raw: Mapping[str, Any]) -> str:
    names = raw.get("architectures") or []
    for name in names:
        if name in FAMILIES:
            return FAMILIES[name]
    model_type = raw.get("model_type")
    if not names and model_type in FAMILIES.values():
        return str(model_type)
    asked = ", ".join(names) or f"model_type {model_type!r}"
    raise ModelError(f"architectures: {asked} is not one of {', '.join(FAMILIES)}")


def _refuse_unsupported(raw: Mapping[str, Any]) -> None:
    for field in ("attention_bias", "mlp_bias", "use_sliding_window"):
        if raw.get(field):
            raise ModelError(f"{field}: true is not supported; only models without it are")
    activation = raw.get("hidden_act", "silu")
    if activation != "silu":
        raise ModelError(f"hidden_act: {activation!r} is not supported; only 'silu' is")


def _rope_theta(raw: Mapping[str, Any]) -> float:
    """Newer files nest theta in ``rope_parameters``; older ones have it beside
    ``rope_scaling``."""
    nested = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    kind = nested.get("rope_type", nested.get("type", "default"))
    if kind != "default":
        raise ModelError(f"rope scaling {kind!r} is not supported; only 'default' is")
    return float(nested.get("rope_theta", raw.get("rope_theta", 10000.0)))


def _experts(raw: Mapping[str, Any], layers: int) -> tuple[Experts, tuple[bool, ...]]:
    count = int(raw["num_local_experts"] if "num_local_experts" in raw else raw["num_experts"])
    top_k = int(raw["num_experts_per_tok"])
    if top_k > count:
        raise ModelError(f"num_experts_per_tok: {top_k} is more than the {count} experts")
    step = int(raw.get("decoder_sparse_step", 1))
    dense = set(raw.get("mlp_only_layers") or ())
    sparse = tuple(i not in dense and count > 0 and (i + 1) % step == 0 for i in range(layers))
    experts = Experts(
        count=count,
        top_k=top_k,
        intermediate=int(raw["moe_intermediate_size"]),
        normalize=bool(raw.get("norm_topk_prob", False)),
    )
    return experts, sparse
