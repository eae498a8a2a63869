"""The official clients against a real socket."""

from __future__ import annotations

from typing import Any

import anthropic
import httpx
import openai
import pytest

MESSAGES: Any = [{"role": "user", "content": "tell me"}]
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "look",
            "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}},
        },
    }
]
CALLS = (
    'See. <tool_call>\n{"name": "look", "arguments": {"x": 1}}\n</tool_call>\n'
    '<tool_call>\n{"name": "look", "arguments": {"x": 22}}\n</tool_call>'
)
STOP_ID = 2


@pytest.fixture(scope="module")
def oai(stack: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{stack.url}/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def claude(stack: Any) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=stack.url, api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def forced(stack: Any) -> list[int]:
    """Ids of a reply with two tool calls, the stop id at its end."""
    body = {"model": "alpha", "prompt": CALLS}
    tokens: list[int] = httpx.post(f"{stack.url}/tokenize", json=body).json()["tokens"]
    return [*tokens, STOP_ID]


def test_openai_whole_and_streamed_say_the_same(oai: openai.OpenAI) -> None:
    whole = oai.chat.completions.create(
        model="alpha", messages=MESSAGES, max_tokens=12, seed=7, logprobs=True, top_logprobs=2
    )
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 12
    assert whole.usage.prompt_tokens_details is not None
    assert whole.usage.prompt_tokens_details.cached_tokens is not None
    assert whole.choices[0].logprobs is not None
    assert len(whole.choices[0].logprobs.content or []) == 12
    stream = oai.chat.completions.create(
        model="alpha",
        messages=MESSAGES,
        max_tokens=12,
        seed=7,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    reasons = [c.choices[0].finish_reason for c in chunks if c.choices]
    assert [reason for reason in reasons if reason] == ["length"]
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 12


def test_openai_completions(oai: openai.OpenAI) -> None:
    whole = oai.completions.create(
        model="beta", prompt=["one", "two"], max_tokens=4, n=2, logprobs=1
    )
    assert [c.index for c in whole.choices] == [0, 1, 2, 3]
    assert whole.choices[0].logprobs is not None
    assert len(whole.choices[0].logprobs.tokens or []) == 4
    stream = oai.completions.create(model="beta", prompt=[5, 6, 7], max_tokens=4, stream=True)
    assert "".join(c.choices[0].text for c in stream)


def test_openai_tools_streamed_and_whole(oai: openai.OpenAI, forced: list[int]) -> None:
    fields: Any = {
        "model": "alpha",
        "messages": MESSAGES,
        "tools": TOOLS,
        "max_tokens": 200,
        "extra_body": {"forced_token_ids": forced},
    }
    message = oai.chat.completions.create(**fields).choices[0]
    assert message.finish_reason == "tool_calls"
    calls = [call.function.arguments for call in message.message.tool_calls or []]
    assert [call.replace(" ", "") for call in calls] == ['{"x":1}', '{"x":22}']
    arguments: dict[int, str] = {}
    reasons = []
    for chunk in oai.chat.completions.create(**fields, stream=True):
        for part in chunk.choices[0].delta.tool_calls or []:
            arguments.setdefault(part.index, "")
            arguments[part.index] += part.function.arguments or ""
        reasons.append(chunk.choices[0].finish_reason)
    assert list(arguments.values()) == calls
    assert [reason for reason in reasons if reason] == ["tool_calls"]


def test_openai_models_and_errors(oai: openai.OpenAI) -> None:
    assert {model.id for model in oai.models.list()} == {"alpha", "beta"}
    assert oai.models.retrieve("beta").id == "beta"
    with pytest.raises(openai.NotFoundError, match="gamma"):
        oai.chat.completions.create(model="gamma", messages=MESSAGES)
    with pytest.raises(openai.BadRequestError) as caught:
        oai.chat.completions.create(model="alpha", messages=MESSAGES, max_tokens=-1)
    assert caught.value.param == "max_tokens"


def test_anthropic_whole_and_streamed_say_the_same(claude: anthropic.Anthropic) -> None:
    fields: Any = {
        "model": "beta",
        "max_tokens": 9,
        "messages": MESSAGES,
        "system": "be brief",
        "extra_body": {"seed": 3},
    }
    whole = claude.messages.create(**fields)
    assert whole.stop_reason == "max_tokens"
    assert whole.usage.output_tokens == 9
    with claude.messages.stream(**fields) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text  # type: ignore[union-attr]
    assert final.stop_reason == "max_tokens"
    assert final.usage.output_tokens == 9
    total = final.usage.input_tokens + (final.usage.cache_read_input_tokens or 0)
    counted = claude.messages.count_tokens(
        model="beta", messages=MESSAGES, system="be brief"
    ).input_tokens
    assert total == counted


def test_anthropic_tools(claude: anthropic.Anthropic, forced: list[int]) -> None:
    fields: Any = {
        "model": "alpha",
        "max_tokens": 200,
        "messages": MESSAGES,
        "tools": [{"name": "look", "input_schema": {"type": "object"}}],
        "extra_body": {"forced_token_ids": forced},
    }
    whole = claude.messages.create(**fields)
    assert whole.stop_reason == "tool_use"
    assert [b.type for b in whole.content] == ["text", "tool_use", "tool_use"]
    with claude.messages.stream(**fields) as stream:
        final = stream.get_final_message()
    assert [b.type for b in final.content] == ["text", "tool_use", "tool_use"]
    assert final.content[2].input == {"x": 22}  # type: ignore[union-attr]
    assert final.stop_reason == "tool_use"


def test_anthropic_errors(claude: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError, match="gamma"):
        claude.messages.create(model="gamma", max_tokens=5, messages=MESSAGES)
    with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
        claude.messages.create(model="alpha", max_tokens=0, messages=MESSAGES)
