from __future__ import annotations

import math
from itertools import pairwise

import pytest

from alipes.instance.engine.native.config import Experts, ModelConfig
from alipes.instance.engine.native.layout import ALIGN, pack_layout

CONFIG = ModelConfig(
    family="qwen3_moe",
    layers=2,
    hidden=64,
    heads=4,
    kv_heads=2,
    head_dim=32,
    intermediate=96,
    vocab=301,
    context=512,
    eps=1e-6,
    rope_theta=1e4,
    qk_norm=True,
    tied=False,
    experts=Experts(3, 2, 48, normalize=True),
    sparse=(True, False),
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
