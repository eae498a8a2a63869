"""What a model of a family looks like in memory: its tensors, its states, its scratch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from alipes.instance.engine.native.checkpoint import check_weights
from alipes.instance.engine.native.config import ModelConfig, ModelError, read_config
from alipes.instance.engine.native.layout import Layout, pack_layout
from alipes.instance.memory.plan import Footprint
from alipes.instance.memory.specs import DTYPE_BYTES, PagedKV

WEIGHT_DTYPES: Final = ("float16", "float32")


@dataclass(frozen=True, slots=True)
class ModelShape:
    """All about a model that its memory depends on. ``states`` holds one spec a layer."""

    config: ModelConfig
    dtype: str
    layout: Layout
    states: tuple[PagedKV, ...]

    def footprint(self, block_tokens: int) -> Footprint:
        """What the memory plan needs of it, in bytes."""
        elements = widen_elements(self) + gather_elements(self, block_tokens)
        return Footprint(
            weight_bytes=self.layout.nbytes,
            step_bytes=step_bytes(self),
            runtime_bytes=elements * DTYPE_BYTES["float32"],
            context=self.config.context,
            states=self.states,
        )


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


def step_bytes(shape: ModelShape) -> int:
    """Weights that one decode iteration of one call reads: all but the rows of an embedding
    that no output layer shares, and the experts that its token does not visit."""
    total = 0.0
    for tensor in shape.layout.tensors:
        if tensor.name == "embed" and not shape.config.tied:
            continue
        part = 1.0
        if shape.config.experts is not None and len(tensor.shape) == 3:
            part = shape.config.experts.top_k / shape.config.experts.count
        total += tensor.nbytes * part
    return int(total)
