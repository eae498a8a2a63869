"""Decode reported in stretches; see also ``tests/property/instance/test_stretches.py``."""

from __future__ import annotations

import numpy as np
import pytest

from alipes.instance.contract import ModelReport, Submit
from alipes.instance.scheduler.outcome import advance, horizon
from alipes.instance.scheduler.phases import Phase
from alipes.instance.scheduler.sequence import CallState, Sequence
from alipes.instance.scheduler.slot import Slot
from alipes.instance.scheduler.space import KvSpace
from alipes.instance.scheduler.work import Run

BLOCK = 4


def decoding(
    space: KvSpace, prompt: int, max_tokens: int = 50, stops: tuple[int, ...] = ()
) -> Sequence:
    """A call that has drawn its first token."""
    ids = np.arange(prompt, dtype="<i4").tobytes()
    forced = np.full(max_tokens, 9, "<i4").tobytes()
    call_id = bytes([prompt]) * 16
    submit = Submit(call_id, "m", bytes(16), ids, max_tokens, stop_ids=stops, forced=forced)
    call = Sequence.of(submit, 0, (0, prompt))
    call.start(0)
    call.move(CallState.PREFILL)
    call.computed = prompt
    call.append(9, 0)
    call.move(CallState.DECODE)
    assert space.grow(call, call.length)
    return call


def space_of(blocks: int) -> KvSpace:
    return KvSpace(ModelReport("m", "m", 1000, 1000, 1, 1, blocks), BLOCK)


def steps_of(calls: list[Sequence], space: KvSpace, max_steps: int = 100) -> int:
    ids = tuple(call.call.call_id for call in calls)
    run = Run("m", Phase.D1, ids, (1,) * len(ids), max_steps)
    return horizon(run, calls, Slot("m", 0), space).steps


def test_a_stretch_ends_with_the_first_call() -> None:
    space = space_of(100)
    calls = [decoding(space, 3, max_tokens=9), decoding(space, 5)]
    assert steps_of(calls, space) == 8
    assert steps_of(calls, space, max_steps=5) == 5
    outcome = advance(calls, 8, space, 7)
    assert [call for call, _ in outcome.ended] == calls[:1]
    assert (outcome.tokens, outcome.short) == (16, False)


def test_a_stretch_ends_where_a_call_has_no_block_for_its_next_position() -> None:
    """The later call needs the only block one iteration before the earlier one asks for it."""
    space = space_of(3)
    calls = [decoding(space, 2), decoding(space, 3)]
    assert [call.length for call in calls] == [3, 4]
    assert steps_of(calls, space) == 2
    outcome = advance(calls, 2, space, 7)
    assert outcome.short
    assert [(call.computed, len(call.blocks)) for call in calls] == [(4, 1), (5, 2)]
    assert space.pool.available == 0


def test_what_is_beyond_the_horizon_is_refused() -> None:
    space = space_of(3)
    calls = [decoding(space, 2), decoding(space, 3)]
    with pytest.raises(ValueError, match="more than the device has blocks for"):
        advance(calls, 6, space, 7)


def test_only_what_is_forced_to_its_end_can_be_told_at_once() -> None:
    space = space_of(100)
    with pytest.raises(ValueError, match="8 of them are forced"):
        advance([decoding(space, 3, max_tokens=9)], 9, space, 7)
    with pytest.raises(ValueError, match="it may stop at 1 ids"):
        advance([decoding(space, 3, stops=(5,))], 2, space, 7)
