"""The gated delta rule by Triton against the reference; interpreted where there is no GPU."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from alipes.kernels import delta_reference

pytest.importorskip("triton")

from alipes.kernels import triton_delta

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
FEW = settings(max_examples=12, deadline=None)
# Key heads, value heads for each, their sizes.
SHAPES = st.sampled_from([(1, 1, 16, 16), (2, 2, 16, 24), (1, 3, 20, 40), (2, 1, 8, 4)])
Shape = tuple[int, int, int, int]


def inputs(tokens: int, shape: Shape) -> list[torch.Tensor]:
    """Queries, keys and values as parts of one tensor, then log decay and beta."""
    torch.manual_seed(tokens)
    keys, group, key_size, size = shape
    widths = [keys * key_size, keys * key_size, keys * group * size]
    q, k, v = torch.randn(tokens, sum(widths), device=DEVICE).split(widths, 1)
    q, k = (one.unflatten(1, (keys, key_size)) * key_size**-0.5 for one in (q, k))
    gates = torch.rand(tokens, 2 * keys * group, device=DEVICE).chunk(2, 1)
    return [q, k, v.unflatten(1, (keys * group, size)), -gates[0], gates[1]]


def states(shape: Shape, *calls: int) -> torch.Tensor:
    keys, group, key_size, size = shape
    return torch.randn(*calls, keys * group, key_size, size, device=DEVICE)


def close(got: torch.Tensor, want: torch.Tensor) -> None:
    torch.testing.assert_close(got, want, atol=2e-5, rtol=2e-5)


@FEW
@given(st.integers(0, 4), SHAPES)
def test_a_step_moves_every_call_on_by_a_token(calls: int, shape: Shape) -> None:
    given_inputs, got_states = inputs(calls, shape), states(shape, calls)
    want_states = got_states.clone()
    got = triton_delta.delta_step(*given_inputs, got_states)
    close(got, delta_reference.delta_step(*given_inputs, want_states))
    close(got_states, want_states)


@FEW
@given(st.sampled_from([0, 1, 2, 15, 16, 17, 64, 65, 130]), SHAPES)
def test_a_chunk_moves_one_call_on_by_its_tokens(tokens: int, shape: Shape) -> None:
    given_inputs, got_state = inputs(tokens, shape), states(shape)
    want_state = got_state.clone()
    got = triton_delta.delta_chunk(*given_inputs, got_state)
    close(got, delta_reference.delta_chunk(*given_inputs, want_state))
    close(got_state, want_state)
