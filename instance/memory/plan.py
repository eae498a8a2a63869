"""Who gets which bytes of an instance, worked out before anything is allocated.

The device arena, for the model that is active (Talaria 4.2)::

    0              weights        KV pool, layer by layer           runtime     device_bytes
    |--------------|--------------|---------------------------------|-----------|
    base of every model           grows with what weights leave     same for all models
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from alipes.instance.contract import InstanceSettings
from alipes.instance.engine.native.checkpoint import check_weights
from alipes.instance.engine.native.config import ModelConfig, ModelError, read_config
from alipes.instance.engine.native.layout import Layout, pack_layout
from alipes.instance.memory.specs import DTYPE_BYTES, PagedKV, StateSpec, block_bytes

PAGE: Final = 4096
WEIGHT_DTYPES: Final = ("float16", "float32")


@dataclass(frozen=True, slots=True)
class ModelShape:
    """All about a model that its memory depends on. ``states`` holds one spec a layer."""

    config: ModelConfig
    dtype: str
    layout: Layout
    states: tuple[StateSpec, ...]


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """One model on one instance, in bytes. ``context`` is what its KV pool can hold, at most
    the model's own. ``refusal`` is empty when the model fits, else says why not."""

    name: str
    weight_bytes: int
    block_bytes: int
    kv_blocks: int
    context: int
    refusal: str = ""

    @property
    def kv_bytes(self) -> int:
        return self.kv_blocks * self.block_bytes


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Offsets and sizes in bytes. Host memory holds a packed copy of every model's weights and,
    apart from that, ``host_bytes`` for saved calls."""

    device_bytes: int
    runtime_bytes: int
    host_bytes: int
    models: tuple[ModelPlan, ...]

    @property
    def runtime_offset(self) -> int:
        return (self.device_bytes - self.runtime_bytes) // PAGE * PAGE

    @property
    def host_weight_bytes(self) -> int:
        return sum(model.weight_bytes for model in self.models)

    @property
    def refusals(self) -> tuple[str, ...]:
        return tuple(model.refusal for model in self.models if model.refusal)


def read_shape(folder: Path, dtype: str) -> ModelShape:
    """Read ``config.json`` and the safetensors headers; raises ``ModelError``."""
    if dtype not in WEIGHT_DTYPES:
        raise ModelError(f"dtype: {dtype!r} is not one of {', '.join(WEIGHT_DTYPES)}")
    config = read_config(folder)
    layout = pack_layout(config, dtype)
    check_weights(folder, layout)
    return shape_of(config, dtype)


def shape_of(config: ModelConfig, dtype: str) -> ModelShape:
    state = PagedKV(config.kv_heads, config.head_dim)
    return ModelShape(config, dtype, pack_layout(config, dtype), (state,) * config.layers)


def widen_elements(shape: ModelShape) -> int:
    """Largest matrix that is widened at once; the vocabulary matrices go in pieces."""
    if shape.dtype == "float32":
        return 0
    sizes = []
    for tensor in shape.layout.tensors:
        if tensor.dtype == "float32" or tensor.name in ("embed", "head"):
            continue
        sizes.append(math.prod(tensor.shape[-2:]))
    return max(sizes)


def gather_elements(shape: ModelShape, block_tokens: int) -> int:
    """One layer's keys and values of a full context, for block tables that are scattered."""
    tokens = -(-shape.config.context // block_tokens) * block_tokens
    return max(tokens * 2 * state.heads * state.dim for state in shape.states)


def runtime_bytes(shape: ModelShape, block_tokens: int) -> int:
    elements = widen_elements(shape) + gather_elements(shape, block_tokens)
    return _pages(elements * DTYPE_BYTES["float32"])


def plan_instance(settings: InstanceSettings, shapes: Mapping[str, ModelShape]) -> MemoryPlan:
    """Divide the arena of one instance. Pure: a model that can never fit gets a ``refusal``."""
    size = settings.block_tokens
    runtime = max((runtime_bytes(shape, size) for shape in shapes.values()), default=0)
    plan = MemoryPlan(settings.device_bytes, runtime, settings.host_bytes, ())
    models = tuple(_plan_model(name, shape, settings, plan) for name, shape in shapes.items())
    return MemoryPlan(settings.device_bytes, runtime, settings.host_bytes, models)


def _plan_model(
    name: str, shape: ModelShape, settings: InstanceSettings, plan: MemoryPlan
) -> ModelPlan:
    weights, block = shape.layout.nbytes, block_bytes(shape.states, settings.block_tokens)
    blocks = max(0, plan.runtime_offset - _pages(weights)) // block
    context = min(shape.config.context, blocks * settings.block_tokens)
    # A call needs room for one prefill chunk and the token after it; less serves nobody.
    least = min(shape.config.context, settings.prefill_chunk + 1)
    needed = -(-least // settings.block_tokens) * block
    refusal = ""
    if context < least:
        total = _pages(weights) + needed + plan.runtime_bytes + PAGE
        refusal = (
            f"model {name} on {settings.name} needs {total:,} bytes (weights {weights:,}, KV for "
            f"{least} tokens {needed:,}, runtime {plan.runtime_bytes:,}) but device_bytes is "
            f"{settings.device_bytes:,}: raise it or leave the model out"
        )
    return ModelPlan(name, weights, block, blocks, context, refusal)


def _pages(nbytes: int) -> int:
    return -(-nbytes // PAGE) * PAGE
