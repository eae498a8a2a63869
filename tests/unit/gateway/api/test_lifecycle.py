"""Disconnects, lost instances, queueing, keep-alive: what a call goes through."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from alipes.gateway.calls.book import MAX_ATTEMPTS, MAX_LOSSES, PAUSE_NS
from alipes.gateway.calls.events import CallFailure, FailureKind
from alipes.gateway.config import Limits
from alipes.gateway.routing.decision import CallShape, Reason, Wait
from alipes.instance.contract import Cancel, FailureClass, Ping, Submit
from alipes.replay.stream import Answer, Lines

SILENCE = b'"delta":{},"logprobs":null,"finish_reason":null'
CHAT = "/v1/chat/completions"
BODY = {"model": "hot-model", "messages": [{"role": "user", "content": "hi"}]}
MESSAGE = BODY | {"max_tokens": 10}
Staged = Callable[..., None]


def _raw(**fields: Any) -> bytes:
    return json.dumps(BODY | fields).encode()


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("begun", [True, False])
def test_a_client_that_leaves_frees_its_call(staged: Staged, stream: bool, begun: bool) -> None:
    async def body(stage: Any) -> None:
        _, task = stage.browser.open("POST", CHAT, _raw(stream=stream))
        ((instance, call),) = await stage.fleet.submitted()
        if begun:
            stage.fleet.start(instance, call)
            stage.fleet.say(instance, call, "ab")
            await asyncio.sleep(0.01)
        stage.browser.leave.set()
        await asyncio.wait_for(task, 5)
        await stage.fleet.cancelled(call.call_id)
        assert stage.book.router.status(stage.dispatcher.now()).instances[1].placed == 0
        assert b'alipes_disconnects_total{model="hot-model"} 1.0' in stage.metrics.render()

    staged(body)


def test_the_instance_that_the_router_doubts_is_asked(
    staged: Staged, monkeypatch: pytest.MonkeyPatch
) -> None:
    def place(call: CallShape, now: int) -> Wait:
        return Wait(call.call_id, Reason.CHECK, (), "hot-0")

    async def body(stage: Any) -> None:
        monkeypatch.setattr(stage.dispatcher.book.router, "place", place)
        _, task = stage.browser.open("POST", CHAT, _raw())
        for _ in range(2000):
            if stage.fleet.sent:
                break
            await asyncio.sleep(0.001)
        assert stage.fleet.sent == [("hot-0", Ping())]
        stage.browser.leave.set()
        await asyncio.wait_for(task, 5)

    staged(body)


def test_a_client_that_leaves_the_queue_is_forgotten(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        _, task = stage.browser.open("POST", CHAT, _raw())
        await asyncio.sleep(0.02)
        assert len(stage.book) == 1
        stage.browser.leave.set()
        await asyncio.wait_for(task, 5)
        assert len(stage.book) == 0
        stage.connect_all()
        await asyncio.sleep(0)
        assert stage.fleet.of(Submit) == []

    staged(body, connect=False)


def test_a_queued_call_goes_as_soon_as_an_instance_comes(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        stage.fleet.auto = "late"
        reply, task = stage.browser.open("POST", CHAT, _raw())
        await asyncio.sleep(0.02)
        stage.connect_all()
        await asyncio.wait_for(task, 5)
        assert reply.json()["choices"][0]["message"]["content"] == "late"

    staged(body, connect=False)


@pytest.mark.parametrize("how", ["lost", "overloaded", "gone"])
def test_a_call_without_a_token_moves_to_another_instance(staged: Staged, how: str) -> None:
    async def body(stage: Any) -> None:
        stage.fleet.connect("hot-1", ["hot-model"])
        reply, task = stage.browser.open("POST", CHAT, _raw(stream=True))
        ((first, call),) = await stage.fleet.submitted()
        stage.fleet.start(first, call)
        if how == "lost":
            stage.dispatcher.lost(first, "killed")
        else:
            stage.fleet.fail(first, call, FailureClass(how))
        (_, (second, again)) = await stage.fleet.submitted(2)
        assert again.call_id != call.call_id
        assert again.tokens == call.tokens
        assert again.sampling == call.sampling
        if how == "lost":
            assert second != first
        stage.fleet.say(first, call, "ghost")
        stage.fleet.answer(second, again, "real")
        await asyncio.wait_for(task, 5)
        events = reply.events()
        text = "".join(e["choices"][0]["delta"].get("content") or "" for e in events[:-1])
        assert text == "real"

    staged(body)


def test_a_client_that_leaves_between_two_attempts_is_forgotten(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        _, task = stage.browser.open("POST", CHAT, _raw())
        ((instance, call),) = await stage.fleet.submitted()
        stage.fleet.fail(instance, call, FailureClass.OVERLOADED)
        stage.browser.leave.set()
        await asyncio.wait_for(task, 5)
        await asyncio.sleep(2 * PAUSE_NS / 1e9)
        assert len(stage.fleet.of(Submit)) == 1

    staged(body)


def test_an_instance_that_always_refuses_is_not_asked_for_ever(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        reply, task = stage.browser.open("POST", CHAT, _raw())
        for attempt in range(1, MAX_ATTEMPTS + 1):
            calls = await stage.fleet.submitted(attempt)
            stage.fleet.fail(*calls[-1], FailureClass.OVERLOADED, "waiting queue is full")
        await asyncio.wait_for(task, 5)
        assert reply.status == 503
        assert "waiting queue is full" in reply.json()["error"]["message"]

    staged(body)


@pytest.mark.parametrize("broken", [False, True])
def test_instances_do_not_die_of_one_call_without_end(staged: Staged, broken: bool) -> None:
    """Unless it gets on: then it may be anything else that they die of."""

    async def body(stage: Any) -> None:
        reply, task = stage.browser.open("POST", CHAT, _raw(stream=True))

        async def die(attempt: int, token: bool) -> None:
            name, call = (await stage.fleet.submitted(attempt))[-1]
            stage.fleet.start(name, call)
            stage.fleet.say(name, call, "x" if token else "")
            if broken:
                stage.fleet.fail(name, call, FailureClass.BROKEN, "the engine loop broke: Oops()")
            else:
                stage.fleet.connect(name, ["hot-model"])

        for attempt in range(1, 2 * MAX_LOSSES):
            await die(attempt, token=attempt <= MAX_LOSSES)
        await asyncio.wait_for(task, 5)
        assert reply.status == 200
        assert len(stage.fleet.of(Submit)) == 2 * MAX_LOSSES - 1
        error = reply.events()[-1]["error"]
        assert ("the engine loop broke" if broken else "was lost") in error["message"]

    staged(body)


def test_an_error_known_at_once_is_a_status_in_a_stream_too(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        reply, task = stage.browser.open("POST", CHAT, _raw(stream=True))
        ((instance, call),) = await stage.fleet.submitted()
        stage.fleet.fail(instance, call, FailureClass.INVALID, "cannot be")
        await asyncio.wait_for(task, 5)
        assert reply.status == 400
        assert reply.json()["error"]["message"] == "cannot be"

    staged(body)


def test_empty_chunks_keep_a_silent_stream_alive(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        reply, task = stage.browser.open("POST", CHAT, _raw(stream=True))
        await reply.until(lambda r: r.body.count(SILENCE) >= 2)
        assert reply.status == 200
        assert "x-alipes-instance" not in reply.headers
        stage.connect_all()
        calls = await stage.fleet.submitted()
        stage.fleet.answer(*calls[0], "ok")
        await asyncio.wait_for(task, 5)
        assert reply.events()[-1] == "[DONE]"

    staged(body, connect=False, limits=Limits(keep_alive=0.05))


@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
def test_a_replay_takes_no_silence_for_a_token(staged: Staged, path: str) -> None:
    async def body(stage: Any) -> None:
        asked = {"model": "hot-model", "prompt": "x", "messages": BODY["messages"]}
        raw = json.dumps({**asked, "stream": True}).encode()
        reply, task = stage.browser.open("POST", path, raw)
        await reply.until(lambda r: r.body.count(b"data: ") >= 4)
        answer, lines = Answer(), Lines()
        for line in lines.take(bytes(reply.body)):
            answer.take(line, lambda: 1)
        assert answer.first is None
        stage.connect_all()
        calls = await stage.fleet.submitted()
        seen = len(reply.body)
        stage.fleet.answer(*calls[0], "ok")
        await asyncio.wait_for(task, 5)
        for line in lines.take(bytes(reply.body[seen:])):
            answer.take(line, lambda: 2)
        assert (answer.first, answer.error) == (2, "")

    staged(body, connect=False, limits=Limits(keep_alive=0.05))


def test_pings_keep_a_silent_message_stream_alive(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        raw = json.dumps(MESSAGE | {"stream": True}).encode()
        reply, task = stage.browser.open("POST", "/v1/messages", raw)
        ((instance, call),) = await stage.fleet.submitted()
        await reply.until(lambda r: r.body.count(b'{"type":"ping"}') >= 3)
        assert reply.headers["x-alipes-instance"] == instance
        assert reply.body.startswith(b"event: message_start\n")
        stage.fleet.answer(instance, call, "ok")
        await asyncio.wait_for(task, 5)
        assert reply.body.endswith(b'{"type":"message_stop"}\n\n')

    staged(body, limits=Limits(keep_alive=0.05))


def test_empty_chunks_come_while_a_prompt_is_computed(staged: Staged) -> None:
    """After the headers and the start of the call: a long prefill, or a model that is opened."""

    async def body(stage: Any) -> None:
        reply, task = stage.browser.open("POST", CHAT, _raw(stream=True, stop=["xy"]))
        ((instance, call),) = await stage.fleet.submitted()
        stage.fleet.start(instance, call)
        await reply.until(lambda r: r.body.count(SILENCE) >= 2)
        assert reply.headers["x-alipes-instance"] == instance
        # A token whose text is held back, as it may begin a stop string, shows nothing.
        stage.fleet.say(instance, call, "x")
        seen = reply.body.count(SILENCE)
        await reply.until(lambda r: r.body.count(SILENCE) >= seen + 2)
        stage.fleet.finish(instance, call, 1)
        await asyncio.wait_for(task, 5)
        assert b'"content":"x"' in reply.body

    staged(body, limits=Limits(keep_alive=0.05))


def test_the_headers_of_a_placed_stream_do_not_wait_for_its_start(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        reply, task = stage.browser.open("POST", CHAT, _raw(stream=True))
        ((instance, call),) = await stage.fleet.submitted()
        await reply.until(lambda r: r.status == 200)
        assert reply.headers["x-alipes-instance"] == instance
        stage.fleet.answer(instance, call, "ok")
        await asyncio.wait_for(task, 5)

    staged(body, limits=Limits(keep_alive=60))


def test_a_full_queue_is_503_with_retry_after(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        waiting = [stage.browser.open("POST", CHAT, _raw())[1] for _ in range(2)]
        await asyncio.sleep(0.02)
        reply = await stage.browser.post(CHAT, BODY)
        assert reply.status == 503
        assert int(reply.headers["retry-after"]) >= 1
        stage.browser.leave.set()
        await asyncio.gather(*waiting)

    staged(body, connect=False, limits=Limits(queue_depth=2))


@pytest.mark.parametrize("stream", [True, False])
def test_waiting_too_long_is_503(staged: Staged, stream: bool) -> None:
    async def body(stage: Any) -> None:
        reply = await stage.browser.post(CHAT, BODY | {"stream": stream})
        assert reply.status == 503
        assert reply.json()["error"]["code"] == "server_is_overloaded"
        assert int(reply.headers["retry-after"]) >= 1

    staged(body, connect=False, limits=Limits(queue_timeout=0.1))


def test_the_queue_timeout_of_an_open_stream_is_an_event(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        reply = await stage.browser.post(CHAT, BODY | {"stream": True})
        assert reply.status == 200
        assert reply.events()[-1]["error"]["code"] == "server_is_overloaded"

    staged(body, connect=False, limits=Limits(queue_timeout=0.2, keep_alive=0.05))


def test_one_failing_choice_ends_the_others(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        reply, task = stage.browser.open("POST", CHAT, _raw(n=2))
        (first, second) = await stage.fleet.submitted(2)
        stage.fleet.fail(*first, FailureClass.INTERNAL, "broken")
        await asyncio.wait_for(task, 5)
        assert reply.status == 500
        await stage.fleet.cancelled(second[1].call_id)
        assert len(stage.fleet.of(Cancel)) == 1

    staged(body)


def test_no_call_starts_once_the_gateway_stops(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        stage.service.stopping = True
        reply = await stage.browser.post("/v1/messages", MESSAGE)
        assert (reply.status, reply.json()["error"]["type"]) == (503, "overloaded_error")
        assert (await stage.browser.get("/ready")).status == 503
        assert (await stage.browser.get("/health")).status == 200

    staged(body)


def test_a_gateway_that_stops_frees_what_still_runs(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        reply, task = stage.browser.open("POST", CHAT, _raw())
        ((_, call),) = await stage.fleet.submitted()
        stage.dispatcher.fail_all(CallFailure(FailureKind.STOPPING, "stopping"))
        await asyncio.wait_for(task, 5)
        assert (reply.status, reply.json()["error"]["code"]) == (503, "shutting_down")
        assert [cancel.call_id for cancel in stage.fleet.of(Cancel)] == [call.call_id]

    staged(body)


def test_a_defect_is_a_500_that_names_the_request(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        async def broken(*_: Any) -> Any:
            raise RuntimeError("secret detail")

        stage.texts["hot-model"].chat = broken
        reply = await stage.browser.post(CHAT, BODY, {"x-request-id": "abc"})
        assert reply.status == 500
        message = reply.json()["error"]["message"]
        assert "abc" in message
        assert "secret" not in message

    staged(body)
