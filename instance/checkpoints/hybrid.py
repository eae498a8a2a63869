"""What random models have besides where most layers are gated delta nets: the last layer attends,
and all others have a recurrent state."""

from __future__ import annotations

from typing import Final

from alipes.instance.checkpoints.sizes import Size

FUSED: Final = ("qwen3-next",)
FAMILIES: Final = (*FUSED, "qwen3.5")
_WIDTH: Final = 4
_ROTARY: Final = 0.25

Tensors = dict[str, tuple[int, ...]]


def config_fields(size: Size, theta: float) -> dict[str, object]:
    kinds = ["linear_attention"] * (size.layers - 1) + ["full_attention"]
    rope = {"rope_type": "default", "rope_theta": theta, "partial_rotary_factor": _ROTARY}
    return {
        "layer_types": kinds,
        "linear_conv_kernel_dim": _WIDTH,
        "linear_key_head_dim": size.key_size,
        "linear_num_key_heads": size.kv_heads,
        "linear_num_value_heads": size.heads,
        "linear_value_head_dim": size.value_size,
        "partial_rotary_factor": _ROTARY,
        "rope_parameters": rope,
        "shared_expert_intermediate_size": size.expert_intermediate,
    }


def is_recurrent(size: Size, layer: int) -> bool:
    return layer < size.layers - 1


def delta_net(family: str, size: Size) -> Tensors:
    """Its matrices by key head in one, or apart, as the family stores them."""
    keys, values = size.kv_heads * size.key_size, size.heads * size.value_size
    rows = {"qkv": 2 * keys + values, "z": values, "b": size.heads, "a": size.heads}
    if family in FUSED:
        rows = {"qkvz": 2 * keys + 2 * values, "ba": 2 * size.heads}
    inputs = {f"in_proj_{name}.weight": (count, size.hidden) for name, count in rows.items()}
    net: Tensors = inputs | {
        "conv1d.weight": (2 * keys + values, 1, _WIDTH),
        "A_log": (size.heads,),
        "dt_bias": (size.heads,),
        "norm.weight": (size.value_size,),
        "out_proj.weight": (size.hidden, values),
    }
    return {"linear_attn." + name: shape for name, shape in net.items()}


def mean_of(name: str) -> float:
    """Of the elements of a vector. Norms but the delta net's are stored as what they are more
    than one. States live from a few tokens to a few hundred."""
    if name.endswith("A_log"):
        return -3.0
    if name.endswith(("linear_attn.norm.weight", "dt_bias", "q_norm.weight")):
        return 1.0
    return 0.0


def spread_of(name: str) -> float:
    return 1.5 if name.endswith("A_log") else 0.1
