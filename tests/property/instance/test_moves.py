from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alipes.instance.memory.moves import Cycle, Move, exchange_cycles, order_copies


@st.composite
def spans(draw: st.DrawFn, lengths: list[int]) -> list[int]:
    """Starts of disjoint spans of these lengths, in any order."""
    order = draw(st.permutations(range(len(lengths))))
    starts, at = [0] * len(lengths), 0
    for index in order:
        at += draw(st.integers(0, 3))
        starts[index], at = at, at + lengths[index]
    return starts


@st.composite
def frames(draw: st.DrawFn) -> list[Move]:
    size = draw(st.sampled_from((1, 4)))
    count = draw(st.integers(0, 8))
    ends = st.lists(st.integers(0, 11), min_size=count, max_size=count, unique=True)
    pairs = zip(draw(ends), draw(ends), strict=True)
    return [Move(size * source, size * target, size) for source, target in pairs]


@st.composite
def exchanges(draw: st.DrawFn) -> list[Move]:
    unit = draw(st.sampled_from((1, 4)))
    lengths = draw(st.lists(st.integers(1, 5), max_size=8))
    sources, targets = draw(spans(lengths)), draw(spans(lengths))
    return [
        Move(unit * s, unit * t, unit * n)
        for s, t, n in zip(sources, targets, lengths, strict=True)
    ]


def wanted(moves: list[Move], before: list[int]) -> dict[int, int]:
    return {m.target + i: before[m.source + i] for m in moves for i in range(m.nbytes)}


@given(exchanges(), st.integers(0, 8))
@settings(max_examples=300, deadline=None)
def test_copies_in_order_bring_what_was_there_before(moves: list[Move], needed: int) -> None:
    before = list(range(300))
    memory = list(before)
    ordered, dropped = order_copies(moves, needed)
    assert sorted(map(repr, ordered + dropped)) == sorted(map(repr, moves))
    for move in ordered:
        part = memory[move.source : move.source + move.nbytes]
        memory[move.target : move.target + move.nbytes] = part
    for at, value in wanted(ordered, before).items():
        assert memory[at] == value


@given(frames())
@settings(max_examples=300, deadline=None)
def test_an_exchange_brings_all_and_loses_nothing(moves: list[Move]) -> None:
    before = list(range(60))
    memory = list(before)
    touched: set[int] = set()
    sources, targets = ({getattr(m, end) for m in moves} for end in ("source", "target"))
    for cycle in exchange_cycles(moves):
        assert cycle.open == (cycle.starts[-1] not in sources)
        assert touched.isdisjoint(cycle.starts)
        touched |= set(cycle.starts)
        parts = [memory[start : start + cycle.nbytes] for start in cycle.starts]
        for start, part in zip(cycle.starts, parts[-1:] + parts[:-1], strict=True):
            memory[start : start + cycle.nbytes] = part
    assert sorted(memory) == before
    assert touched <= sources | targets
    for at, value in wanted(moves, before).items():
        assert memory[at] == value


def test_what_is_needed_less_is_given_up_first() -> None:
    """Two pairs that exchange their bytes: neither can be copied first."""
    ring = [Move(0, 10, 5), Move(10, 0, 5)]
    assert order_copies(ring, 1) == ([ring[0]], [ring[1]])
    assert order_copies(ring[::-1], 1) == ([ring[1]], [ring[0]])
    assert order_copies([Move(0, 3, 5)], 1) == ([], [Move(0, 3, 5)])
    assert order_copies([Move(3, 3, 5)], 1) == ([Move(3, 3, 5)], [])


def test_a_chain_of_moves_ends_where_nobody_wants_what_is_there() -> None:
    cycles = exchange_cycles([Move(8, 4, 4), Move(16, 8, 4), Move(0, 0, 4), Move(20, 24, 4)])
    assert [(cycle.starts, cycle.open) for cycle in cycles] == [
        ((16, 8, 4), True),
        ((20, 24), True),
    ]
    assert exchange_cycles([Move(0, 4, 4), Move(4, 0, 4)]) == [Cycle((0, 4), 4)]


@pytest.mark.parametrize(
    "moves",
    [
        [Move(0, 8, 4), Move(4, 8, 4)],
        [Move(0, 8, 4), Move(0, 4, 4)],
        [Move(0, 8, 4), Move(16, 24, 8)],
        [Move(2, 8, 4)],
        [Move(0, 9, 4)],
    ],
)
def test_moves_that_are_not_of_whole_frames_are_refused(moves: list[Move]) -> None:
    with pytest.raises(ValueError, match=r"one target|not of a frame"):
        exchange_cycles(moves)
