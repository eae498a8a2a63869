from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from alipes.instance.contract import FailureClass, Submit

PATH = "/v1/messages"
BODY = {
    "model": "hot-model",
    "max_tokens": 50,
    "messages": [{"role": "user", "content": "hi"}],
}
TOOLS = [{"name": "look", "description": "d", "input_schema": {"type": "object"}}]
Staged = Callable[..., None]


def _named(reply: Any) -> list[tuple[str, Any]]:
    found = []
    for block in reply.body.decode().strip().split("\n\n"):
        name, data = block.split("\n")
        found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


def test_whole_answer_counts_cached_tokens_apart(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        stage.fleet.auto = "hello"
        answer = (await stage.browser.post(PATH, BODY)).json()
        assert answer["type"] == "message"
        assert answer["content"] == [{"type": "text", "text": "hello"}]
        assert (answer["stop_reason"], answer["stop_sequence"]) == ("end_turn", None)
        assert answer["usage"] == {
            "input_tokens": len("user:hi\n") - 3,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 3,
            "output_tokens": 5,
        }

    staged(body)


def test_stop_reasons(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        stage.fleet.auto = "hello"
        answer = (await stage.browser.post(PATH, BODY | {"stop_sequences": ["ll"]})).json()
        assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", "ll")
        assert answer["content"][0]["text"] == "he"
        answer = (await stage.browser.post(PATH, BODY | {"max_tokens": 2})).json()
        assert answer["stop_reason"] == "max_tokens"

    staged(body)


def test_stream_follows_the_event_sequence(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        stage.fleet.auto = 'a(look|{"x":1})b'
        reply = await stage.browser.post(PATH, BODY | {"tools": TOOLS, "stream": True})
        events = _named(reply)
        assert all(name == data["type"] for name, data in events)
        assert events[0][0] == "message_start"
        assert events[0][1]["message"]["usage"]["cache_read_input_tokens"] == 3
        blocks = [(n, d.get("index")) for n, d in events if n.startswith("content_block")]
        assert [n for n, _ in events[-2:]] == ["message_delta", "message_stop"]
        starts = [d["content_block"] for n, d in events if n == "content_block_start"]
        assert [s["type"] for s in starts] == ["text", "tool_use", "text"]
        assert starts[1] == {"type": "tool_use", "id": "call_0", "name": "look", "input": {}}
        for index in range(3):
            names = [n for n, i in blocks if i == index]
            assert names[0] == "content_block_start"
            assert names[-1] == "content_block_stop"
            assert set(names[1:-1]) == {"content_block_delta"}
        assert [i for _, i in blocks] == sorted(i for _, i in blocks)
        arguments = "".join(
            d["delta"].get("partial_json", "") for n, d in events if n == "content_block_delta"
        )
        assert arguments == '{"x":1}'
        closing = events[-2][1]
        assert closing["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
        assert closing["usage"]["output_tokens"] == len(stage.fleet.auto)

    staged(body)


def test_whole_tool_use(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        stage.fleet.auto = 'see (look|{"x":1})'
        answer = (await stage.browser.post(PATH, BODY | {"tools": TOOLS})).json()
        assert answer["content"] == [
            {"type": "text", "text": "see "},
            {"type": "tool_use", "id": "call_0", "name": "look", "input": {"x": 1}},
        ]
        assert answer["stop_reason"] == "tool_use"

    staged(body)


CONVERSATION = {
    "model": "hot-model",
    "system": [{"type": "text", "text": "be", "cache_control": {"type": "ephemeral"}}],
    "thinking": {"type": "enabled", "budget_tokens": 1024},
    "metadata": {"user_id": "u"},
    "tools": TOOLS,
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "go"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "text", "text": "ok"},
                {"type": "tool_use", "id": "t1", "name": "look", "input": {"x": 1}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": "found"},
                {
                    "type": "tool_result",
                    "tool_use_id": "t2",
                    "content": [{"type": "text", "text": "more"}],
                    "is_error": False,
                },
                {"type": "text", "text": "next"},
            ],
        },
    ],
}


def test_blocks_become_template_messages(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        stage.fleet.auto = "x"
        reply = await stage.browser.post(PATH, CONVERSATION | {"max_tokens": 5})
        assert reply.status == 200
        messages, tools = stage.texts["hot-model"].seen[-1]
        assert messages == [
            {"role": "system", "content": "be"},
            {"role": "user", "content": "go"},
            {
                "role": "assistant",
                "content": "ok",
                "reasoning_content": "hm",
                "tool_calls": [
                    {
                        "id": "t1",
                        "type": "function",
                        "function": {"name": "look", "arguments": {"x": 1}},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": "t1", "content": "found"},
            {"role": "tool", "tool_call_id": "t2", "content": "more"},
            {"role": "user", "content": "next"},
        ]
        assert tools[0]["function"]["parameters"] == {"type": "object"}

    staged(body)


def test_count_tokens_needs_no_instance(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        reply = await stage.browser.post(PATH + "/count_tokens", CONVERSATION)
        assert reply.status == 200
        assert reply.json()["input_tokens"] > 20
        assert not stage.fleet.of(Submit)

    staged(body, connect=False)


def test_an_error_in_a_stream_is_its_last_event(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        raw = json.dumps(BODY | {"stream": True}).encode()
        reply, task = stage.browser.open("POST", PATH, raw, {"x-request-id": "mine"})
        ((instance, call),) = await stage.fleet.submitted()
        stage.fleet.start(instance, call)
        stage.fleet.say(instance, call, "ab")
        stage.fleet.fail(instance, call, FailureClass.INTERNAL, "broken")
        await task
        events = _named(reply)
        assert [name for name, _ in events].count("message_stop") == 0
        name, data = events[-1]
        assert (name, data["type"], data["request_id"]) == ("error", "error", "mine")
        assert data["error"] == {"type": "api_error", "message": "broken"}

    staged(body)


def test_errors_have_the_dialects_shape(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        for change, status, kind, word in (
            ({"max_tokens": 0}, 400, "invalid_request_error", "max_tokens"),
            ({"model": "gone"}, 404, "not_found_error", "model"),
            ({"tool_choice": {"type": "any"}}, 400, "invalid_request_error", "tool_choice"),
            (
                {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
                400,
                "invalid_request_error",
                "messages[0].content[0]",
            ),
        ):
            reply = await stage.browser.post(PATH, BODY | change)
            assert reply.status == status
            answer = reply.json()
            assert answer["type"] == "error"
            assert answer["error"]["type"] == kind
            assert word in answer["error"]["message"]

    staged(body)
