"""The engine with weights that are staged, kept and moved, beside one that copies them all."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from alipes.instance.contract import InstanceSettings, ModelSettings, Pool, Sampling, Targets
from alipes.instance.engine.native.engine import NativeEngine
from alipes.instance.engine.native.staging import Switching
from alipes.instance.engine.protocol import BlockCopy, Draw, Recurrence, Row, Staged, SwitchReport
from alipes.instance.memory.mapped import can_exchange

NAMES = ("llama", "qwen3-moe", "qwen3-next")
PROMPT = np.random.default_rng(3).integers(0, 2000, 150).astype(np.int32)


def build(folders: dict[str, Path], switching: Switching) -> NativeEngine:
    settings = InstanceSettings(
        name="i0",
        pool=Pool.COLD,
        models=tuple(ModelSettings(name, str(folders[name]), "float32") for name in NAMES),
        targets=Targets(),
        endpoint="",
        device_bytes=72 << 20,
        host_bytes=1 << 20,
    )
    return NativeEngine(settings, switching)


@pytest.fixture(params=[Switching.GATHER, Switching.REMAP])
def staged(request: pytest.FixtureRequest, tiny_folders: dict[str, Path]) -> Iterator[NativeEngine]:
    if request.param is Switching.REMAP and not can_exchange():
        pytest.skip("pages cannot be moved here")
    engine = build(tiny_folders, request.param)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def expected(tiny_folders: dict[str, Path]) -> dict[str, list[int]]:
    """What each model answers where every switch copies from the host."""
    engine = build(tiny_folders, Switching.H2D)
    answers = {}
    for name in NAMES:
        assert engine.activate(name).path == "h2d"
        answers[name] = answer(engine, name, None)
    engine.close()
    return answers


def answer(engine: NativeEngine, name: str, following: str | None, first: int = 0) -> list[int]:
    """Six tokens, in blocks from ``first`` on, while the next model is staged."""
    ids, start = PROMPT, 0
    slots = next(report.slots for report in engine.reports if report.name == name)
    blocks = range(first, first + 3)
    for count in range(6):
        recurrence = Recurrence(0 if count else None, 0) if slots else None
        draw = Draw(Sampling(temperature=0), ids, len(PROMPT))
        token = engine.step([Row(b"a", ids[start:], start, blocks, draw, recurrence)])[0].token
        start, ids = len(ids), np.append(ids, np.int32(token))
        engine.stage(following, first + 3)
    return ids[len(PROMPT) :].tolist()


def wait(engine: NativeEngine, following: str, rows: int) -> Staged:
    """Until all of the next model is staged that there is room for."""
    before, state = -1, engine.stage(following, rows)
    while before < state.covered_bytes:
        time.sleep(0.05)
        before, state = state.covered_bytes, engine.stage(following, rows)
    return state


def whole(engine: NativeEngine, report: SwitchReport, name: str) -> bool:
    weights = next(r.weight_bytes for r in engine.reports if r.name == name)
    return report.h2d_bytes + report.d2d_bytes + report.mapped_bytes == weights


def test_answers_are_those_of_weights_from_the_host(
    staged: NativeEngine, expected: dict[str, list[int]]
) -> None:
    paths: set[str] = set()
    for turn in range(36):
        if turn >= 9 and "partial" in paths and paths & {"d2d", "remap"}:
            break  # how far staging gets in a turn depends on what else the machine does
        name, following = NAMES[turn % 3], NAMES[(turn + 1) % 3]
        report = staged.activate(name)
        assert report.addresses_kept
        assert whole(staged, report, name)
        paths.add(report.path)
        blocks = next(r.kv_blocks for r in staged.reports if r.name == name)
        assert answer(staged, name, following) == expected[name]
        if turn % 3 == 1:
            # And where rows in the middle of what is staged are taken.
            wait(staged, following, 3)
            assert answer(staged, name, following, blocks // 2) == expected[name]
        elif turn % 3 == 2:
            wait(staged, following, 3)
    assert paths >= {"partial"}
    assert paths & {"d2d", "remap"}


def test_blocks_from_the_host_are_never_written_over(staged: NativeEngine) -> None:
    staged.activate("llama")
    wait(staged, "qwen3-moe", 3)
    (report,) = (r for r in staged.reports if r.name == "llama")
    parts = report.block_bytes // staged.host.slab_bytes
    slabs = tuple(range(parts))
    token = answer(staged, "llama", "qwen3-moe")[0]
    staged.copy_out(1, [BlockCopy(0, slabs)])
    staged.drain()
    # To the highest row, where the first chunk was staged.
    staged.copy_in([BlockCopy(report.kv_blocks - 1, slabs)])
    assert staged.stage("qwen3-moe", report.kv_blocks).covered_bytes == 0
    draw = Draw(Sampling(temperature=0), PROMPT, len(PROMPT))
    row = Row(b"b", PROMPT[64:], 64, (report.kv_blocks - 1, 1, 2), draw)
    assert staged.step([row])[0].token == token


def test_rows_that_are_being_copied_to_the_host_are_not_given_up(staged: NativeEngine) -> None:
    # From another model, so that nothing is staged: all slack is that of rows.
    staged.activate("qwen3-moe")
    staged.activate("llama")
    first = staged.reports[0].kv_blocks // 2
    answer(staged, "llama", None, first)
    slabs = tuple(range(staged.reports[0].block_bytes // staged.host.slab_bytes))
    staged.copy_out(1, [BlockCopy(first, slabs)])
    slack = staged.stage(None, 0).slack_bytes
    staged.drain()
    assert staged.stage(None, 0).slack_bytes > slack
