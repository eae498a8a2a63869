"""Prompts that grow: by what, to which percentiles, and never beyond the window."""

from __future__ import annotations

from math import exp

import numpy as np
import pytest

from alipes.replay.traces.synth.distributions import generator, normals
from alipes.replay.traces.synth.growth import Draws, Target, grow


def drawn(seed: int, sessions: int = 60, spread: float = 0.8) -> Draws:
    rng = generator(seed, "growth")
    depth = rng.integers(1, 40, sessions)
    calls = int(depth.sum())
    return Draws(
        depth=depth,
        start=rng.integers(500, 1_500, sessions),
        pace=normals(rng, sessions),
        tool=np.exp(spread * normals(rng, calls)),
        output=np.where(rng.random(calls) < 0.02, 1_500, rng.integers(1, 50, calls)),
        ticket=rng.random(calls),
    )


@pytest.mark.parametrize("window", [100_000, 14_000])
@pytest.mark.parametrize("seed", range(1, 6))
def test_each_prompt_is_the_last_one_what_it_drew_and_a_result(seed: int, window: int) -> None:
    draws = drawn(seed)
    grown = grow(draws, Target(2_500, 9_000, 0.05, window))
    starts = np.repeat(draws.start, draws.depth).tolist()
    pace = np.repeat(draws.pace, draws.depth).tolist()
    for i, prompt in enumerate(grown.prompt.tolist()):
        if grown.first[i] or grown.rewritten[i]:
            assert prompt == starts[i]
            continue
        result = max(1.0, round(grown.tool * exp(grown.spread * pace[i - 1]) * draws.tool[i - 1]))
        assert prompt == grown.prompt[i - 1] + draws.output[i - 1] + result
        assert prompt + draws.output[i] <= window
    assert np.count_nonzero(grown.first) == len(draws.depth)


@pytest.mark.parametrize("seed", range(1, 6))
def test_the_percentiles_and_the_share_are_the_wanted_ones(seed: int) -> None:
    grown = grow(drawn(seed), Target(2_500, 9_000, 0.05, 14_000))
    ranked = np.sort(grown.prompt)
    assert ranked[-(-len(ranked) * 50 // 100) - 1] == pytest.approx(2_500, rel=0.01)
    assert ranked[-(-len(ranked) * 95 // 100) - 1] == pytest.approx(9_000, rel=0.01)
    continuations = np.count_nonzero(~grown.first)
    assert np.count_nonzero(grown.rewritten) == round(0.05 * continuations)
    assert not (grown.first & grown.rewritten).any()


def test_a_narrow_window_is_kept_by_more_rewrites() -> None:
    wide = grow(drawn(1), Target(3_000, 9_000, 0.0, 100_000))
    narrow = grow(drawn(1), Target(3_000, 9_000, 0.0, 16_000))
    assert not wide.rewritten.any()
    assert wide.prompt.max() > 16_000
    assert narrow.rewritten.any()
    assert narrow.prompt.max() <= 16_000


def test_percentiles_that_nothing_gives_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot have prompts of 100 tokens at the median"):
        grow(drawn(1), Target(100, 9_000, 0.05, 100_000))
