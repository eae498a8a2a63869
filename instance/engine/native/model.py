"""Any decoder: views of its weights and states, and one forward pass through its layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from alipes.instance.engine.native.batch import Batch
from alipes.instance.engine.native.config import LayerConfig, ModelConfig
from alipes.instance.engine.native.passes import Pass
from alipes.instance.engine.native.rope import Rope
from alipes.instance.engine.native.shape import ModelShape
from alipes.instance.engine.native.states import bind_states
from alipes.instance.engine.native.weights import view
from alipes.instance.memory.plan import ModelPlan
from alipes.kernels.shapes import Workspace
from alipes.kernels.table import Kernels

Tensor = torch.Tensor
Angles = Mapping[Rope, Tensor]


@dataclass(frozen=True, slots=True)
class Layer:
    """Views of one layer; ``state`` is what its spec says (``bind_states``)."""

    config: LayerConfig
    state: tuple[Tensor, ...]
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
    angles: Angles


def build_shell(
    shape: ModelShape,
    weights: Tensor,
    kv: Tensor,
    plan: ModelPlan,
    block_tokens: int,
    angles: Angles,
) -> Shell:
    """Bind views to the regions ``weights`` and ``kv``, both uint8."""
    named = {packed.name: view(weights, packed) for packed in shape.layout.tensors}
    states = bind_states(shape.states, kv, plan, block_tokens)
    layers = []
    for index, (config, state) in enumerate(zip(shape.config.layers, states, strict=True)):
        prefix = f"layers.{index}."
        own = {k.removeprefix(prefix): t for k, t in named.items() if k.startswith(prefix)}
        layers.append(Layer(config, state, own))
    head = named.get("head", named["embed"])
    return Shell(shape.config, named["embed"], tuple(layers), named["norm"], head, angles)


def rotary_angles(config: ModelConfig, context: int, device: torch.device) -> Angles:
    """(context, dim / 2) complex64 for every rotary embedding of the model: exp(i * position *
    frequency), times the magnitude of a stretched one."""
    ropes = {layer.mixer.rope for layer in config.layers}
    return {rope: _angles(rope, context).to(device) for rope in ropes if rope is not None}


def _angles(rope: Rope, context: int) -> Tensor:
    exponents = torch.arange(0, rope.dim, 2, dtype=torch.float32) / rope.dim
    frequencies, magnitude = 1.0 / rope.theta**exponents, 1.0
    if rope.yarn is not None:
        first, last = rope.ramp
        # A ramp without length is a step.
        slope = (torch.arange(rope.dim // 2) - first) / max(last - first, 1e-3)
        slow = slope.clamp(0, 1)
        frequencies = frequencies / rope.yarn.factor * slow + frequencies * (1 - slow)
        magnitude = rope.yarn.magnitude
    phases = torch.outer(torch.arange(context).float(), frequencies)
    return torch.polar(torch.full_like(phases, magnitude), phases)


def begin_pass(
    shell: Shell,
    batch: Batch,
    kernels: Kernels,
    workspace: Workspace,
    reduce: Callable[[Tensor], None] | None = None,
) -> Pass:
    angles = {rope: all_.index_select(0, batch.positions) for rope, all_ in shell.angles.items()}
    return Pass(batch, angles, kernels, workspace, reduce=reduce)


def forward(shell: Shell, step: Pass) -> Tensor:
    """Write the batch's paged state, note its recurrent state for ``step.commit`` and return
    logits (draws, vocab) float32."""
    config, batch, kernels = shell.config, step.batch, step.kernels
    x = shell.embed.index_select(0, batch.tokens).float()
    for layer in shell.layers:
        weights = layer.weights
        normed = kernels.rms_norm(x, weights["mixer_norm"], config.eps)
        # Behind the last layer's state nothing reads what the other rows would become.
        rows = batch.last if layer is shell.layers[-1] else None
        mixed = layer.config.mixer.forward(normed, layer.state, weights, step, rows)
        if rows is not None:
            x = x.index_select(0, rows)
        if not len(x):
            return x.new_empty(0, config.vocab)
        x.add_(step.summed(mixed))
        normed = kernels.rms_norm(x, weights["mlp_norm"], config.eps)
        x.add_(step.summed(layer.config.feed_forward.forward(normed, weights, step)))
    x = kernels.rms_norm(x, shell.norm, config.eps)
    return kernels.linear(x, shell.head, step.workspace)
