"""``/v1/responses``: whole and streamed answers, tools, conversations that go on, errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from alipes.gateway.config import ApiKey, Limits
from alipes.gateway.text.errors import TextError
from alipes.instance.contract import FailureClass, Submit

PATH = "/v1/responses"
BODY = {"model": "hot-model", "input": "hi"}
LOOK = {"type": "function", "name": "look", "parameters": {"type": "object"}}
Staged = Callable[..., None]


def _text(stage: Any) -> list[dict[str, Any]]:
    """The messages that the template saw last."""
    messages: list[dict[str, Any]] = stage.texts["hot-model"].seen[-1][0]
    return messages


async def _post(stage: Any, headers: dict[str, str] | None = None, **fields: Any) -> Any:
    reply = await stage.browser.post(PATH, BODY | fields, headers)
    assert reply.status == 200, reply.body
    return reply.json()


def test_whole_response(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        stage.fleet.auto = "hello"
        reply = await stage.browser.post(
            PATH,
            BODY | {"instructions": "be brief", "metadata": {"a": "b"}, "temperature": 0.5},
            {"x-request-id": "mine"},
        )
        assert reply.status == 200
        assert reply.headers["x-alipes-instance"] == "hot-0"
        answer = reply.json()
        assert answer["id"].startswith("resp_")
        assert "mine" not in answer["id"]
        assert answer["object"] == "response"
        assert answer["status"] == "completed"
        assert answer["error"] is None
        assert answer["incomplete_details"] is None
        assert answer["instructions"] == "be brief"
        assert answer["metadata"] == {"a": "b"}
        assert (answer["temperature"], answer["top_p"]) == (0.5, 1.0)
        (message,) = answer["output"]
        assert message["type"] == "message"
        assert (message["role"], message["status"]) == ("assistant", "completed")
        part = {"type": "output_text", "text": "hello", "annotations": [], "logprobs": []}
        assert message["content"] == [part]
        prompt = len("system:be brief\nuser:hi\n")
        assert answer["usage"] == {
            "input_tokens": prompt,
            "input_tokens_details": {
                "cached_tokens": 3,
                "restored_tokens": 0,
                "cache_write_tokens": 0,
            },
            "output_tokens": 5,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt + 5,
        }

    staged(body)


def test_streamed_events_are_in_order_and_numbered(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        stage.fleet.auto = "S(look|{}) T"
        reply = await stage.browser.post(PATH, BODY | {"stream": True, "tools": [LOOK]})
        assert reply.headers["content-type"].startswith("text/event-stream")
        events = reply.events()
        names = [
            line.removeprefix("event: ")
            for line in reply.body.decode().split("\n")
            if line.startswith("event: ")
        ]
        assert names == [event["type"] for event in events]
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        message = [
            "response.output_item.added",
            "response.content_part.added",
            "response.output_text.delta",
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
        ]
        call = [
            "response.output_item.added",
            "response.function_call_arguments.delta",
            "response.function_call_arguments.delta",
            "response.function_call_arguments.done",
            "response.output_item.done",
        ]
        last = [*message[:3], *message[2:]]
        opening = ["response.created", "response.in_progress"]
        assert names == [*opening, *message, *call, *last, "response.completed"]
        done = [e["item"] for e in events if e["type"] == "response.output_item.done"]
        final = events[-1]["response"]
        assert final["output"] == done
        assert [item["type"] for item in done] == ["message", "function_call", "message"]
        assert {k: done[1][k] for k in ("name", "arguments", "call_id", "status")} == {
            "name": "look",
            "arguments": "{}",
            "call_id": "call_0",
            "status": "completed",
        }
        assert done[2]["content"][0]["text"] == " T"
        for event in events[2:-1]:
            assert event["output_index"] == int(_item_id(event)[-1])
        added = next(e for e in events if e["type"] == "response.output_item.added")
        assert added["item"]["content"] == []
        assert events[0]["response"]["status"] == "in_progress"
        assert events[0]["response"]["usage"] is None
        assert final["usage"]["output_tokens"] == len("S(look|{}) T")

    staged(body)


def _item_id(event: dict[str, Any]) -> str:
    found: str = event["item"]["id"] if "item" in event else event["item_id"]
    return found


def test_whole_and_streamed_say_the_same(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        stage.fleet.auto = "a(look|{})b"
        whole = await _post(stage, tools=[LOOK])
        streamed = await stage.browser.post(PATH, BODY | {"stream": True, "tools": [LOOK]})
        final = streamed.events()[-1]["response"]
        for item in (*whole["output"], *final["output"]):
            item.pop("id")
        same = set(whole) - {"id", "created_at", "completed_at"}
        assert {k: whole[k] for k in same} == {k: final[k] for k in same}

    staged(body)


@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_cut_off_is_incomplete(staged: Staged, stream: bool) -> None:
    async def body(stage: Any) -> None:
        stage.fleet.auto = "hello"
        fields = {"stream": stream, "max_output_tokens": 3}
        reply = await stage.browser.post(PATH, BODY | fields)
        if stream:
            assert reply.events()[-1]["type"] == "response.incomplete"
            assert reply.events()[-2]["item"]["status"] == "incomplete"
        answer = reply.events()[-1]["response"] if stream else reply.json()
        assert answer["status"] == "incomplete"
        assert answer["incomplete_details"] == {"reason": "max_output_tokens"}
        assert answer["output"][0]["status"] == "incomplete"
        assert answer["output"][0]["content"][0]["text"] == "hel"
        assert "completed_at" not in answer

    staged(body)


def test_an_answer_without_a_token_has_no_items(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        stage.fleet.auto = ""
        assert (await _post(stage))["output"] == []

    staged(body)


def test_a_stream_that_breaks_fails_with_what_there_is(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        reply, task = stage.browser.open("POST", PATH, _raw(stream=True))
        ((instance, call),) = await stage.fleet.submitted()
        stage.fleet.start(instance, call)
        stage.fleet.say(instance, call, "ab")
        await reply.until(lambda r: b'"delta":"b"' in r.body)
        stage.fleet.fail(instance, call, FailureClass.INTERNAL, "broken")
        await task
        last = reply.events()[-1]
        assert last["type"] == "response.failed"
        assert last["sequence_number"] == len(reply.events()) - 1
        response = last["response"]
        assert response["status"] == "failed"
        assert response["error"] == {"code": "server_error", "message": "broken"}
        assert response["output"][0]["content"][0]["text"] == "ab"
        missing = await stage.browser.get(f"{PATH}/{response['id']}")
        assert missing.status == 404

    staged(body)


def test_a_queued_stream_is_kept_alive(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        reply, task = stage.browser.open("POST", PATH, _raw(stream=True))
        await reply.until(lambda r: r.body.count(b"event: ") >= 4)
        types = [event["type"] for event in reply.events()]
        assert types == ["response.created", *["response.in_progress"] * (len(types) - 1)]
        numbers = [event["sequence_number"] for event in reply.events()]
        assert numbers == list(range(len(types)))
        stage.fleet.auto = "late"
        stage.connect_all()
        await task
        assert reply.events()[-1]["type"] == "response.completed"

    staged(body, connect=False, limits=Limits(keep_alive=0.05))


def _raw(**fields: Any) -> bytes:
    return json.dumps(BODY | fields).encode()


def test_items_of_an_agent_become_a_chat(staged: Staged) -> None:
    """The shape that Codex sends: a developer's message, reasoning, calls and their outputs."""
    items = [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "D"}]},
        {"role": "user", "content": "U"},
        {"type": "reasoning", "summary": [], "content": None, "encrypted_content": "x"},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "A", "annotations": []}],
        },
        {"type": "function_call", "name": "look", "arguments": '{"x":1}', "call_id": "c1"},
        {
            "type": "function_call",
            "name": "go",
            "namespace": "mcp__maps",
            "arguments": "",
            "call_id": "c2",
        },
        {"type": "function_call_output", "call_id": "c1", "output": "one"},
        {
            "type": "function_call_output",
            "call_id": "c2",
            "output": [{"type": "input_text", "text": "two"}],
        },
        {"role": "developer", "content": "later"},
    ]

    async def body(stage: Any) -> None:
        stage.fleet.auto = "x"
        await _post(stage, input=items, instructions="I")
        calls = [
            {
                "id": "c1",
                "type": "function",
                "function": {"name": "look", "arguments": {"x": 1}},
            },
            {
                "id": "c2",
                "type": "function",
                "function": {"name": "mcp__maps__go", "arguments": {}},
            },
        ]
        assert _text(stage) == [
            {"role": "system", "content": "I\n\nD"},
            {"role": "user", "content": "U"},
            {"role": "assistant", "content": "A", "tool_calls": calls},
            {"role": "tool", "tool_call_id": "c1", "content": "one"},
            {"role": "tool", "tool_call_id": "c2", "content": "two"},
            {"role": "system", "content": "later"},
        ]

    staged(body)


