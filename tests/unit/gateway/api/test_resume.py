"""A call whose instance dies goes on elsewhere; its client sees one answer, in every dialect."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from alipes.instance.contract import Cancel, FailureClass, FinishReason

Staged = Callable[..., None]
CHAT = "/v1/chat/completions"
ASKED = [{"role": "user", "content": "hi"}]
DIALECTS = {
    CHAT: {"messages": ASKED},
    "/v1/completions": {"prompt": "hi", "max_tokens": 50},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": ASKED, "max_tokens": 50},
}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def raw(path: str, **fields: Any) -> bytes:
    return json.dumps({"model": "hot-model", **DIALECTS[path], **fields}).encode()


def text_of(path: str, reply: Any, stream: bool) -> str:
    """What the client has been told, as text."""
    if not stream:
        whole = reply.json()
        if path == "/v1/responses":
            return str(whole["output"][0]["content"][0]["text"])
        if path == "/v1/messages":
            return str(whole["content"][0]["text"])
        choice = whole["choices"][0]
        return str(choice["message"]["content"] if path == CHAT else choice["text"])
    said = []
    for event in reply.events():
        if isinstance(event, str):
            continue
        if path == "/v1/responses":
            said.append(event["delta"] if event["type"].endswith("text.delta") else "")
        elif path == "/v1/messages":
            said.append(event.get("delta", {}).get("text", ""))
        elif event["choices"]:
            choice = event["choices"][0]
            said.append(choice["delta"].get("content") or "" if path == CHAT else choice["text"])
    return "".join(said)


async def lost_after(stage: Any, text: str, count: int = 1) -> list[tuple[str, Any]]:
    """The first ``count`` calls draw ``text``, then their instance is lost; the calls that follow,
    of which the other instance hears."""
    calls = await stage.fleet.submitted(count)
    name = calls[0][0]
    stage.fleet.connect("hot-1", ["hot-model"])
    for _, call in calls:
        stage.fleet.start(name, call)
        stage.fleet.say(name, call, text)
    stage.dispatcher.lost(name, "killed")
    again = (await stage.fleet.submitted(2 * count))[count:]
    assert all(instance != name for instance, _ in again)
    return list(again)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", DIALECTS)
def test_an_answer_goes_on_from_what_was_sent(staged: Staged, path: str, stream: bool) -> None:
    async def body(stage: Any) -> None:
        reply, task = stage.browser.open("POST", path, raw(path, stream=stream, seed=7))
        ((name, again),) = await lost_after(stage, "ab")
        ((_, first), _) = await stage.fleet.submitted(2)
        ids = np.frombuffer(again.tokens, "<i4").tolist()
        assert ids == [*np.frombuffer(first.tokens, "<i4").tolist(), ord("a"), ord("b")]
        assert (again.resumed, first.resumed) == (2, 0)
        assert (again.sampling, again.max_tokens) == (first.sampling, first.max_tokens)
        assert again.call_id != first.call_id
        assert again.continuation
        # What the dead one may still have said is of nobody.
        stage.fleet.say("hot-0", first, "ghost")
        stage.fleet.start(name, again, cached=len(ids) - 1)
        stage.fleet.say(name, again, "cd")
        stage.fleet.finish(name, again, 4)
        await asyncio.wait_for(task, 5)
        assert text_of(path, reply, stream) == "abcd"
        assert b'alipes_resumed_streams_total{instance="hot-0"} 1.0' in stage.metrics.render()

    staged(body)


def test_usage_is_that_of_one_call(staged: Staged) -> None:
    """Cached tokens are those that the first attempt found of the prompt."""

    async def body(stage: Any) -> None:
        reply, task = stage.browser.open("POST", CHAT, raw(CHAT))
        ((name, again),) = await lost_after(stage, "abc")
        stage.fleet.start(name, again, cached=0)
        stage.fleet.say(name, again, "d")
        stage.fleet.finish(name, again, 4)
        await asyncio.wait_for(task, 5)
        usage = reply.json()["usage"]
        assert usage["completion_tokens"] == 4
        assert usage["prompt_tokens_details"]["cached_tokens"] == 3

    staged(body)


def test_a_stream_may_be_interrupted_again_and_again(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        reply, task = stage.browser.open("POST", CHAT, raw(CHAT, stream=True))
        for count, letter in enumerate("abcd", 1):
            name, call = (await stage.fleet.submitted(count))[-1]
            assert call.resumed == count - 1
            stage.fleet.start(name, call)
            stage.fleet.say(name, call, letter)
            stage.dispatcher.lost(name, "killed")
            stage.fleet.connect(name, ["hot-model"])
        name, call = (await stage.fleet.submitted(5))[-1]
        stage.fleet.finish(name, call, 5)
        await asyncio.wait_for(task, 5)
        assert text_of(CHAT, reply, True) == "abcd"
        assert reply.events()[-1] == "[DONE]"

    staged(body)


def test_a_drawn_stop_token_ends_a_call_whose_instance_is_lost_with_it(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        reply, task = stage.browser.open("POST", CHAT, raw(CHAT))
        ((name, call),) = await stage.fleet.submitted()
        stage.fleet.start(name, call)
        stage.fleet.say(name, call, "ab\0")
        stage.dispatcher.lost(name, "killed")
        await asyncio.wait_for(task, 5)
        assert reply.json()["choices"][0]["finish_reason"] == "stop"
        assert reply.json()["usage"]["completion_tokens"] == 3

    staged(body)


def test_a_stream_waits_for_the_only_instance_to_come_back(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        fields = {"model": "cold-model", "stream": True}
        reply, task = stage.browser.open("POST", CHAT, raw(CHAT, **fields))
        ((name, call),) = await stage.fleet.submitted()
        stage.fleet.say(name, call, "ab")
        stage.dispatcher.lost(name, "killed")
        await asyncio.sleep(0.02)
        assert not reply.complete
        stage.fleet.connect(name, ["cold-model"])
        again = (await stage.fleet.submitted(2))[-1][1]
        stage.fleet.say(name, again, "c")
        stage.fleet.finish(name, again, 4)
        await asyncio.wait_for(task, 5)
        assert text_of(CHAT, reply, True) == "abc"

    staged(body)


def test_a_stop_string_may_begin_before_the_interruption(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        reply, task = stage.browser.open("POST", CHAT, raw(CHAT, stream=True, stop=["cd"]))
        ((name, again),) = await lost_after(stage, "abc")
        stage.fleet.say(name, again, "de")
        await asyncio.wait_for(task, 5)
        assert text_of(CHAT, reply, True) == "ab"
        assert reply.events()[-2]["choices"][0]["finish_reason"] == "stop"
        assert [cancel.call_id for cancel in stage.fleet.of(Cancel)] == [again.call_id]

    staged(body)


@pytest.mark.parametrize("stream", [True, False])
def test_a_tool_call_may_be_cut_in_half(staged: Staged, stream: bool) -> None:
    async def body(stage: Any) -> None:
        reply, task = stage.browser.open("POST", CHAT, raw(CHAT, stream=stream, tools=[TOOL]))
        ((name, again),) = await lost_after(stage, '(f|{"a"')
        stage.fleet.say(name, again, ":1})")
        stage.fleet.finish(name, again, 13)
        await asyncio.wait_for(task, 5)
        if not stream:
            (call,) = reply.json()["choices"][0]["message"]["tool_calls"]
            assert call["function"] == {"name": "f", "arguments": '{"a":1}'}
            return
        choices = [e["choices"][0] for e in reply.events() if not isinstance(e, str)]
        pieces = [c["delta"]["tool_calls"][0] for c in choices if "tool_calls" in c["delta"]]
        assert {piece["index"] for piece in pieces} == {0}
        assert "".join(piece["function"]["arguments"] for piece in pieces) == '{"a":1}'
        assert choices[-1]["finish_reason"] == "tool_calls"

    staged(body)


def test_log_probabilities_are_of_all_tokens(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        fields = {"logprobs": True, "top_logprobs": 2}
        reply, task = stage.browser.open("POST", CHAT, raw(CHAT, **fields))
        ((name, again),) = await lost_after(stage, "ab")
        stage.fleet.say(name, again, "c")
        stage.fleet.finish(name, again, 4)
        await asyncio.wait_for(task, 5)
        content = reply.json()["choices"][0]["logprobs"]["content"]
        assert [entry["token"] for entry in content] == ["a", "b", "c"]
        assert all(len(entry["top_logprobs"]) == 2 for entry in content)

    staged(body)


def test_every_choice_goes_on_by_itself(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        reply, task = stage.browser.open("POST", CHAT, raw(CHAT, n=3, seed=5))
        again = await lost_after(stage, "a", count=3)
        assert sorted(call.sampling.seed for _, call in again) == [5, 6, 7]
        for name, call in again:
            stage.fleet.say(name, call, str(call.sampling.seed))
            stage.fleet.finish(name, call, 3)
        await asyncio.wait_for(task, 5)
        said = [choice["message"]["content"] for choice in reply.json()["choices"]]
        assert said == ["a5", "a6", "a7"]

    staged(body)


def test_forced_tokens_stay_those_of_the_whole_answer(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        forced = [ord(letter) for letter in "abcd"]
        reply, task = stage.browser.open("POST", CHAT, raw(CHAT, forced_token_ids=forced))
        ((name, again),) = await lost_after(stage, "ab")
        assert np.frombuffer(again.forced, "<i4").tolist() == forced
        stage.fleet.say(name, again, "cd")
        stage.fleet.finish(name, again, 5)
        await asyncio.wait_for(task, 5)
        assert text_of(CHAT, reply, False) == "abcd"

    staged(body)


def test_an_answer_that_lacks_only_its_end_is_not_asked_for_again(staged: Staged) -> None:
    """All tokens came, the word that they are all did not."""

    async def body(stage: Any) -> None:
        reply, task = stage.browser.open("POST", CHAT, raw(CHAT, max_tokens=3))
        ((name, call),) = await stage.fleet.submitted()
        stage.fleet.start(name, call)
        stage.fleet.say(name, call, "abc")
        stage.dispatcher.lost(name, "killed")
        await asyncio.wait_for(task, 5)
        choice = reply.json()["choices"][0]
        assert (choice["message"]["content"], choice["finish_reason"]) == ("abc", "length")
        assert reply.json()["usage"]["completion_tokens"] == 3
        assert len(await stage.fleet.submitted()) == 1

    staged(body)


@pytest.mark.parametrize("kind", [FailureClass.GONE, FailureClass.OVERLOADED])
def test_an_instance_that_gives_a_call_back_does_not_end_its_stream(
    staged: Staged, kind: FailureClass
) -> None:
    async def body(stage: Any) -> None:
        reply, task = stage.browser.open("POST", CHAT, raw(CHAT, stream=True))
        ((name, call),) = await stage.fleet.submitted()
        stage.fleet.say(name, call, "ab")
        stage.fleet.fail(name, call, kind, "the instance stops")
        again = (await stage.fleet.submitted(2))[-1][1]
        assert again.resumed == 2
        stage.fleet.finish(name, again, 2, FinishReason.LENGTH)
        await asyncio.wait_for(task, 5)
        assert text_of(CHAT, reply, True) == "ab"

    staged(body)


def test_a_defect_ends_a_stream_with_an_error(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        reply, task = stage.browser.open("POST", CHAT, raw(CHAT, stream=True))
        ((name, call),) = await stage.fleet.submitted()
        stage.fleet.say(name, call, "ab")
        stage.fleet.fail(name, call, FailureClass.INTERNAL, "broken")
        await asyncio.wait_for(task, 5)
        assert reply.events()[-1]["error"]["message"] == "broken"
        assert len(await stage.fleet.submitted()) == 1

    staged(body)


def test_a_client_that_leaves_while_its_stream_waits_is_forgotten(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        fields = {"model": "cold-model", "stream": True}
        reply, task = stage.browser.open("POST", CHAT, raw(CHAT, **fields))
        ((name, call),) = await stage.fleet.submitted()
        stage.fleet.say(name, call, "ab")
        await reply.until(lambda r: b"ab" in r.body or b'"b"' in r.body)
        stage.dispatcher.lost(name, "killed")
        stage.browser.leave.set()
        await asyncio.wait_for(task, 5)
        stage.fleet.connect(name, ["cold-model"])
        assert len(await stage.fleet.submitted()) == 1

    staged(body)
