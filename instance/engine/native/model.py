"""The decoder of Llama, Qwen3 and Qwen3-MoE over paged KV: views and one forward pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from alipes.instance.engine.native.batch import Batch
from alipes.instance.engine.native.config import ModelConfig
from alipes.instance.engine.native.shape import ModelShape
from alipes.instance.engine.native.weights import view
from alipes.kernels.shapes import Workspace
from alipes.kernels.table import Kernels

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class Layer:
    """Views of one layer. ``pool`` (slots, 2, K, D) holds keys and values."""

    pool: Tensor
    weights: Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class Shell:
    """A model without bytes of its own: views into the arena and rotary angles. Kept when the
    model leaves the device and used again when it is back at the same addresses."""

    config: ModelConfig
    embed: Tensor
    layers: tuple[Layer, ...]
    norm: Tensor
    head: Tensor
    angles: Tensor


def build_shell(
    shape: ModelShape, weights: Tensor, kv: Tensor, slots: int, angles: Tensor
) -> Shell:
    """Bind views to the regions ``weights`` and ``kv``, both uint8; ``slots`` a layer."""
    named = {packed.name: view(weights, packed) for packed in shape.layout.tensors}
    layers, at = [], 0
    for index, state in enumerate(shape.states):
        nbytes = slots * state.token_bytes
        pool = kv[at : at + nbytes].view(getattr(torch, state.dtype))
        at += nbytes
        prefix = f"layers.{index}."
        own = {k.removeprefix(prefix): t for k, t in named.items() if k.startswith(prefix)}
        layers.append(Layer(pool.view(slots, 2, state.heads, state.dim), own))
    head = named.get("head", named["embed"])
    return Shell(shape.config, named["embed"], tuple(layers), named["norm"], head, angles)


def rotary_angles(config: ModelConfig, context: int, device: torch.device) -> Tensor:
    """(context, D/2) complex64: exp(i * position * frequency)."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    phases = torch.outer(torch.arange(context).float(), 1.0 / config.rope_theta**exponents)
    return torch.polar(torch.ones_like(phases), phases).to(device)


def forward(shell: Shell, batch: Batch, kernels: Kernels, workspace: Workspace) -> Tensor:
    """Write the batch's KV and return logits (draws, vocab) float32."""
    config = shell.config
    x = shell.embed.index_select(0, batch.tokens).float()
    angles = shell.angles.index_select(0, batch.positions)
    for layer in shell.layers:
        qkv = _project(config, layer, x, angles, kernels, workspace)
        q, kv = qkv.tensor_split((config.heads,), dim=1)
        kv = kv.view(-1, 2, config.kv_heads, config.head_dim)
        kernels.write_kv(layer.pool, batch.slots, kv)
        is_last = layer is shell.layers[-1]
        if is_last and not batch.draws:
            return x.new_empty(0, config.vocab)
        attended = kernels.attend(q, kv, layer.pool, batch.segments, workspace)
        if is_last and batch.last is not None:
            # Nothing reads what the other rows would become.
            x, attended = x.index_select(0, batch.last), attended.index_select(0, batch.last)
        x.add_(kernels.linear(attended, layer.weights["out"], workspace))
        x.add_(_feed_forward(config, layer, x, kernels, workspace))
    x = kernels.rms_norm(x, shell.norm, config.eps)
    return kernels.linear(x, shell.head, workspace)


def _project(
    config: ModelConfig,
    layer: Layer,
    x: Tensor,
    angles: Tensor,
    kernels: Kernels,
    workspace: Workspace,
) -> Tensor:
    """(n, H + 2K, D): queries and keys, normalized where the family does and rotated, values."""
    weights, rotated = layer.weights, config.heads + config.kv_heads
    normed = kernels.rms_norm(x, weights["attn_norm"], config.eps)
    qkv = kernels.linear(normed, weights["qkv"], workspace)
    qkv = qkv.view(len(x), -1, config.head_dim)
    if config.qk_norm:
        q, k = qkv[:, : config.heads], qkv[:, config.heads : rotated]
        q.copy_(kernels.rms_norm(q, weights["q_norm"], config.eps))
        k.copy_(kernels.rms_norm(k, weights["k_norm"], config.eps))
    kernels.rope(qkv[:, :rotated], angles)
    return qkv


def _feed_forward(
    config: ModelConfig, layer: Layer, x: Tensor, kernels: Kernels, workspace: Workspace
) -> Tensor:
    weights = layer.weights
    normed = kernels.rms_norm(x, weights["mlp_norm"], config.eps)
    if "router" not in weights:
        inner = kernels.silu_mul(kernels.linear(normed, weights["gate_up"], workspace))
        return kernels.linear(inner, weights["down"], workspace)
    assert config.experts is not None
    routing = kernels.route(
        normed, weights["router"], config.experts.top_k, config.experts.normalize
    )
    stacks = weights["experts_gate_up"], weights["experts_down"]
    return kernels.experts(normed, *routing, *stacks, workspace)
