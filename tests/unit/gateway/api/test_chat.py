from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from alipes.instance.contract import Submit

CHAT = "/v1/chat/completions"
BODY = {"model": "hot-model", "messages": [{"role": "user", "content": "hi"}]}
Staged = Callable[..., None]


def test_whole_answer_with_usage_and_placement_headers(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        stage.fleet.auto = "hello"
        reply = await stage.browser.post(CHAT, BODY, {"x-request-id": "mine-1"})
        assert reply.status == 200
        assert reply.headers["x-request-id"] == "mine-1"
        assert reply.headers["x-alipes-instance"] == "hot-0"
        assert reply.headers["x-alipes-reason"]
        answer = reply.json()
        assert answer["object"] == "chat.completion"
        (choice,) = answer["choices"]
        assert choice["message"] == {"role": "assistant", "content": "hello", "refusal": None}
        assert choice["finish_reason"] == "stop"
        prompt = len("user:hi\n")
        assert answer["usage"] == {
            "prompt_tokens": prompt,
            "completion_tokens": 5,
            "total_tokens": prompt + 5,
            "prompt_tokens_details": {"cached_tokens": 3, "restored_tokens": 0},
        }

    staged(body)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
def test_cached_tokens_are_told_when_there_are_none(
    staged: Staged, path: str, stream: bool
) -> None:
    async def body(stage: Any) -> None:
        options = {"stream": stream, "stream_options": {"include_usage": True}, "prompt": "hi"}
        reply, task = stage.browser.open("POST", path, _json(BODY | options))
        ((instance, call),) = await stage.fleet.submitted()
        stage.fleet.start(instance, call, cached=0)
        stage.fleet.say(instance, call, "a")
        stage.fleet.finish(instance, call, 1)
        await task
        usage = reply.events()[-2]["usage"] if stream else reply.json()["usage"]
        assert usage["prompt_tokens_details"] == {"cached_tokens": 0, "restored_tokens": 0}

    staged(body)


def test_sampling_reaches_the_instance(staged: Staged) -> None:
    fields = {
        "temperature": 0.0,
        "top_p": 0.5,
        "top_k": 7,
        "min_p": 0.1,
        "seed": -1,
        "frequency_penalty": 0.25,
        "presence_penalty": -0.25,
        "repetition_penalty": 1.5,
        "logit_bias": {"65": 5},
        "logprobs": True,
        "top_logprobs": 2,
        "max_completion_tokens": 9,
        "ignore_eos": True,
        "forced_token_ids": [65, 66],
        "user": "someone",
        "metadata": {"unknown": ["fields", "are", "fine"]},
    }

    async def body(stage: Any) -> None:
        stage.fleet.auto = "hello"
        reply = await stage.browser.post(CHAT, BODY | fields)
        assert reply.status == 200
        (call,) = stage.fleet.of(Submit)
        sampling = call.sampling
        assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.0, 0.5, 7)
        assert (sampling.min_p, sampling.seed) == (0.1, (1 << 63) - 1)
        assert (sampling.frequency_penalty, sampling.presence_penalty) == (0.25, -0.25)
        assert (sampling.repetition_penalty, sampling.logit_bias) == (1.5, {65: 5.0})
        assert (sampling.top_logprobs, call.max_tokens, call.stop_ids) == (2, 9, ())
        assert call.forced == b"\x41\0\0\0\x42\0\0\0"
        assert len(call.call_id) == 16
        assert len(call.root) == 16

    staged(body)


