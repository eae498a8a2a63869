"""A call that was cut after some tokens and goes on in another native engine draws the same tokens:
noise, penalties and bias are those of the whole call."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from alipes.instance.contract import Drawn, Finished, Sampling, Submit

from .native_instance import Instance

TOKENS = 40
CUTS = (1, 17, TOKENS - 1)
FAMILIES = ("llama", "qwen3-next")
SAMPLINGS = {
    "greedy": Sampling(temperature=0.0, top_logprobs=3),
    "sampled": Sampling(temperature=0.8, top_k=50, top_p=0.95, seed=7, top_logprobs=3),
    "penalties": Sampling(
        temperature=0.0,
        frequency_penalty=0.7,
        presence_penalty=0.4,
        repetition_penalty=1.3,
        top_logprobs=3,
    ),
    "sampled with penalties and bias": Sampling(
        temperature=1.1,
        min_p=0.01,
        seed=11,
        frequency_penalty=0.3,
        repetition_penalty=1.1,
        logit_bias={5: 4.0, 1000: 3.0},
        top_logprobs=3,
    ),
}


@pytest.fixture(scope="module")
def instances(tiny_folders: dict[str, Path]) -> Iterator[list[Instance]]:
    folders = {name: tiny_folders[name] for name in FAMILIES}
    made = [Instance(folders, blocks=200) for _ in range(2)]
    yield made
    for instance in made:
        instance.close()


def call_of(number: int, model: str, sampling: Sampling) -> Submit:
    rng = np.random.default_rng(number)
    prompt = rng.integers(0, 49_000, 150).astype("<i4").tobytes()
    return Submit(number.to_bytes(16), model, bytes(16), prompt, TOKENS, sampling)


def served(instance: Instance, call: Submit) -> tuple[list[Drawn], Finished]:
    instance.post(call)
    instance.until_ended(call.call_id)
    last = instance.last[call.call_id]
    assert isinstance(last, Finished)
    return instance.drawn[call.call_id], last


@pytest.mark.parametrize("model", FAMILIES)
@pytest.mark.parametrize("name", SAMPLINGS)
def test_a_call_goes_on_in_another_engine(instances: list[Instance], model: str, name: str) -> None:
    there, here = instances
    number = 100 * list(SAMPLINGS).index(name) + 10 * FAMILIES.index(model)
    call = call_of(number, model, SAMPLINGS[name])
    whole, ended = served(there, call)
    assert len({drawn.token for drawn in whole}) > 1
    for place, cut in enumerate(CUTS, 1):
        said = np.array([drawn.token for drawn in whole[:cut]], "<i4").tobytes()
        call_id = (number + place).to_bytes(16)
        again = msgspec.structs.replace(
            call, call_id=call_id, tokens=call.tokens + said, resumed=cut
        )
        rest, last = served(here, again)
        assert (last.prompt_tokens, last.completion_tokens) == (150, TOKENS)
        assert (last.reason, last.prefix) == (ended.reason, ended.prefix)
        assert len(rest) == TOKENS - cut
        for got, want in zip(rest, whole[cut:], strict=True):
            compare(got, want)


def compare(got: Drawn, want: Drawn) -> None:
    assert got.token == want.token
    assert got.logprob == pytest.approx(want.logprob, abs=1e-4)
    assert [top.token for top in got.top] == [top.token for top in want.top]
    assert [top.logprob for top in got.top] == pytest.approx(
        [top.logprob for top in want.top], abs=1e-4
    )
