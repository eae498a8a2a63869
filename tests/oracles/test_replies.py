"""Replies are read as SGLang and vLLM read them, whole and streamed, but where it says why not."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from tests.oracles.compare import ours, theirs
from tests.oracles.corpus import CORPUS, Reply
from tests.oracles.environment import Oracle, Unavailable

pytestmark = [pytest.mark.oracle, pytest.mark.timeout(900)]

ORACLES: Final = {
    "sglang": Oracle("sglang", "0.5.23", "sglang_replies.py"),
    "vllm": Oracle("vllm", "0.33.0", "vllm_replies.py"),
}
Differences = Mapping[tuple[str, str], str]

_CALLED_IN_THOUGHTS: Final = "what is thought is no call, however it arrives"
_NO_COMPLETION: Final = "a call that breaks off is none, and nobody completes it"
_AFTER_BLANKS: Final = "the blank lines after thoughts are of the form, so the object comes first"
_ANSWER: Final = "an object without the name of a tool and arguments is an answer, and not lost"
_CLOSING_TAG: Final = "a value ends at its closing tag: files that agents write have other tags"
_UNTYPED: Final = "a value of which no schema speaks is read as JSON where it is JSON"
_IN_STRING: Final = "a string of JSON may have a tag in it"
_TEXT_AFTER: Final = "text after a call is not lost"
_NOT_LOST: Final = "what is no call is text"

# By how the reply came, then by form and name of the reply.
DIFFERENCES: Final[Mapping[str, Mapping[str, Differences]]] = {
    "sglang": {
        "whole": {
            ("llama", "thinks and calls"): _AFTER_BLANKS,
            ("llama", "opened, thinks and calls"): _AFTER_BLANKS,
            ("llama", "an answer in JSON"): _ANSWER,
            ("glm", "none"): "null is null where it is allowed, as in other forms",
            ("glm", "no lines"): "later models write no lines in the same form",
            ("hermes", "broken off"): "that a call has begun is told already",
            ("hermes", "a tag in a string"): _IN_STRING,
            ("hermes", "text after a call"): _TEXT_AFTER,
            ("qwen-xml", "broken off"): _NO_COMPLETION,
            ("qwen-xml", "no outer tags"): "told streamed, and it must not depend on that",
            ("qwen-xml", "a tag in a value"): _CLOSING_TAG,
            ("qwen-xml", "an unknown argument"): _UNTYPED,
        },
        "streamed": {
            ("hermes", "thinks of a call"): _CALLED_IN_THOUGHTS,
            ("qwen-xml", "thinks of a call"): _CALLED_IN_THOUGHTS,
            ("glm", "thinks of a call"): _CALLED_IN_THOUGHTS,
            ("llama", "thinks and calls"): _AFTER_BLANKS,
            ("llama", "opened, thinks and calls"): _AFTER_BLANKS,
            ("llama", "text with signs"): _NOT_LOST,
            ("llama", "an answer in JSON"): _ANSWER,
            ("glm", "none"): "null is null where it is allowed, as in other forms",
            ("glm", "no lines"): "later models write no lines in the same form",
            ("hermes", "broken off"): _NO_COMPLETION,
            ("hermes", "not JSON"): _NOT_LOST,
            ("qwen-xml", "broken off"): _NO_COMPLETION,
            ("qwen-xml", "a tag in a value"): _CLOSING_TAG,
            ("qwen-xml", "an unknown argument"): _UNTYPED,
        },
    },
    "vllm": {
        "whole": {
            ("hermes", "broken off"): "that a call has begun is told already",
            ("hermes", "a tag in a string"): _IN_STRING,
            ("hermes", "text after a call"): _TEXT_AFTER,
            ("qwen-xml", "broken off"): _NO_COMPLETION,
            ("qwen-xml", "a tag in a value"): _CLOSING_TAG,
            ("qwen-xml", "an unknown argument"): _UNTYPED,
        },
        "streamed": {
            ("llama", "no arguments"): "a call without arguments has an empty object",
            ("llama", "thinks and calls"): _AFTER_BLANKS,
            ("llama", "opened, thinks and calls"): _AFTER_BLANKS,
            ("llama", "an answer in JSON"): _ANSWER,
            ("hermes", "broken off"): _NO_COMPLETION,
            ("hermes", "not JSON"): _NOT_LOST,
            ("hermes", "a tag in a string"): _IN_STRING,
            ("hermes", "text after a call"): _TEXT_AFTER,
            ("hermes", "arguments first"): "arguments are those of the object, in any order",
            ("qwen-xml", "broken off"): _NO_COMPLETION,
            ("qwen-xml", "a tag in a value"): _CLOSING_TAG,
            ("qwen-xml", "an unknown argument"): _UNTYPED,
        },
    },
}


@pytest.fixture(scope="module", params=ORACLES)
def oracle(request: pytest.FixtureRequest) -> tuple[str, list[dict[str, Any]]]:
    """The name of another project, and what it makes of each reply of the corpus."""
    name: str = request.param
    cache = Path(os.environ.get("ALIPES_CACHE", "~/.cache/alipes")).expanduser()
    try:
        return name, ORACLES[name].read(cache, [reply.told() for reply in CORPUS])
    except Unavailable as reason:
        pytest.skip(str(reason))


@pytest.mark.parametrize("way", ["whole", "streamed"])
def test_replies_are_read_alike(oracle: tuple[str, list[dict[str, Any]]], way: str) -> None:
    name, told = oracle
    reasons = DIFFERENCES[name][way]
    wrong = []
    for reply, answer in zip(CORPUS, told, strict=True):
        mine, other = ours(reply), theirs(answer[way])
        if (mine != other) != ((reply.form, reply.name) in reasons):
            wrong.append((reply.form, reply.name, mine, other))
    assert not wrong, "\n".join(map(str, wrong))


def test_differences_are_of_the_corpus() -> None:
    known = {(reply.form, reply.name) for reply in CORPUS}
    named = {key for ways in DIFFERENCES.values() for keys in ways.values() for key in keys}
    assert named <= known
    assert len(known) == len(CORPUS)


@pytest.mark.parametrize("reply", CORPUS, ids=lambda reply: f"{reply.form}: {reply.name}")
def test_parts_are_the_whole(reply: Reply) -> None:
    assert "".join(reply.parts) == reply.text
