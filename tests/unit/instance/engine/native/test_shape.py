from __future__ import annotations

from pathlib import Path

import pytest

from alipes.instance.engine.native.config import LayerConfig, ModelConfig, ModelError
from alipes.instance.engine.native.feed_forward import Dense
from alipes.instance.engine.native.mixers.attention import Attention
from alipes.instance.engine.native.rope import Rope
from alipes.instance.engine.native.shape import read_shape, shape_of
from alipes.instance.memory.specs import PagedKV, block_bytes, describe

VOCAB, HIDDEN = 49152, 64


def config(layers: int = 2, hidden: int = 64, context: int = 4096) -> ModelConfig:
    mixer = Attention(hidden, heads=4, kv_heads=2, dim=16, rope=Rope(16, 1e4), norm_eps=None)
    return ModelConfig(
        family="llama",
        hidden=hidden,
        vocab=1000,
        context=context,
        eps=1e-5,
        tied=True,
        layers=(LayerConfig(mixer, Dense(hidden, 2 * hidden)),) * layers,
    )


def test_sizes_are_exact() -> None:
    shape = shape_of(config(), "float16")
    matrices = 1000 * 64 + 2 * (128 * 64 + 64 * 64 + 256 * 64 + 64 * 128)
    norms = 5 * 64
    assert shape.layout.nbytes == 2 * matrices + 4 * norms
    assert shape.states == (PagedKV(2, 16),) * 2
    assert block_bytes(shape.states, 64) == 64 * 2 * 2 * 2 * 16 * 4
    # Scratch: the gate and up matrix widened, and a full context of one layer gathered.
    assert shape.footprint(64).runtime_bytes == 4 * (256 * 64) + 4096 * 2 * 2 * 16 * 4


def test_paged_state_is_of_the_dtype_that_is_asked_for() -> None:
    shape, full = (shape_of(config(), "float16", kv) for kv in ("float16", "float32"))
    assert (shape.narrow_kv, full.narrow_kv) == (True, False)
    assert shape.states == (PagedKV(2, 16, "float16"),) * 2
    assert 2 * block_bytes(shape.states, 64) == block_bytes(full.states, 64)
    # A context is gathered in float32.
    assert shape.footprint(64).runtime_bytes == full.footprint(64).runtime_bytes


def test_float32_needs_no_scratch_to_widen() -> None:
    assert shape_of(config(), "float32").footprint(64).runtime_bytes == 4096 * 2 * 2 * 16 * 4


def test_a_dense_step_reads_all_but_an_embedding_of_its_own(
    tiny_folders: dict[str, Path],
) -> None:
    shape = read_shape(tiny_folders["qwen3"], "float16")
    assert not shape.config.tied
    total = sum(tensor.nbytes for tensor in shape.layout.tensors)
    assert shape.footprint(64).step_bytes == total - VOCAB * HIDDEN * 2


def test_a_tied_embedding_is_read_as_the_output_layer(smollm2_folder: Path) -> None:
    shape = read_shape(smollm2_folder, "float16")
    assert shape.config.tied
    assert shape.footprint(64).step_bytes == sum(tensor.nbytes for tensor in shape.layout.tensors)


def test_a_sparse_step_reads_the_experts_that_it_visits(tiny_folders: dict[str, Path]) -> None:
    shape = read_shape(tiny_folders["qwen3-moe"], "float16")
    # Four experts of three 64 x 64 float16 matrices in each of two layers; two are visited.
    unvisited = 2 * 2 * 3 * HIDDEN * 64 * 2
    total = sum(tensor.nbytes for tensor in shape.layout.tensors)
    assert shape.footprint(64).step_bytes == total - VOCAB * HIDDEN * 2 - unvisited


def test_shapes_of_real_folders(tiny_folders: dict[str, Path], smollm2_folder: Path) -> None:
    for folder in tiny_folders.values():
        assert read_shape(folder, "float16").layout.nbytes > 0
    shape = read_shape(smollm2_folder, "float32")
    parameters = sum(tensor.nbytes // 4 for tensor in shape.layout.tensors)
    assert parameters == 134_515_008
    assert describe(shape.states) == "30*kv3x64:float32"


def test_an_unknown_dtype_is_refused(smollm2_folder: Path) -> None:
    with pytest.raises(ModelError, match="dtype: 'int4' is not one of float16, float32"):
        read_shape(smollm2_folder, "int4")
