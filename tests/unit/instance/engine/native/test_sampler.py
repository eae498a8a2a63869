from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from alipes.instance.contract import Sampling
from alipes.instance.engine.native.sampler import arrivals, sample
from alipes.instance.engine.protocol import Draw, EngineError, Row, Sampled
from alipes.kernels.table import PORTABLE

NONE = np.zeros(0, dtype=np.int32)
GOLDEN = [0.3030682404117176, 1.8940516112490768, 0.8762732386669749]


def draw_one(
    logits: torch.Tensor,
    sampling: Sampling,
    history: tuple[int, ...] = (0,),
    prompt: int = 1,
    forced: int | None = None,
) -> Sampled:
    draw = Draw(sampling, np.array(history, dtype=np.int32), prompt, forced)
    [sampled] = sample([Row(b"a", NONE, 0, (), draw)], logits[None], PORTABLE)
    return sampled


def test_noise_depends_on_seed_and_position_alone() -> None:
    values = np.stack([arrivals(seed, at, 50) for seed in range(-3, 30) for at in range(30)])
    assert len(np.unique(values)) == values.size
    assert values.min() > 0
    assert abs(values.mean() - 1) < 0.02
    assert (arrivals(7, 12, 50) == arrivals(7, 12, 80)[:50]).all()


def test_noise_is_the_same_everywhere() -> None:
    """A call may go on elsewhere: these numbers may never change."""
    assert arrivals(7, 12, 3).tolist() == pytest.approx(GOLDEN, rel=1e-12)


def test_small_changes_of_logits_rarely_change_a_draw() -> None:
    torch.manual_seed(1)
    changed = 0
    for position in range(400):
        logits = torch.randn(5000)
        moved = logits + 1e-4 * torch.randn(5000)
        history = (0,) * position
        first, second = (draw_one(x, Sampling(seed=9), history=history) for x in (logits, moved))
        changed += first.token != second.token
    assert changed <= 2


def test_frequencies_are_the_models() -> None:
    probs = torch.tensor([0.1, 0.2, 0.0, 0.3, 0.4])
    counts = np.zeros(5)
    for position in range(3000):
        draw = draw_one(probs.log(), Sampling(seed=3), history=(0,) * position)
        counts[draw.token] += 1
    assert np.abs(counts / 3000 - probs.numpy()).max() < 0.03


def test_a_draw_does_not_depend_on_its_batch() -> None:
    torch.manual_seed(0)
    logits = torch.randn(3, 500)
    samplings = [
        Sampling(seed=5, top_p=0.8),
        Sampling(temperature=0),
        Sampling(seed=6, temperature=0.7, top_k=9, top_logprobs=2),
    ]
    rows = [
        Row(bytes([i]), NONE, 0, (), Draw(s, np.arange(9 + i, dtype=np.int32), 4))
        for i, s in enumerate(samplings)
    ]
    together = sample(rows, logits, PORTABLE)
    alone = [sample([r], logits[i : i + 1], PORTABLE)[0] for i, r in enumerate(rows)]
    assert list(together) == alone
    reversed_too = sample(rows[::-1], logits.flip(0), PORTABLE)
    assert list(reversed_too)[::-1] == alone


def test_rows_without_a_draw_have_no_logits() -> None:
    rows = [
        Row(b"a", NONE, 0, (), None),
        Row(b"b", NONE, 0, (), Draw(Sampling(temperature=0), NONE, 0)),
    ]
    assert sample(rows, torch.tensor([[0.0, 2.0, 1.0]]), PORTABLE) == (Sampled(b"b", 1),)


@pytest.mark.parametrize(
    ("sampling", "token"),
    [
        (Sampling(temperature=0), 2),
        (Sampling(temperature=0, repetition_penalty=2.0), 1),
        (Sampling(temperature=0, presence_penalty=0.5), 2),
        (Sampling(temperature=0, frequency_penalty=0.5), 1),
        (Sampling(temperature=0, logit_bias={0: 9.0}), 0),
        (Sampling(temperature=0, logit_bias={2: -100.0}), 1),
        (Sampling(temperature=0, logit_bias={77: 100.0}), 2),
        (Sampling(temperature=1e-6, seed=4), 2),
        (Sampling(temperature=1e-40, seed=4), 2),
        (Sampling(temperature=5e-324, seed=4, top_p=0.5, top_logprobs=1), 2),
        (Sampling(top_k=1, seed=4), 2),
        (Sampling(top_p=1e-6, seed=4), 2),
        (Sampling(min_p=1.0, seed=4), 2),
    ],
)
def test_parameters_decide(sampling: Sampling, token: int) -> None:
    logits = torch.tensor([1.0, 2.3, 3.0, 0.0])
    before = logits.clone()
    assert draw_one(logits, sampling, history=(3, 2, 2), prompt=1).token == token
    assert torch.equal(logits, before)


def test_prompt_tokens_are_penalized_for_repetition_only() -> None:
    logits = torch.tensor([1.0, 2.9, 3.0])
    for sampling, token in (
        (Sampling(temperature=0, presence_penalty=2.0), 2),
        (Sampling(temperature=0, repetition_penalty=2.0), 1),
    ):
        assert draw_one(logits, sampling, history=(2, 2), prompt=2).token == token


def test_logprobs_are_taken_after_penalties_and_before_temperature() -> None:
    logits = torch.tensor([1.0, 2.0, 3.0])
    sampling = Sampling(temperature=0.1, top_p=0.01, logit_bias={0: 5.0}, top_logprobs=2)
    sampled = draw_one(logits, sampling)
    want = torch.tensor([6.0, 2.0, 3.0]).log_softmax(-1)
    assert sampled.token == 0
    assert sampled.logprob == pytest.approx(float(want[0]))
    assert [t.token for t in sampled.top] == [0, 2]
    assert [t.logprob for t in sampled.top] == pytest.approx([float(want[0]), float(want[2])])


def test_only_the_drawn_logprob_may_be_asked_for() -> None:
    sampled = draw_one(torch.tensor([0.0, 0.0]), Sampling(temperature=0, top_logprobs=0))
    assert sampled.logprob == pytest.approx(-math.log(2))
    assert sampled.top == ()


@pytest.mark.parametrize("top", [-1, 1])
def test_a_forced_token_keeps_its_logprobs(top: int) -> None:
    logits = torch.tensor([1.0, 2.0, 3.0])
    sampled = draw_one(logits, Sampling(temperature=0, top_logprobs=top), forced=0)
    assert sampled.token == 0
    if top < 0:
        assert sampled.logprob is None
    else:
        assert sampled.logprob == pytest.approx(float(logits.log_softmax(-1)[0]))
        assert sampled.top[0].token == 2


def test_a_row_without_a_distribution_is_refused_alone() -> None:
    draws = [Draw(Sampling(seed=1, top_logprobs=1), np.zeros(3, dtype=np.int32), 1)] * 2
    rows = [Row(bytes([i]), NONE, 0, (), draw) for i, draw in enumerate(draws)]
    logits = torch.tensor([[1.0, 2.0, 3.0], [1.0, math.nan, 3.0]])
    with pytest.raises(EngineError, match="no numbers") as raised:
        sample(rows, logits, PORTABLE)
    assert raised.value.call_ids == (bytes([1]),)
