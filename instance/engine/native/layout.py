"""Where each packed tensor of a model lies in its weights region; pure arithmetic, no torch.

The packed form is what kernels read: query, key and value rows in one matrix, gate and up rows
in one matrix, experts stacked. The host copy and the arena hold the same bytes in this order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from alipes.instance.engine.native.config import ModelConfig
from alipes.instance.memory.specs import DTYPE_BYTES

ALIGN: Final = 64


@dataclass(frozen=True, slots=True)
class Part:
    """Rows that come from one checkpoint tensor. ``rotary`` rows are reordered from the
    half-split to the interleaved form of rotary embedding, ``heads`` heads at a time."""

    name: str
    shape: tuple[int, ...]
    rotary: bool = False


@dataclass(frozen=True, slots=True)
class Packed:
    """One tensor of the packed form: ``parts`` follow one another in row-major order."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    offset: int
    parts: tuple[Part, ...]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class Layout:
    tensors: tuple[Packed, ...]
    nbytes: int

    def __getitem__(self, name: str) -> Packed:
        return next(tensor for tensor in self.tensors if tensor.name == name)


class _Packer:
    def __init__(self, dtype: str) -> None:
        self.dtype = dtype
        self.tensors: list[Packed] = []
        self.end = 0

    def add(self, name: str, parts: tuple[Part, ...], shape: tuple[int, ...], dtype: str) -> None:
        packed = Packed(name, shape, dtype, self.end, parts)
        self.tensors.append(packed)
        self.end = -(-(self.end + packed.nbytes) // ALIGN) * ALIGN

    def matrix(self, name: str, *parts: Part) -> None:
        rows = sum(part.shape[0] for part in parts)
        self.add(name, parts, (rows, *parts[0].shape[1:]), self.dtype)

    def exact(self, name: str, part: Part) -> None:
        """Small tensors whose rounding would cost accuracy and save nothing stay float32."""
        self.add(name, (part,), part.shape, "float32")


def pack_layout(config: ModelConfig, dtype: str) -> Layout:
    """The packed tensors in the order in which a forward pass reads them."""
    packer = _Packer(dtype)
    packer.matrix("embed", Part("model.embed_tokens.weight", (config.vocab, config.hidden)))
    for index in range(config.layers):
        _attention(packer, config, f"layers.{index}.", f"model.layers.{index}.")
        if config.sparse[index]:
            _experts(packer, config, f"layers.{index}.", f"model.layers.{index}.mlp.")
        else:
            _dense(packer, config, f"layers.{index}.", f"model.layers.{index}.mlp.")
    packer.exact("norm", Part("model.norm.weight", (config.hidden,)))
    if not config.tied:
        packer.matrix("head", Part("lm_head.weight", (config.vocab, config.hidden)))
    return Layout(tuple(packer.tensors), packer.end)


def _attention(packer: _Packer, config: ModelConfig, to: str, source: str) -> None:
    hidden, dim = config.hidden, config.head_dim
    attn = source + "self_attn."
    packer.exact(to + "attn_norm", Part(source + "input_layernorm.weight", (hidden,)))
    packer.matrix(
        to + "qkv",
        Part(attn + "q_proj.weight", (config.heads * dim, hidden), rotary=True),
        Part(attn + "k_proj.weight", (config.kv_heads * dim, hidden), rotary=True),
        Part(attn + "v_proj.weight", (config.kv_heads * dim, hidden)),
    )
    if config.qk_norm:
        packer.exact(to + "q_norm", Part(attn + "q_norm.weight", (dim,), rotary=True))
        packer.exact(to + "k_norm", Part(attn + "k_norm.weight", (dim,), rotary=True))
    packer.matrix(to + "out", Part(attn + "o_proj.weight", (hidden, config.heads * dim)))
    packer.exact(to + "mlp_norm", Part(source + "post_attention_layernorm.weight", (hidden,)))


def _dense(packer: _Packer, config: ModelConfig, to: str, mlp: str) -> None:
    inner = (config.intermediate, config.hidden)
    gate, up = Part(mlp + "gate_proj.weight", inner), Part(mlp + "up_proj.weight", inner)
    packer.matrix(to + "gate_up", gate, up)
    packer.matrix(to + "down", Part(mlp + "down_proj.weight", inner[::-1]))


def _experts(packer: _Packer, config: ModelConfig, to: str, mlp: str) -> None:
    experts = config.experts
    assert experts is not None
    count, inner = experts.count, (experts.intermediate, config.hidden)
    packer.exact(to + "router", Part(mlp + "gate.weight", (count, config.hidden)))
    gate_up, down = [], []
    for expert in range(count):
        name = f"{mlp}experts.{expert}."
        gate_up += [Part(name + "gate_proj.weight", inner), Part(name + "up_proj.weight", inner)]
        down.append(Part(name + "down_proj.weight", inner[::-1]))
    stacked = (count, 2 * experts.intermediate, config.hidden)
    packer.add(to + "experts_gate_up", tuple(gate_up), stacked, packer.dtype)
    stacked = (count, config.hidden, experts.intermediate)
    packer.add(to + "experts_down", tuple(down), stacked, packer.dtype)