def test_messages_in_a_row_stay_apart(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        stage.fleet.auto = "x"
        rows = [("user", "a"), ("user", "b"), ("assistant", "c"), ("assistant", "d")]
        said = [{"role": role, "content": content} for role, content in rows]
        await _post(stage, input=said)
        assert _text(stage) == said

    staged(body)


def test_tools_that_no_model_here_can_use_are_left_out(staged: Staged) -> None:
    tools = [
        {"type": "web_search", "external_web_access": False},
        LOOK | {"description": "looks", "strict": False},
        {"type": "custom", "name": "apply_patch", "format": {"type": "grammar"}},
        {
            "type": "namespace",
            "name": "mcp__maps",
            "description": "maps",
            "tools": [{"type": "function", "name": "go"}, {"type": "custom", "name": "do"}],
        },
        {"type": "namespace", "name": "empty", "tools": []},
    ]

    async def body(stage: Any) -> None:
        stage.fleet.auto = "(mcp__maps__go|{})(other|{})"
        answer = await _post(stage, tools=tools)
        shown = stage.texts["hot-model"].seen[-1][1]
        look, patch, go, do = [tool["function"] for tool in shown]
        assert look == {"name": "look", "description": "looks", "parameters": {"type": "object"}}
        assert go == {"name": "mcp__maps__go", "parameters": {"type": "object", "properties": {}}}
        assert (patch["name"], do["name"]) == ("apply_patch", "mcp__maps__do")
        assert patch["parameters"]["required"] == ["input"]
        assert [tool["type"] for tool in answer["tools"]] == ["function", "custom", "namespace"]
        known, other = answer["output"]
        assert (known["namespace"], known["name"]) == ("mcp__maps", "go")
        assert (other.get("namespace"), other["name"]) == (None, "other")

    staged(body)


def test_with_no_tool_choice_calls_are_withheld(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        stage.fleet.auto = "a(look|{})"
        answer = await _post(stage, tools=[LOOK], tool_choice="none")
        (message,) = answer["output"]
        assert message["content"][0]["text"] == "a"
        assert len(stage.texts["hot-model"].seen[-1][1]) == 1

    staged(body)


def test_a_conversation_goes_on_without_its_instructions(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        stage.fleet.auto = "S(look|{})"
        first = await _post(stage, instructions="old", tools=[LOOK])
        stage.fleet.auto = "x"
        output = {"type": "function_call_output", "call_id": "call_0", "output": "seen"}
        second = await _post(stage, input=[output], previous_response_id=first["id"])
        assert second["previous_response_id"] == first["id"]
        call = {"id": "call_0", "type": "function"}
        call["function"] = {"name": "look", "arguments": {}}  # type: ignore[assignment]
        whole = [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "S", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_0", "content": "seen"},
        ]
        assert _text(stage) == whole
        await _post(stage, input="and?", previous_response_id=second["id"], instructions="new")
        assert _text(stage) == [
            {"role": "system", "content": "new"},
            *whole,
            {"role": "assistant", "content": "x"},
            {"role": "user", "content": "and?"},
        ]

    staged(body)


def test_lookup_and_deletion(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        stage.fleet.auto = "x"
        first = await _post(stage)
        second = await _post(stage, previous_response_id=first["id"])
        path = f"{PATH}/{first['id']}"
        assert (await stage.browser.get(path)).json() == first
        gone, task = stage.browser.open("DELETE", path)
        await task
        assert gone.json() == {"id": first["id"], "object": "response", "deleted": True}
        for method in ("GET", "DELETE"):
            reply, task = stage.browser.open(method, path)
            await task
            assert reply.status == 404
            assert first["id"] in reply.json()["error"]["message"]
        again = await stage.browser.post(PATH, BODY | {"previous_response_id": first["id"]})
        assert again.json()["error"]["code"] == "previous_response_not_found"
        await _post(stage, previous_response_id=second["id"])
        assert [m["content"] for m in _text(stage)] == ["hi", "x", "hi", "x", "hi"]

    staged(body)


def test_what_is_not_stored_keeps_its_session_alone(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        stage.fleet.auto = "x"
        first = await _post(stage, store=False)
        assert (await stage.browser.get(f"{PATH}/{first['id']}")).status == 404
        reply = await stage.browser.post(PATH, BODY | {"previous_response_id": first["id"]})
        assert reply.status == 400
        error = reply.json()["error"]
        assert error["param"] == "previous_response_id"
        assert "not stored" in error["message"]

    staged(body)


def test_an_item_may_be_named_instead_of_sent(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        stage.fleet.auto = "x"
        first = await _post(stage)
        reference = {"type": "item_reference", "id": first["output"][0]["id"]}
        await _post(stage, input=[reference, {"role": "user", "content": "go on"}])
        assert [m["content"] for m in _text(stage)] == ["x", "go on"]
        unknown = reference["id"][:-1] + "7"
        for item_id in (unknown, "msg_123", ""):
            items = [{"role": "user", "content": "a"}, {"type": "item_reference", "id": item_id}]
            reply = await stage.browser.post(PATH, BODY | {"input": items})
            assert reply.status == 400
            assert reply.json()["error"]["param"] == "input[1].id"

    staged(body)


def test_tenants_do_not_see_each_other(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        stage.fleet.auto = "x"
        mine, yours = ({"authorization": f"Bearer {key}"} for key in ("k1", "k2"))
        first = await _post(stage, mine)
        path = f"{PATH}/{first['id']}"
        assert (await stage.browser.get(path, mine)).status == 200
        assert (await stage.browser.get(path, yours)).status == 404
        fields = BODY | {"previous_response_id": first["id"]}
        assert (await stage.browser.post(PATH, fields, yours)).status == 400
        assert (await stage.browser.post(PATH, fields, mine)).status == 200

    staged(body, api_keys=(ApiKey("k1", "one"), ApiKey("k2", "two")))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": 5}, "input"),
        ({"input": [{"content": "x"}]}, "input[0].type"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": 3}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": [{"type": "input_text", "text": 1}]}]}, "text"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "content[0]"),
        ({"input": [{"type": "function_call"}]}, "input[0].name"),
        ({"input": [{"type": "function_call_output", "output": 1}]}, "input[0].output"),
        ({"input": [{"type": "custom_tool_call"}]}, "input[0].name"),
        ({"input": "x" * 3000}, "input"),
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"n": 2}, "n"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "name": "x"}}, "tool_choice"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"include": ["message.output_text.logprobs"]}, "include"),
        ({"tools": [{"type": "function", "function": {"name": "x"}}]}, "tools[0].name"),
        ({"tools": [{"type": "namespace", "tools": [{"type": "function"}]}]}, "tools[0].tools[0]"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"model": "gamma"}, "model"),
    ],
)
def test_errors_name_the_field(staged: Staged, fields: dict[str, Any], param: str) -> None:
    async def body(stage: Any) -> None:
        reply = await stage.browser.post(PATH, BODY | fields)
        assert reply.status == (404 if param == "model" else 400)
        error = reply.json()["error"]
        assert param in error["param"]
        assert error["param"] in error["message"]
        assert stage.fleet.of(Submit) == []

    staged(body)


def test_fields_of_agents_that_change_nothing(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        stage.fleet.auto = "x"
        await _post(
            stage,
            text={"verbosity": "low", "format": {"type": "text"}},
            reasoning={"effort": "high", "summary": "auto"},
            include=["reasoning.encrypted_content"],
            truncation="auto",
            parallel_tool_calls=False,
            service_tier="priority",
            client_metadata={"x": "y"},
            tool_choice="auto",
            background=False,
            stream_options={"include_obfuscation": False},
        )

    staged(body)


def test_what_the_template_refuses_is_the_input(staged: Staged) -> None:
    async def body(stage: Any) -> None:
        async def refuse(*_: Any) -> Any:
            raise TextError("messages", "the model's chat template refused: roles")

        stage.texts["hot-model"].chat = refuse
        error = (await stage.browser.post(PATH, BODY)).json()["error"]
        assert error["param"] == "input"
        assert "refused: roles" in error["message"]

    staged(body)
