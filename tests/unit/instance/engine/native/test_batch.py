from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from alipes.instance.contract import Sampling
from alipes.instance.engine.native.batch import Bounds, build_batch
from alipes.instance.engine.protocol import Draw, EngineError, Recurrence, Row
from alipes.kernels.shapes import Segment

BOUNDS = Bounds(block_tokens=4, blocks=10, context=32, vocab=100)
CPU = torch.device("cpu")


def row(tokens: list[int], start: int, blocks: list[int], draws: bool = True) -> Row:
    ids = np.array(tokens, dtype=np.int32)
    draw = Draw(Sampling(temperature=0), ids, len(ids)) if draws else None
    return Row(b"call", ids, start, blocks, draw)


def test_rows_follow_one_another() -> None:
    rows = [row([5, 6], 3, [8, 2]), row([7], 0, [9]), row([1, 2, 3], 0, [4], draws=False)]
    batch = build_batch(rows, BOUNDS, CPU)
    assert batch.tokens.tolist() == [5, 6, 7, 1, 2, 3]
    assert batch.positions.tolist() == [3, 4, 0, 0, 1, 2]
    assert batch.slots.tolist() == [35, 8, 36, 16, 17, 18]
    assert batch.segments == (
        Segment(0, 2, 3, ((32, 4), (8, 1)), 4),
        Segment(2, 1, 0, ((36, 1),), 4),
        Segment(3, 3, 0, ((16, 3),), 4),
    )
    assert batch.last is not None
    assert (batch.last.tolist(), batch.draws) == ([1, 2], 2)


def test_a_pure_decode_needs_no_selection() -> None:
    assert build_batch([row([5], 3, [8]), row([7], 0, [9])], BOUNDS, CPU).last is None


@given(st.permutations(range(10)), st.integers(1, 32), st.data())
def test_runs_name_every_position_in_order(table: list[int], end: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, end - 1))
    batch = build_batch([row([1] * (end - start), start, table)], BOUNDS, CPU)
    [segment] = batch.segments
    slots = segment.slots().tolist()
    assert slots == [table[p // 4] * 4 + p % 4 for p in range(end)]
    assert batch.slots.tolist() == slots[start:]
    for (slot, length), (following, _) in zip(segment.runs, segment.runs[1:], strict=False):
        assert slot + length != following


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (row([], 0, [1]), "at least one token"),
        (row([100], 0, [1]), "vocabulary of 100"),
        (row([-1], 0, [1]), "vocabulary of 100"),
        (row([1], 32, [1] * 9), "position 33 is beyond the context of 32"),
        (row([1], 4, [1]), "1 blocks do not cover 5"),
        (row([1], 0, [10]), "pool of 10 blocks"),
        (row([1], 0, [-1]), "pool of 10 blocks"),
    ],
)
def test_a_row_outside_the_bounds_is_refused(bad: Row, words: str) -> None:
    with pytest.raises(EngineError, match=words) as raised:
        build_batch([replace(row([1], 0, [1]), call_id=b"other"), bad], BOUNDS, CPU)
    assert raised.value.call_ids == (bad.call_id,)


def test_only_models_with_slots_carry_state() -> None:
    given = replace(row([1, 2], 0, [1]), recurrence=Recurrence(None, 3))
    carries = build_batch([given], replace(BOUNDS, slots=5), CPU).carries
    assert carries is not None
    assert [one.load for one in carries.alone] == [None]
    assert build_batch([row([1], 0, [1])], BOUNDS, CPU).carries is None


@pytest.mark.parametrize(
    ("start", "recurrence", "words"),
    [
        (0, None, "has recurrent state: the row needs slots"),
        (1, Recurrence(None, 0), "begins at 1 with slot None"),
        (0, Recurrence(0, 0), "begins at 0 with slot 0"),
        (1, Recurrence(5, 0), "slot 5 is not one of 5"),
        (1, Recurrence(-1, 0), "slot -1 is not one of 5"),
        (1, Recurrence(0, 5), "slot 5 is not one of 5"),
        (1, Recurrence(0, 0, 5, 1), "slot 5 is not one of 5"),
        (1, Recurrence(1, 0, 0, 1), "slot 0 cannot hold two states"),
        (1, Recurrence(0, 0, 1, 0), "after 0 of 2 tokens"),
        (1, Recurrence(0, 0, 1, 3), "after 3 of 2 tokens"),
    ],
)
def test_slots_that_cannot_be_are_refused(
    start: int, recurrence: Recurrence | None, words: str
) -> None:
    bad = replace(row([1, 2], start, [1]), recurrence=recurrence)
    with pytest.raises(EngineError, match=words):
        build_batch([bad], replace(BOUNDS, slots=5), CPU)


def test_slots_of_a_model_without_any_are_refused() -> None:
    bad = replace(row([1], 0, [1]), recurrence=Recurrence(None, 0))
    with pytest.raises(EngineError, match="no recurrent state"):
        build_batch([bad], BOUNDS, CPU)
