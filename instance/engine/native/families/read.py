"""``config.json`` of a Hugging Face folder as a ``ModelConfig``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Final

from alipes.instance.engine.native.config import ModelConfig, ModelError
from alipes.instance.engine.native.families import deepseek, llama, qwen3_next
from alipes.instance.engine.native.families.fields import Raw, refuse_unsupported

FAMILIES: Final[dict[str, Callable[[Raw], ModelConfig]]] = {
    "LlamaForCausalLM": llama.llama,
    "Qwen3ForCausalLM": llama.qwen3,
    "Qwen3MoeForCausalLM": llama.qwen3_moe,
    "DeepseekV2ForCausalLM": deepseek.deepseek_v2,
    "DeepseekV3ForCausalLM": deepseek.deepseek_v3,
    "DeepseekV32ForCausalLM": deepseek.sparse_attention,
    "GlmMoeDsaForCausalLM": deepseek.sparse_attention,
    "Qwen3NextForCausalLM": qwen3_next.qwen3_next,
    "Qwen3_5ForCausalLM": qwen3_next.qwen3_5,
    "Qwen3_5MoeForCausalLM": qwen3_next.qwen3_5_moe,
}
_BY_TYPE: Final = {
    "llama": "LlamaForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "deepseek_v2": "DeepseekV2ForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "deepseek_v32": "DeepseekV32ForCausalLM",
    "glm_moe_dsa": "GlmMoeDsaForCausalLM",
    "qwen3_next": "Qwen3NextForCausalLM",
    "qwen3_5_text": "Qwen3_5ForCausalLM",
    "qwen3_5_moe_text": "Qwen3_5MoeForCausalLM",
}


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


def parse_config(raw: Raw) -> ModelConfig:
    """Raises ``KeyError`` for a missing field, ``ModelError`` for an unsupported value."""
    architecture = _architecture(raw)
    refuse_unsupported(raw)
    return FAMILIES[architecture](raw)


def _architecture(raw: Raw) -> str:
    names = raw.get("architectures") or []
    for name in names:
        if name in FAMILIES:
            return str(name)
    model_type = raw.get("model_type")
    if not names and model_type in _BY_TYPE:
        return _BY_TYPE[model_type]
    asked = ", ".join(names) or f"model_type {model_type!r}"
    raise ModelError(f"architectures: {asked} is not one of {', '.join(FAMILIES)}")
