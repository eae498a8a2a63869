"""Exchanges and loads against a permutation of bytes."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from alipes.instance.engine.native.bringing import Loading, bring_by_exchange
from alipes.instance.memory.moves import Move

FRAME = 4


class Frames:
    """Memory whose exchange is a permutation."""

    kind, granule = "frames", FRAME

    def __init__(self, count: int) -> None:
        self.data = torch.arange(count, dtype=torch.uint8).repeat_interleave(FRAME)

    def exchange(self, moves: list[Move]) -> None:
        before = self.data.clone()
        for move in moves:
            assert move.nbytes == FRAME
            self.data[move.target :][:FRAME] = before[move.source :][:FRAME]


@st.composite
def exchanges(draw: st.DrawFn) -> tuple[int, list[Move]]:
    """So many frames, and moves of some of them to as many places."""
    count = draw(st.integers(1, 24))
    frames = list(range(count))
    sources = draw(st.lists(st.sampled_from(frames), unique=True, max_size=count))
    targets = draw(st.permutations(frames))[: len(sources)]
    return count, [Move(a * FRAME, b * FRAME, FRAME) for a, b in zip(sources, targets, strict=True)]


@given(exchange=exchanges(), data=st.data())
@settings(max_examples=150, deadline=None)
def test_every_chunk_comes_from_where_it_should(
    exchange: tuple[int, list[Move]], data: st.DataObject
) -> None:
    count, moves = exchange
    memory, expected = Frames(count), Frames(count)
    expected.exchange(moves)
    size = data.draw(st.integers(1, count * FRAME))
    chunks = range(-(-size // FRAME))
    arrives = {move.target // FRAME for move in moves} & set(chunks)
    here = data.draw(st.sets(st.sampled_from(sorted(arrives)))) if arrives else set()
    host = torch.full((size,), 255, dtype=torch.uint8)
    for chunk in set(chunks) - here:
        expected.data[:size][chunk * FRAME : (chunk + 1) * FRAME] = 255
    loading = Loading(host, memory.data[:size], FRAME)
    bring_by_exchange(memory, moves, here, loading)
    assert memory.data.equal(expected.data)


def test_neighbours_are_loaded_in_one_go() -> None:
    host = torch.arange(22, dtype=torch.uint8)
    target = torch.zeros(22, dtype=torch.uint8)
    loading = Loading(host, target, FRAME)
    assert loading.count == 6
    loading.load([5, 1, 2])
    assert target.tolist() == [0] * 4 + list(range(4, 12)) + [0] * 8 + [20, 21]
