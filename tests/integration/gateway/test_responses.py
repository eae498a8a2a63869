"""The official client speaks ``/v1/responses``, and what an agent on it sends."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage

LOOK: Any = {
    "type": "function",
    "name": "look",
    "description": "Looks.",
    "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}},
    "strict": False,
}
CALLS = (
    'See. <tool_call>\n{"name": "look", "arguments": {"x": 1}}\n</tool_call>\n'
    '<tool_call>\n{"name": "look", "arguments": {"x": 22}}\n</tool_call>'
)
STOP_ID = 2


@pytest.fixture(scope="module")
def client(stack: Any) -> openai.OpenAI:
    return openai.OpenAI(
        base_url=f"{stack.url}/v1",
        api_key="none",
        max_retries=0,
        _strict_response_validation=True,
    )


@pytest.fixture(scope="module")
def forced(stack: Any) -> dict[str, Any]:
    """Makes the reply one with two tool calls, the stop id at its end."""
    body = {"model": "alpha", "prompt": CALLS}
    tokens: list[int] = httpx.post(f"{stack.url}/tokenize", json=body).json()["tokens"]
    return {"forced_token_ids": [*tokens, STOP_ID]}


def test_whole_and_streamed_say_the_same(client: openai.OpenAI) -> None:
    fields: Any = {
        "model": "alpha",
        "input": "tell me",
        "instructions": "be brief",
        "max_output_tokens": 12,
        "extra_body": {"seed": 7},
    }
    whole = client.responses.create(**fields)
    assert whole.status == "incomplete"
    assert whole.incomplete_details is not None
    assert whole.incomplete_details.reason == "max_output_tokens"
    assert whole.usage is not None
    assert whole.usage.output_tokens == 12
    assert whole.usage.input_tokens_details.cached_tokens >= 0
    assert whole.output_text
    events = list(client.responses.create(**fields, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
    assert text == whole.output_text
    last = events[-1]
    assert last.type == "response.incomplete"
    assert last.response.output_text == text
    assert last.response.usage is not None
    assert last.response.usage.output_tokens == 12


def test_a_tools_round_trip(client: openai.OpenAI, forced: dict[str, Any]) -> None:
    fields: Any = {"model": "alpha", "tools": [LOOK], "max_output_tokens": 200}
    said = client.responses.create(input="look at 1 and 22", extra_body=forced, **fields)
    assert said.status == "completed"
    assert [item.type for item in said.output] == ["message", "function_call", "function_call"]
    calls = [item for item in said.output if isinstance(item, ResponseFunctionToolCall)]
    assert [call.arguments.replace(" ", "") for call in calls] == ['{"x":1}', '{"x":22}']
    results: Any = [
        {"type": "function_call_output", "call_id": call.call_id, "output": "seen"}
        for call in calls
    ]
    linked = client.responses.create(input=results, previous_response_id=said.id, **fields)
    history: Any = [{"role": "user", "content": "look at 1 and 22"}, *said.output, *results]
    sent = client.responses.create(input=history, store=False, **fields)
    assert linked.usage is not None
    assert sent.usage is not None
    assert linked.usage.input_tokens == sent.usage.input_tokens


def test_the_streaming_helper_parses_tools(client: openai.OpenAI, forced: dict[str, Any]) -> None:
    fields: Any = {"model": "alpha", "tools": [LOOK], "max_output_tokens": 200}
    arguments: dict[int, str] = {}
    with client.responses.stream(input="look", extra_body=forced, **fields) as stream:
        for event in stream:
            if event.type == "response.function_call_arguments.delta":
                arguments[event.output_index] = event.snapshot
        final = stream.get_final_response()
    assert final.status == "completed"
    message, *calls = final.output
    assert isinstance(message, ResponseOutputMessage)
    assert final.output_text.strip() == "See."
    assert [getattr(call, "arguments", "") for call in calls] == list(arguments.values())
    assert list(arguments) == [1, 2]


def test_stored_responses(client: openai.OpenAI) -> None:
    first = client.responses.create(model="beta", input="hello", max_output_tokens=4)
    assert client.responses.retrieve(first.id) == first
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError, match=first.id):
        client.responses.retrieve(first.id)
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model="beta", input="on", previous_response_id=first.id)
    assert caught.value.param == "previous_response_id"
    assert caught.value.code == "previous_response_not_found"


def test_a_conversation_is_one_session(stack: Any, client: openai.OpenAI) -> None:
    raw = client.responses.with_raw_response
    first = raw.create(model="beta", input="hello " * 100, max_output_tokens=4)
    second = raw.create(
        model="beta",
        input="and?",
        max_output_tokens=4,
        previous_response_id=first.parse().id,
    )
    assert second.headers["x-alipes-session"] == first.headers["x-alipes-session"]
    usage = second.parse().usage
    assert usage is not None
    assert usage.input_tokens_details.cached_tokens >= 64


def test_what_codex_sends(stack: Any) -> None:
    """Its fields, headers, tools and items, as its public source builds them."""
    body = {
        "model": "alpha",
        "instructions": "You are a coding agent.",
        "input": [
            {
                "type": "message",
                "role": "developer",
                "content": [{"type": "input_text", "text": "<permissions/>"}],
            },
            {
                "type": "message",
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "<environment_context/>"},
                    {"type": "input_text", "text": "fix it"},
                ],
            },
        ],
        "tools": [
            LOOK,
            {"type": "web_search", "external_web_access": False},
            {"type": "custom", "name": "apply_patch", "description": "", "format": {}},
            {"type": "namespace", "name": "mcp__x", "description": "", "tools": [LOOK]},
        ],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"effort": "medium", "summary": "auto"},
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "0199-thread",
        "text": {"verbosity": "low"},
        "client_metadata": {"x-codex-installation-id": "i"},
        "max_output_tokens": 8,
        "ignore_eos": True,
    }
    headers = {"session-id": "0199-session", "thread-id": "0199-thread"}
    reply = httpx.post(f"{stack.url}/v1/responses", json=body, headers=headers)
    assert reply.status_code == 200
    assert reply.headers["x-alipes-session"] == "0199-session"
    assert "event: response.output_item.done\n" in reply.text
    assert reply.text.rstrip().split("\n")[-2] == "event: response.incomplete"
    stack.until_idle()


def test_errors(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="gamma"):
        client.responses.create(model="gamma", input="x")
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model="alpha", input="x", background=True)
    assert caught.value.param == "background"
