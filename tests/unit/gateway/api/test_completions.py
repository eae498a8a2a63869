from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from alipes.instance.contract import Submit

PATH = "/v1/completions"
BODY = {"model": "hot-model", "prompt": "once"}
Staged = Callable[..., None]


def test_whole_answer(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        stage.fleet.auto = " upon"
        answer = (await stage.browser.post(PATH, BODY)).json()
        assert answer["object"] == "text_completion"
        assert answer["choices"] == [
            {"index": 0, "text": " upon", "logprobs": None, "finish_reason": "stop"}
        ]
        details = answer["usage"]["prompt_tokens_details"]
        assert details == {"cached_tokens": 3, "restored_tokens": 0}
        (call,) = stage.fleet.of(Submit)
        assert call.max_tokens == 16

    staged(body)


def test_prompt_as_token_ids_goes_out_as_it_is(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        stage.fleet.auto = "x"
        await stage.browser.post(PATH, BODY | {"prompt": [5, 6, 70000 & 0xFFF]})
        (call,) = stage.fleet.of(Submit)
        assert np.frombuffer(call.tokens, "<i4").tolist() == [5, 6, 70000 & 0xFFF]

    staged(body)


def test_several_prompts_times_n_are_numbered_prompt_by_prompt(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        stage.fleet.auto = "x"
        answer = (await stage.browser.post(PATH, BODY | {"prompt": ["a", "bcd"], "n": 2})).json()
        assert [c["index"] for c in answer["choices"]] == [0, 1, 2, 3]
        assert answer["usage"]["prompt_tokens"] == 4
        details = answer["usage"]["prompt_tokens_details"]
        assert details == {"cached_tokens": 6, "restored_tokens": 0}
        prompts = [len(call.tokens) // 4 for call in stage.fleet.of(Submit)]
        assert prompts == [1, 1, 3, 3]

    staged(body)


def test_stream_and_legacy_logprobs(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        stage.fleet.auto = "abc"
        whole = (await stage.browser.post(PATH, BODY | {"logprobs": 1})).json()
        expected = {
            "tokens": ["a", "b", "c"],
            "token_logprobs": [-0.5] * 3,
            "top_logprobs": [{"a": -0.5}, {"b": -0.5}, {"c": -0.5}],
            "text_offset": [0, 1, 2],
        }
        assert whole["choices"][0]["logprobs"] == expected
        reply = await stage.browser.post(PATH, BODY | {"logprobs": 1, "stream": True})
        *events, done = reply.events()
        assert done == "[DONE]"
        choices = [e["choices"][0] for e in events]
        assert "".join(c["text"] for c in choices) == "abc"
        offsets = [
            o for c in choices for o in (c["logprobs"] or {"text_offset": []})["text_offset"]
        ]
        assert offsets == [0, 1, 2]
        assert [c["finish_reason"] for c in choices if c["finish_reason"]] == ["stop"]

    staged(body)
