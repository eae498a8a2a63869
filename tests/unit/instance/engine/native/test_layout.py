from __future__ import annotations

import math
from itertools import pairwise

import pytest

from alipes.instance.engine.native.config import FeedForward, LayerConfig, ModelConfig
from alipes.instance.engine.native.feed_forward import Dense, Experts
from alipes.instance.engine.native.layout import ALIGN
from alipes.instance.engine.native.mixers.attention import Attention
from alipes.instance.engine.native.rope import Rope
from alipes.instance.engine.native.shape import pack_layout
from alipes.kernels.routing import Routing

KINDS: tuple[FeedForward, ...] = (Experts(64, 48, 3, Routing(2, True)), Dense(64, 96))
MIXER = Attention(64, heads=4, kv_heads=2, dim=32, rope=Rope(32, 1e4), norm_eps=1e-6)
CONFIG = ModelConfig(
    family="qwen3_moe",
    hidden=64,
    vocab=301,
    context=512,
    eps=1e-6,
    tied=False,
    layers=tuple(LayerConfig(MIXER, kind) for kind in KINDS),
)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_tensors_are_aligned_and_do_not_overlap(dtype: str) -> None:
    layout = pack_layout(CONFIG, dtype)
    assert layout.tensors[0].offset == 0
    for before, after in pairwise(layout.tensors):
        assert before.offset + before.nbytes <= after.offset < before.offset + before.nbytes + ALIGN
        assert after.offset % ALIGN == 0
    last = layout.tensors[-1]
    assert last.offset + last.nbytes <= layout.nbytes < last.offset + last.nbytes + ALIGN


def test_parts_fill_their_tensor() -> None:
    for tensor in pack_layout(CONFIG, "float16").tensors:
        assert sum(math.prod(p.shape) for p in tensor.parts) == math.prod(tensor.shape)


def test_layers_are_dense_or_sparse_as_configured() -> None:
    layout = pack_layout(CONFIG, "float16")
    assert layout["layers.0.experts_gate_up"].shape == (3, 96, 64)
    assert layout["layers.0.experts_down"].shape == (3, 64, 48)
    assert layout["layers.1.gate_up"].shape == (192, 64)
    assert layout["layers.1.qkv"].shape == ((4 + 2 * 2) * 32, 64)
    assert layout["head"].shape == (301, 64)


def test_norms_and_routers_stay_float32() -> None:
    layout = pack_layout(CONFIG, "float16")
    for name in ("norm", "layers.0.router", "layers.1.q_norm", "layers.1.mlp_norm"):
        assert layout[name].dtype == "float32"
    assert layout["layers.0.qkv"].dtype == "float16"
