from __future__ import annotations

from statistics import NormalDist

import pytest

from alipes.replay.traces.synth.distributions import LogNormal, generator, normals, scores, whole


@pytest.mark.parametrize("shares", [(0.50, 0.95), (0.51, 0.97), (0.05, 0.40)])
def test_two_percentiles_fix_a_lognormal(shares: tuple[float, float]) -> None:
    found = LogNormal.through(0.39, 1.32, shares)
    assert found.quantile(shares[0]) == pytest.approx(0.39)
    assert found.quantile(shares[1]) == pytest.approx(1.32)


def test_counts_stay_within_their_bounds() -> None:
    drawn = whole(LogNormal(10, 2.0).draw(generator(1, "x"), 5_000), low=3, high=40)
    assert (drawn.min(), drawn.max()) == (3, 40)


def test_equal_seeds_of_two_workloads_have_nothing_in_common() -> None:
    one, other = (normals(generator(1, name), 100) for name in ("one", "other"))
    assert not set(one.tolist()) & set(other.tolist())
    assert normals(generator(1, "one"), 100).tolist() == one.tolist()


def test_scores_are_one_of_each_part_in_an_order_of_their_own() -> None:
    drawn = scores(generator(1, "x"), 10).tolist()
    parts = [int(10 * NormalDist().cdf(score)) for score in drawn]
    assert sorted(parts) == list(range(10))
    assert parts != sorted(parts)
    assert drawn != scores(generator(2, "x"), 10).tolist()
