"""The gated delta rule and its surroundings against transformers' functions for Qwen3-Next."""

from __future__ import annotations

import pytest
import torch
from transformers.models.qwen3_next import modeling_qwen3_next as theirs

from alipes.kernels.table import PORTABLE, REFERENCE, Kernels

KEY_HEADS, HEADS, KEY_SIZE, SIZE = 2, 4, 16, 24


@pytest.fixture(params=[REFERENCE, PORTABLE], ids=["reference", "portable"])
def kernels(request: pytest.FixtureRequest) -> Kernels:
    torch.manual_seed(11)
    column: Kernels = request.param
    return column


def close(got: torch.Tensor, want: torch.Tensor) -> None:
    torch.testing.assert_close(got, want, atol=2e-5, rtol=2e-5)


def inputs(tokens: int) -> tuple[torch.Tensor, ...]:
    """Queries, keys, values, log decay, beta, and the state before."""
    q, k = torch.randn(2, tokens, KEY_HEADS, KEY_SIZE)
    g = -torch.rand(tokens, HEADS)
    state = torch.randn(HEADS, KEY_SIZE, SIZE)
    return q, k, torch.randn(tokens, HEADS, SIZE), g, torch.rand(tokens, HEADS), state


@pytest.mark.parametrize("tokens", [1, 63, 64, 150])
def test_a_chunk_is_what_both_their_forms_compute(kernels: Kernels, tokens: int) -> None:
    q, k, *rest, before = inputs(tokens)
    after = before.clone()
    query = kernels.l2_norm(q, 1e-6) * KEY_SIZE**-0.5
    out = kernels.delta_chunk(query, kernels.l2_norm(k, 1e-6), *rest, after)
    forms = theirs.torch_chunk_gated_delta_rule, theirs.torch_recurrent_gated_delta_rule
    for form in forms:
        want, state = form(
            *(tensor.unsqueeze(0) for tensor in (q, k, *rest)),
            initial_state=before.unsqueeze(0),
            output_final_state=True,
            use_qk_l2norm_in_kernel=True,
        )
        close(out, want[0])
        close(after, state[0])


def test_a_step_is_their_step_of_a_batch(kernels: Kernels) -> None:
    q, k, *rest, _ = inputs(5)
    states = torch.randn(5, HEADS, KEY_SIZE, SIZE)
    want, after = theirs.torch_recurrent_gated_delta_rule(
        *(tensor.unsqueeze(1) for tensor in (q, k, *rest)),
        initial_state=states.clone(),
        output_final_state=True,
    )
    close(kernels.delta_step(q * KEY_SIZE**-0.5, k, *rest, states), want[:, 0])
    close(states, after)


def test_the_convolution_is_theirs_and_its_state_what_it_saw_last(kernels: Kernels) -> None:
    x, weight, state = torch.randn(9, 6), torch.randn(6, 4), torch.zeros(6, 3)
    want = theirs.causal_conv1d_fn(x.t().unsqueeze(0), weight, activation="silu")[0].t()
    close(kernels.conv_chunk(x[:5], weight, state), want[:5])
    assert torch.equal(state, x[2:5].t())
    states = state.expand(2, -1, -1).clone()
    close(kernels.conv_step(x[5:6].expand(2, -1), weight, states), want[5:6].expand(2, -1))
    assert torch.equal(states[1], x[3:6].t())


def test_the_gates_and_the_gated_norm_are_theirs(kernels: Kernels) -> None:
    a, b, rate, bias = (torch.randn(HEADS) for _ in range(4))
    g, beta = kernels.delta_gates(a, b, rate, bias)
    close(g, -rate.float().exp() * torch.nn.functional.softplus(a + bias))
    close(beta, b.sigmoid())
    norm = theirs.Qwen3NextRMSNormGated(SIZE, eps=1e-5)
    x, gate = torch.randn(2, 3, HEADS, SIZE)
    with torch.no_grad():
        norm.weight.copy_(torch.randn(SIZE))
        close(kernels.gated_norm(x, norm.weight, gate, 1e-5), norm(x, gate))
