"""What a decode step reads, and when a set of models has no round."""

from __future__ import annotations

from pathlib import Path

import pytest

from alipes.instance.memory.plan import read_shape
from alipes.planner.cold_set import DecodeStep, decode_step, infeasible, step_bytes

VOCAB, HIDDEN = 49152, 64


def test_a_dense_step_reads_all_but_an_embedding_of_its_own(
    tiny_folders: dict[str, Path],
) -> None:
    shape = read_shape(tiny_folders["qwen3"], "float16")
    assert not shape.config.tied
    total = sum(tensor.nbytes for tensor in shape.layout.tensors)
    assert step_bytes(shape) == total - VOCAB * HIDDEN * 2


def test_a_tied_embedding_is_read_as_the_output_layer(smollm2_folder: Path) -> None:
    shape = read_shape(smollm2_folder, "float16")
    assert shape.config.tied
    assert step_bytes(shape) == sum(tensor.nbytes for tensor in shape.layout.tensors)


def test_a_sparse_step_reads_the_experts_that_it_visits(tiny_folders: dict[str, Path]) -> None:
    shape = read_shape(tiny_folders["qwen3-moe"], "float16")
    # Four experts of three 64 x 64 float16 matrices in each of two layers; two are visited.
    unvisited = 2 * 2 * 3 * HIDDEN * 64 * 2
    total = sum(tensor.nbytes for tensor in shape.layout.tensors)
    assert step_bytes(shape) == total - VOCAB * HIDDEN * 2 - unvisited


def test_the_file_overrides_the_estimate(tiny_folders: dict[str, Path]) -> None:
    shape = read_shape(tiny_folders["qwen3"], "float16")
    assert decode_step("m", shape, 0.2, 1e9).seconds == 0.2
    assert decode_step("m", shape, None, 1e9).seconds == pytest.approx(step_bytes(shape) / 1e9)


def test_steps_must_leave_room_under_the_cadence() -> None:
    steps = {name: DecodeStep(name, 0.2, "measured") for name in "ab"}
    assert infeasible("cold-0", steps, 0.41) == ""
    reason = infeasible("cold-0", steps, 0.4)
    assert "instances.cold-0" in reason
    assert "a 0.200 s (measured), b 0.200 s (measured)" in reason
    assert "targets.tpot of 0.4 s" in reason
