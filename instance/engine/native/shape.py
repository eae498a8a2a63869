"""What a model looks like in memory: its tensors, its states, its scratch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from alipes.instance.contract import ModelSettings
from alipes.instance.engine.native.checkpoint import check_weights
from alipes.instance.engine.native.config import ModelConfig, ModelError
from alipes.instance.engine.native.families.read import read_config
from alipes.instance.engine.native.layout import Layout, Packer, Part
from alipes.instance.engine.native.parallel.share import WHOLE, Share
from alipes.instance.memory.plan import Footprint
from alipes.instance.memory.specs import DTYPE_BYTES, StateSpec, held_as, paged

WEIGHT_DTYPES: Final = ("float16", "float32")
KV_DTYPES: Final = ("float16", "float32")


@dataclass(frozen=True, slots=True)
class ModelShape:
    """All about a model that its memory depends on. ``states`` holds one spec a layer."""

    config: ModelConfig
    dtype: str
    layout: Layout
    states: tuple[StateSpec, ...]

    @property
    def narrow_kv(self) -> bool:
        """Whether paged state has fewer bits than what is computed."""
        return any(state.dtype != "float32" for state in paged(self.states))

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


def kv_dtype_on(device: str, kv_dtype: str, dtype: str) -> str:
    """What ``auto`` stands for, given the device and the dtype of weights. CPUs attend in float32
    and would convert anything else anew for every step; on CUDA reading it is what takes time."""
    if kv_dtype != "auto":
        return kv_dtype
    return "float16" if device.startswith("cuda") and dtype == "float16" else "float32"


def read_shape(
    folder: Path, dtype: str, share: Share = WHOLE, kv_dtype: str = "float32"
) -> ModelShape:
    """Read ``config.json`` and the safetensors headers: what a rank has of the model, whose paged
    state is of ``kv_dtype``. Raises ``ModelError``."""
    for field, one, known in (("dtype", dtype, WEIGHT_DTYPES), ("kv_dtype", kv_dtype, KV_DTYPES)):
        if one not in known:
            raise ModelError(f"{field}: {one!r} is not one of {', '.join(known)}")
    shape = shape_of(read_config(folder).divided(share), dtype, kv_dtype)
    check_weights(folder, shape.layout)
    return shape


def shape_on(device: str, model: ModelSettings, share: Share = WHOLE) -> ModelShape:
    """What a rank of an instance on ``device`` has of its model. Raises ``ModelError``."""
    kv_dtype = kv_dtype_on(device, model.kv_dtype, model.dtype)
    return read_shape(Path(model.folder), model.dtype, share, kv_dtype)


def shape_of(config: ModelConfig, dtype: str, kv_dtype: str = "float32") -> ModelShape:
    states = held_as(config.states, kv_dtype)
    return ModelShape(config, dtype, pack_layout(config, dtype), states)


def pack_layout(config: ModelConfig, dtype: str) -> Layout:
    """The packed tensors in the order in which a forward pass reads them."""
    packer = Packer(dtype)

    def norm(source: str) -> Part:
        return Part(source, (config.hidden,), plus=float(config.centred))

    table = Part("model.embed_tokens.weight", (config.vocab, config.hidden))
    # A step reads an embedding's rows alone, unless the output layer is the same.
    packer.matrix("embed", table, read=float(config.tied))
    for index, layer in enumerate(config.layers):
        source = f"model.layers.{index}."
        with packer.under(f"layers.{index}."):
            packer.exact("mixer_norm", norm(source + "input_layernorm.weight"))
            layer.mixer.pack(packer, source)
            packer.exact("mlp_norm", norm(source + "post_attention_layernorm.weight"))
            layer.feed_forward.pack(packer, source)
    packer.exact("norm", norm("model.norm.weight"))
    if not config.tied:
        packer.matrix("head", Part("lm_head.weight", (config.vocab, config.hidden)))
    return packer.layout()


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
    """One layer's paged state of a full context in float32, for block tables that are scattered
    and for state of another dtype."""
    tokens = -(-shape.config.context // block_tokens) * block_tokens
    sizes = (state.token_bytes // DTYPE_BYTES[state.dtype] for state in paged(shape.states))
    return tokens * max(sizes, default=0)


def step_bytes(shape: ModelShape) -> int:
    """Weights that one decode iteration of one call reads."""
    return int(sum(tensor.nbytes * tensor.read for tensor in shape.layout.tensors))
