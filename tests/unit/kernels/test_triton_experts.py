"""Experts by Triton against the reference; interpreted where there is no GPU."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from alipes.kernels import reference
from alipes.kernels.shapes import Workspace

pytest.importorskip("triton")

from alipes.kernels import triton_experts
from alipes.kernels.triton_experts import experts, plan

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
NO_SCRATCH = Workspace(torch.empty(0), torch.empty(0))


def choices(rows: int, top_k: int, count: int, seed: int) -> torch.Tensor:
    """(rows, top_k) different experts a row; low ones far more often than high ones."""
    generator = torch.Generator().manual_seed(seed)
    odds = 0.5 ** torch.arange(count, dtype=torch.float64)
    return torch.multinomial(odds.expand(rows, -1), top_k, generator=generator)


@given(st.integers(1, 70), st.integers(1, 4), st.integers(4, 9), st.integers(0, 1000))
def test_every_pair_is_in_one_tile_of_its_expert(
    rows: int, top_k: int, count: int, seed: int
) -> None:
    chosen = choices(rows, top_k, count, seed)
    planned = plan(chosen, count)
    ordered, seen = chosen.flatten()[planned.order].tolist(), []
    for expert, first, size in planned.tiles.tolist():
        assert 0 <= expert < count
        assert 0 <= size <= planned.rows
        assert ordered[first : first + size] == [expert] * size
        seen += range(first, first + size)
    assert sorted(seen) == list(range(rows * top_k))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(
    ("rows", "top_k", "count", "hidden", "inner"),
    [(1, 2, 4, 32, 24), (9, 3, 5, 100, 70), (40, 2, 4, 24, 40)],
)
def test_experts(
    dtype: torch.dtype, rows: int, top_k: int, count: int, hidden: int, inner: int
) -> None:
    torch.manual_seed(5)
    x, weights = torch.randn(rows, hidden), torch.rand(rows, top_k)
    gate_up = torch.randn(count, 2 * inner, hidden) * hidden**-0.5
    down = torch.randn(count, hidden, inner) * inner**-0.5
    chosen = choices(rows, top_k, count, 1)
    given_ = [one.to(DEVICE) for one in (x, weights, chosen, gate_up.to(dtype), down.to(dtype))]
    got = experts(*given_, NO_SCRATCH)
    tolerance = 2e-5 if dtype == torch.float32 else 1e-2
    want = reference.experts(*given_, NO_SCRATCH)
    torch.testing.assert_close(got, want, atol=tolerance, rtol=tolerance)


def test_many_pairs_an_expert_share_larger_tiles() -> None:
    few, many = (plan(choices(rows, 2, 4, 0), 4).rows for rows in (2, 500))
    assert (few, many) == (triton_experts._LEAST_ROWS, triton_experts._MOST_ROWS)
