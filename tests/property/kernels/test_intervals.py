"""Moves in waves against moves one after another."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from alipes.kernels.intervals import waves

place = st.integers(0, 50)
moves = st.lists(st.tuples(place, place, st.integers(0, 12)), max_size=12)


@given(moves, st.randoms(use_true_random=False))
def test_the_moves_of_a_wave_are_free_of_one_another(
    given_moves: list[tuple[int, int, int]], order: random.Random
) -> None:
    want = np.arange(64)
    for source, target, count in given_moves:
        want[target : target + count] = want[source : source + count].copy()
    got = np.arange(64)
    for wave in waves(given_moves):
        before = got.copy()
        order.shuffle(wave)
        for source, target, count in wave:
            got[target : target + count] = before[source : source + count]
        assert len(wave) == 1 or all(abs(s - t) >= n for s, t, n in wave)
    assert np.array_equal(got, want)


def test_moves_apart_from_one_another_are_one_wave() -> None:
    apart = [(0, 40, 8), (8, 56, 8), (16, 48, 8), (0, 32, 8)]
    assert list(waves([*apart, (5, 5, 9), (3, 60, 0)])) == [apart]
    assert list(waves([*apart, (32, 24, 1)])) == [apart, [(32, 24, 1)]]
    assert list(waves([*apart, (80, 24, 8)])) == [[*apart, (80, 24, 8)]]
    assert list(waves([*apart, (80, 24, 9)])) == [apart, [(80, 24, 9)]]
    assert list(waves([*apart, (80, 23, 1)])) == [apart, [(80, 23, 1)]]
    assert list(waves([*apart, (80, 7, 1)])) == [apart, [(80, 7, 1)]]
