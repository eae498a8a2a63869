"""The gated delta rule in matrix form against one token after another, over generated shapes."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from alipes.kernels.delta import CHUNK
from alipes.kernels.table import PORTABLE, REFERENCE

Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Case:
    """``forget`` scales the log decay: from next to nothing to all within a token."""

    tokens: int
    key_heads: int
    group: int
    key_size: int
    size: int
    forget: float
    alike: float
    seed: int

    @property
    def state(self) -> tuple[int, int, int]:
        return self.key_heads * self.group, self.key_size, self.size

    def inputs(self, noise: torch.Generator) -> Inputs:
        """Keys share a direction as far as ``alike`` says: the harder they are to tell apart,
        the longer a correction goes on in later ones."""

        def draw(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=noise)

        heads, keys = self.state[0], (self.tokens, self.key_heads, self.key_size)
        shared = self.alike * draw(*keys[1:])
        k, q = (REFERENCE.l2_norm(draw(*keys) + shared, 1e-6) for _ in range(2))
        gates = (draw(self.tokens, heads) for _ in range(2))
        rate, bias = draw(heads) + self.forget, draw(heads)
        return q, k, draw(self.tokens, heads, self.size), *REFERENCE.delta_gates(*gates, rate, bias)


CASES = st.builds(
    Case,
    tokens=st.one_of(st.integers(1, 3 * CHUNK), st.sampled_from([CHUNK, 2 * CHUNK])),
    key_heads=st.integers(1, 3),
    group=st.integers(1, 3),
    key_size=st.integers(1, 17),
    size=st.integers(1, 17),
    forget=st.sampled_from([-6.0, -1.0, 2.0, 5.0]),
    alike=st.sampled_from([0.0, 1.0, 10.0]),
    seed=st.integers(0, 999),
)


def close(got: torch.Tensor, want: torch.Tensor) -> None:
    torch.testing.assert_close(got, want, atol=5e-5, rtol=5e-5)


@settings(max_examples=100, deadline=None)
@given(CASES, st.lists(st.integers(0, 3 * CHUNK), max_size=3))
def test_whole_and_split_anywhere_as_one_token_after_another(case: Case, cuts: list[int]) -> None:
    noise = torch.Generator().manual_seed(case.seed)
    inputs, before = case.inputs(noise), torch.randn(case.state, generator=noise)
    state, want_state, split_state = before.clone(), before.clone(), before.clone()
    want = REFERENCE.delta_chunk(*inputs, want_state)

    close(PORTABLE.delta_chunk(*inputs, state), want)
    close(state, want_state)

    edges = [0, *sorted(min(cut, case.tokens) for cut in cuts), case.tokens]
    parts = [
        PORTABLE.delta_chunk(*(tensor[first:end] for tensor in inputs), split_state)
        for first, end in pairwise(edges)
    ]
    close(torch.cat(parts), want)
    close(split_state, want_state)


@settings(max_examples=60, deadline=None)
@given(CASES, st.integers(0, 9))
def test_a_step_of_many_calls_as_each_of_them(case: Case, calls: int) -> None:
    """``tokens`` of the case are one token each of that many calls."""
    noise = torch.Generator().manual_seed(case.seed)
    inputs = [tensor[:calls] for tensor in case.inputs(noise)]
    states = torch.randn(len(inputs[0]), *case.state, generator=noise)
    want_states = states.clone()
    want = REFERENCE.delta_step(*inputs, want_states)
    close(PORTABLE.delta_step(*inputs, states), want)
    close(states, want_states)


@settings(max_examples=60, deadline=None)
@given(
    tokens=st.integers(0, 20),
    channels=st.integers(1, 9),
    width=st.integers(2, 5),
    cut=st.integers(0, 20),
    seed=st.integers(0, 999),
)
def test_convolution_whole_split_and_stepped(
    tokens: int, channels: int, width: int, cut: int, seed: int
) -> None:
    noise = torch.Generator().manual_seed(seed)
    x = torch.randn(tokens, channels, generator=noise)
    weight = torch.randn(channels, width, generator=noise)
    before = torch.randn(channels, width - 1, generator=noise)
    want_state, state, steps = before.clone(), before.clone(), before.expand(tokens, -1, -1).clone()
    want = REFERENCE.conv_chunk(x, weight, want_state)
    parts = [PORTABLE.conv_chunk(part, weight, state) for part in (x[:cut], x[cut:])]
    close(torch.cat(parts), want)
    close(state, want_state)

    want_steps = steps.clone()
    want = REFERENCE.conv_step(x, weight, want_steps)
    close(PORTABLE.conv_step(x, weight, steps), want)
    close(steps, want_steps)