def test_a_seed_is_drawn_where_none_is_sent(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        stage.fleet.auto = "x"
        for _ in range(2):
            await stage.browser.post(CHAT, BODY | {"n": 2})
        seeds = [call.sampling.seed for call in stage.fleet.of(Submit)]
        assert len(set(seeds)) == 4
        assert (seeds[1] - seeds[0]) % (1 << 63) == 1

    staged(body)


def test_max_tokens_is_what_fits_the_context(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        stage.fleet.auto = "x"
        await stage.browser.post(CHAT, BODY | {"max_tokens": 10**12})
        await stage.browser.post(CHAT, BODY)
        first, second = stage.fleet.of(Submit)
        assert first.max_tokens == 2000 - len("user:hi\n")
        assert second.max_tokens == 1024

    staged(body)


def test_max_tokens_is_what_fits_the_roomiest_instance(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        stage.fleet.auto = "x"
        stage.fleet.connect("hot-0", ["hot-model"], kv_blocks=2)
        stage.fleet.connect("hot-1", ["hot-model"], kv_blocks=1)
        reply = await stage.browser.post(CHAT, BODY | {"max_tokens": 32_000})
        assert reply.status == 200
        (sent,) = stage.fleet.of(Submit)
        assert sent.max_tokens == 2 * 64 + 1 - len("user:hi\n")
        long = [{"role": "user", "content": "x" * 130}]
        reply = await stage.browser.post(CHAT, BODY | {"messages": long})
        assert reply.json()["error"]["code"] == "context_length_exceeded"
        assert "129 tokens" in reply.json()["error"]["message"]
        shown = (await stage.browser.get("/v1/models/hot-model")).json()
        assert shown["max_model_len"] == 129

    staged(body)


@pytest.mark.parametrize("include_usage", [True, False])
def test_stream(staged: Staged, include_usage: bool) -> None:
    async def body(stage: Any) -> None:
        stage.fleet.auto = "héllo"
        options = {"stream": True, "stream_options": {"include_usage": include_usage}}
        reply = await stage.browser.post(CHAT, BODY | options)
        assert reply.headers["content-type"].startswith("text/event-stream")
        assert reply.headers["x-alipes-instance"] == "hot-0"
        *events, done = reply.events()
        assert done == "[DONE]"
        usage = events.pop() if include_usage else None
        assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        text = "".join(e["choices"][0]["delta"].get("content") or "" for e in events)
        assert text == "héllo"
        reasons = [e["choices"][0]["finish_reason"] for e in events]
        assert reasons == [None] * (len(events) - 1) + ["stop"]
        assert len({e["id"] for e in events}) == 1
        assert ("usage" in events[0]) is include_usage
        if usage:
            assert usage["choices"] == []
            details = usage["usage"]["prompt_tokens_details"]
            assert details == {"cached_tokens": 3, "restored_tokens": 0}
            assert usage["usage"]["completion_tokens"] == 5

    staged(body)


def test_every_token_is_written_when_it_comes(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        reply, task = stage.browser.open("POST", CHAT, _json(BODY | {"stream": True}))
        ((instance, call),) = await stage.fleet.submitted()
        stage.fleet.start(instance, call)
        for letter in "abc":
            stage.fleet.say(instance, call, letter)
            await reply.until(lambda r, s=letter: f'"content":"{s}"'.encode() in r.body)
        stage.fleet.finish(instance, call, 3)
        await task
        assert reply.complete

    staged(body)


def test_stop_string_cancels_and_does_not_bill_the_excess(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        stage.fleet.auto = None
        reply, task = stage.browser.open("POST", CHAT, _json(BODY | {"stop": ["ENDS", "XY"]}))
        ((instance, call),) = await stage.fleet.submitted()
        stage.fleet.start(instance, call)
        stage.fleet.say(instance, call, "one XYtwo three")
        await task
        await stage.fleet.cancelled(call.call_id)
        answer = reply.json()
        assert answer["choices"][0]["message"]["content"] == "one "
        assert answer["choices"][0]["finish_reason"] == "stop"
        assert answer["usage"]["completion_tokens"] == len("one XY")

    staged(body)


def test_held_back_text_of_a_possible_stop_is_given_at_the_end(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        stage.fleet.auto = "one EN"
        reply = await stage.browser.post(CHAT, BODY | {"stop": "ENDS", "stream": True})
        deltas = [e["choices"][0]["delta"] for e in reply.events()[:-1]]
        assert "".join(d.get("content") or "" for d in deltas) == "one EN"

    staged(body)


def test_choices_have_their_own_index_and_one_prompt_is_billed(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        stage.fleet.auto = "ab"
        answer = (await stage.browser.post(CHAT, BODY | {"n": 3})).json()
        assert [c["index"] for c in answer["choices"]] == [0, 1, 2]
        assert answer["usage"]["completion_tokens"] == 6
        assert answer["usage"]["prompt_tokens"] == len("user:hi\n")
        reply = await stage.browser.post(CHAT, BODY | {"n": 2, "stream": True})
        for index in (0, 1):
            mine = [
                e["choices"][0] for e in reply.events()[:-1] if e["choices"][0]["index"] == index
            ]
            assert "".join(c["delta"].get("content") or "" for c in mine) == "ab"
            assert [c["finish_reason"] for c in mine if c["finish_reason"]] == ["stop"]

    staged(body)


def test_logprobs_follow_the_chat_shape(staged: Staged) -> None:
    fields = {"logprobs": True, "top_logprobs": 2}

    async def body(stage: Any) -> None:
        stage.fleet.auto = "ab"
        answer = (await stage.browser.post(CHAT, BODY | fields)).json()
        content = answer["choices"][0]["logprobs"]["content"]
        assert [entry["token"] for entry in content] == ["a", "b"]
        assert content[0]["bytes"] == [97]
        assert content[0]["logprob"] == -0.5
        assert [top["token"] for top in content[0]["top_logprobs"]] == ["a", "b"]
        reply = await stage.browser.post(CHAT, BODY | fields | {"stream": True})
        streamed = [
            entry["token"]
            for e in reply.events()[:-1]
            for entry in (e["choices"][0]["logprobs"] or {"content": []})["content"]
        ]
        assert streamed == ["a", "b"]

    staged(body)


TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]


def test_tool_calls_stream_as_argument_deltas(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        stage.fleet.auto = 'ok (look|{"a":1})(find|{})'
        reply = await stage.browser.post(CHAT, BODY | {"tools": TOOLS, "stream": True})
        choices = [e["choices"][0] for e in reply.events()[:-1]]
        calls: dict[int, dict[str, str]] = {}
        for part in [t for c in choices for t in c["delta"].get("tool_calls", [])]:
            if "id" in part:
                assert part["index"] not in calls
                calls[part["index"]] = {"name": part["function"]["name"], "arguments": ""}
            calls[part["index"]]["arguments"] += part["function"]["arguments"]
        assert calls == {
            0: {"name": "look", "arguments": '{"a":1}'},
            1: {"name": "find", "arguments": "{}"},
        }
        assert [c["finish_reason"] for c in choices if c["finish_reason"]] == ["tool_calls"]

    staged(body)


@pytest.mark.parametrize("stream", [True, False])
def test_a_tool_call_cut_off_ends_by_its_length(staged: Staged, stream: bool) -> None:
    async def body(stage: Any) -> None:
        stage.fleet.auto = '(look|{"a":1})'
        fields = {"tools": TOOLS, "max_tokens": 9, "stream": stream}
        reply = await stage.browser.post(CHAT, BODY | fields)
        answers = reply.events()[:-1] if stream else [reply.json()]
        reasons = [a["choices"][0]["finish_reason"] for a in answers]
        assert [reason for reason in reasons if reason] == ["length"]

    staged(body)


def test_whole_tool_calls(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        stage.fleet.auto = '(look|{"a":1})'
        answer = (await stage.browser.post(CHAT, BODY | {"tools": TOOLS})).json()
        message = answer["choices"][0]["message"]
        assert message["content"] is None
        assert message["tool_calls"] == [
            {
                "id": "call_0",
                "type": "function",
                "function": {"name": "look", "arguments": '{"a":1}'},
            }
        ]
        assert answer["choices"][0]["finish_reason"] == "tool_calls"

    staged(body)


def test_tool_choice_none_withholds_calls_and_leaves_the_prompt_as_it_is(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        stage.fleet.auto = "a(look|{})b"
        await stage.browser.post(CHAT, BODY | {"tools": TOOLS})
        fields = {"tools": TOOLS, "tool_choice": "none"}
        (choice,) = (await stage.browser.post(CHAT, BODY | fields)).json()["choices"]
        assert choice["message"]["content"] == "ab"
        assert "tool_calls" not in choice["message"]
        assert choice["finish_reason"] == "stop"
        before, after = stage.texts["hot-model"].seen[-2:]
        assert before == after

    staged(body)


def test_a_choice_that_stops_early_leaves_the_others_running(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        reply, task = stage.browser.open("POST", CHAT, _json(BODY | {"n": 2, "stop": "X"}))
        calls = await stage.fleet.submitted(2)
        for instance, call in calls:
            stage.fleet.start(instance, call)
        stage.fleet.say(*calls[0], "aX")
        await stage.fleet.cancelled(calls[0][1].call_id)
        await asyncio.sleep(0)
        assert not reply.complete
        stage.fleet.say(*calls[1], "b")
        stage.fleet.finish(*calls[1], 1)
        await task
        texts = [c["message"]["content"] for c in reply.json()["choices"]]
        assert texts == ["a", "b"]

    staged(body)


def _json(value: Any) -> bytes:
    return msgspec.json.encode(value)
