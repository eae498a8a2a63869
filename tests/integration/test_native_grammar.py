"""Calls under a grammar in the native engine: whatever else happens to them, they say what the
grammar allows, and the tokens are those they get alone and undisturbed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from llguidance import LLMatcher
from tokenizers import Tokenizer

from alipes.instance.contract import Failed, Finished, FinishReason, Sampling, Submit
from alipes.instance.engine.native.parallel.engine import ParallelEngine

from .native_instance import Instance

TOKENS = 90
STOPS = (0, 2)
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "count": {"type": "integer", "minimum": 0, "maximum": 999},
        "kind": {"enum": ["small", "large"]},
        "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
    },
    "required": ["name", "count", "kind", "tags"],
    "additionalProperties": False,
}
GRAMMAR = LLMatcher.grammar_from_json_schema(SCHEMA, overrides={"whitespace_flexible": False})
SAMPLINGS = {
    "greedy": Sampling(temperature=0.0, grammar=GRAMMAR),
    "sampled": Sampling(temperature=1.0, top_k=200, top_p=0.9, grammar=GRAMMAR),
    "penalties": Sampling(
        temperature=0.7, frequency_penalty=0.5, repetition_penalty=1.2, min_p=0.01, grammar=GRAMMAR
    ),
    "logprobs": Sampling(temperature=1.2, top_logprobs=2, grammar=GRAMMAR),
}


@pytest.fixture(scope="module")
def one(tiny_folders: dict[str, Path]) -> Iterator[Instance]:
    instance = Instance({"llama": tiny_folders["llama"]}, blocks=200)
    yield instance
    instance.close()


@pytest.fixture(scope="module")
def other(tiny_folders: dict[str, Path]) -> Iterator[Instance]:
    instance = Instance({"llama": tiny_folders["llama"]}, blocks=200)
    yield instance
    instance.close()


@pytest.fixture(scope="module")
def tokenizer(tiny_folders: dict[str, Path]) -> Tokenizer:
    return Tokenizer.from_file(str(tiny_folders["llama"] / "tokenizer.json"))


def call_of(number: int, sampling: Sampling, model: str = "llama", tokens: int = 40) -> Submit:
    prompt = np.random.default_rng(number).integers(20, 49_000, tokens).astype("<i4").tobytes()
    drawn = msgspec.structs.replace(sampling, seed=number)
    return Submit(number.to_bytes(16), model, bytes(16), prompt, TOKENS, drawn, STOPS)


def said(instance: Instance, call: Submit) -> list[int]:
    return [drawn.token for drawn in instance.drawn.get(call.call_id, [])]


def serve(instance: Instance, calls: list[Submit]) -> list[list[int]]:
    for call in calls:
        instance.post(call)
    for call in calls:
        instance.until_ended(call.call_id)
    return [said(instance, call) for call in calls]


def check(text: str) -> None:
    value: Any = json.loads(text)
    assert list(value) == list(SCHEMA["properties"])  # type: ignore[call-overload]
    assert len(value["name"]) <= 12
    assert 0 <= value["count"] <= 999
    assert value["kind"] in ("small", "large")
    assert all(isinstance(tag, bool) for tag in value["tags"])
    assert len(value["tags"]) <= 3


@pytest.mark.parametrize("name", SAMPLINGS)
def test_every_answer_is_of_its_grammar(one: Instance, tokenizer: Tokenizer, name: str) -> None:
    base = 1000 * (1 + list(SAMPLINGS).index(name))
    calls = [call_of(base + seed, SAMPLINGS[name]) for seed in range(24)]
    texts = [tokenizer.decode(ids) for ids in serve(one, calls)]
    for call, text in zip(calls, texts, strict=True):
        last = one.last[call.call_id]
        assert isinstance(last, Finished)
        assert last.reason is FinishReason.STOP, text
        check(text)
    assert len(set(texts)) > 12


def test_logprobs_are_those_of_the_model(one: Instance) -> None:
    [call] = [call_of(9000, SAMPLINGS["logprobs"])]
    serve(one, [call])
    for drawn in one.drawn[call.call_id]:
        assert drawn.logprob is not None
        assert np.isfinite([drawn.logprob, *(top.logprob for top in drawn.top)]).all()
    free = msgspec.structs.replace(call.sampling, grammar="")
    again = msgspec.structs.replace(call, call_id=bytes(15) + b"x", sampling=free)
    serve(one, [again])
    first, same = one.drawn[call.call_id][0], one.drawn[again.call_id][0]
    assert first.top == same.top


def test_a_mixed_batch_changes_no_token(one: Instance, other: Instance) -> None:
    """Calls with and without a grammar, of every kind of sampling, together and one by one."""
    calls = []
    for number, sampling in enumerate(list(SAMPLINGS.values()) * 2):
        free = msgspec.structs.replace(sampling, grammar="")
        calls += [call_of(20_000 + 2 * number + i, s) for i, s in enumerate((sampling, free))]
    together = serve(one, calls)
    alone = [serve(other, [call])[0] for call in calls]
    assert together == alone


@pytest.mark.parametrize("name", SAMPLINGS)
def test_a_call_goes_on_elsewhere_in_its_grammar(
    one: Instance, other: Instance, tokenizer: Tokenizer, name: str
) -> None:
    call = call_of(30_000 + list(SAMPLINGS).index(name), SAMPLINGS[name])
    [whole] = serve(one, [call])
    for cut in (1, len(whole) // 2, len(whole) - 1, len(whole)):
        drawn = np.array(whole[:cut], "<i4").tobytes()
        again = msgspec.structs.replace(
            call,
            call_id=call.call_id[8:] + cut.to_bytes(8),
            tokens=call.tokens + drawn,
            resumed=cut,
        )
        [rest] = serve(other, [again])
        assert rest == whole[cut:]
    check(tokenizer.decode(whole))


def test_models_take_turns_within_answers(
    tiny_folders: dict[str, Path], tokenizer: Tokenizer
) -> None:
    """Short rounds of models with and without recurrent state, over little memory."""
    names = ["llama", "qwen3", "qwen3-next"]
    folders = {name: tiny_folders[name] for name in names}
    calls = [
        call_of(40_000 + number, SAMPLINGS[kind], names[number % 3], 20 + 13 * number)
        for number, kind in enumerate(["greedy", "sampled", "penalties"] * 4)
    ]
    busy = Instance(folders, blocks=36, max_running=2, prefill_chunk=48)
    try:
        got = serve(busy, calls)
        assert not [last for last in busy.last.values() if isinstance(last, Failed)]
        counters = busy.until_idle().counters
    finally:
        busy.close()
    assert counters.switches > len(names)
    assert counters.preempted or counters.resumed
    alone = Instance(folders, blocks=200)
    try:
        assert [serve(alone, [call])[0] for call in calls] == got
    finally:
        alone.close()
    for ids in got:
        check(tokenizer.decode(ids))


def test_what_is_no_grammar_fails_alone(one: Instance, tokenizer: Tokenizer) -> None:
    broken = call_of(50_000, Sampling(temperature=0.0, grammar="start: nothing"))
    sound = call_of(50_001, SAMPLINGS["greedy"])
    outside = msgspec.structs.replace(
        call_of(50_002, SAMPLINGS["greedy"]),
        tokens=np.array([30, 31, 32], "<i4").tobytes(),
        resumed=1,
    )
    serve(one, [broken, sound, outside])
    for call in (broken, outside):
        last = one.last[call.call_id]
        assert isinstance(last, Failed)
        assert "grammar" in last.reason
    check(tokenizer.decode(said(one, sound)))


def test_a_call_without_a_stop_id_ends_at_its_limit(one: Instance) -> None:
    call = msgspec.structs.replace(call_of(60_000, SAMPLINGS["greedy"]), stop_ids=())
    [ids] = serve(one, [call])
    assert len(ids) == TOKENS
    assert set(ids[-3:]) <= {0, 2}


def test_forced_tokens_and_a_grammar_exclude_each_other(tiny_folders: dict[str, Path]) -> None:
    instance = Instance({"llama": tiny_folders["llama"]}, blocks=20, allow_forced_tokens=True)
    call = msgspec.structs.replace(call_of(1, SAMPLINGS["greedy"]), forced=bytes(8))
    serve(instance, [call])
    instance.close()
    last = instance.last[call.call_id]
    assert isinstance(last, Failed)
    assert last.field == "forced"


def test_a_divided_model_keeps_to_its_grammar(
    one: Instance, tiny_folders: dict[str, Path], tokenizer: Tokenizer
) -> None:
    calls = [call_of(70_000 + number, SAMPLINGS["greedy"]) for number in range(4)]
    divided = Instance({"llama": tiny_folders["llama"]}, 200, ParallelEngine, ranks=2)
    try:
        got = serve(divided, calls)
    finally:
        divided.close()
    for ids in got:
        check(tokenizer.decode(ids))
    assert got == serve(one, calls)
