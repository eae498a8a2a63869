"""Penalties by Triton against the reference; interpreted where there is no GPU."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from alipes.kernels import reference

pytest.importorskip("triton")

from alipes.kernels import triton_sampling

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.sampled_from([0, 1, 2, 700, 1023, 1024, 2047, 2499]), min_size=1, max_size=30),
    st.integers(0, 40),
    st.sampled_from([(1.0, 0.0, 0.0), (1.3, 0.0, 0.0), (1.2, 0.5, -0.7), (0.8, -0.2, 0.3)]),
)
def test_penalties_count_what_was_generated(
    history: list[int], prompt_tokens: int, penalties: tuple[float, float, float]
) -> None:
    logits, tokens = torch.randn(2500, device=DEVICE), torch.tensor(history, device=DEVICE)
    want = logits.clone()
    reference.penalize(want, tokens, prompt_tokens, *penalties)
    triton_sampling.penalize(logits, tokens, prompt_tokens, *penalties)
    torch.testing.assert_close(logits, want, atol=1e-5, rtol=1e-5)


def test_a_history_longer_than_a_program_takes() -> None:
    logits, tokens = torch.randn(50, device=DEVICE), torch.arange(3000, device=DEVICE) % 40
    want = logits.clone()
    reference.penalize(want, tokens, 1500, 1.1, 0.01, 0.2)
    triton_sampling.penalize(logits, tokens, 1500, 1.1, 0.01, 0.2)
    torch.testing.assert_close(logits, want, atol=1e-4, rtol=1e-5)
