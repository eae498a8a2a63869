"""What is said in one dialect and sent back with its answer goes on from the prompt before."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from alipes.gateway.api.anthropic.conversation import conversation_of as anthropic
from alipes.gateway.api.anthropic.schema import CountBody
from alipes.gateway.api.openai.messages import messages_of as chat
from alipes.gateway.api.openai.responses.prompt import messages_of as responses
from alipes.gateway.api.openai.responses.schema import Item
from alipes.gateway.conversation.message import Message, arranged
from alipes.gateway.text.template import ChatTemplate

texts = st.text(alphabet="ab <|\n\u00e9", max_size=8)
unreadable = st.sampled_from(
    [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        {"type": "input_image", "image_url": "https://x.test/a.png"},
        {"type": "tool_reference", "tool_name": "Stop"},
        {"type": "unknown", "payload": [1, None, {"a": "b"}]},
        {"type": "document", "source": {"type": "text", "data": "words"}},
    ]
)
contents = st.one_of(texts, st.lists(st.one_of(texts, unreadable), max_size=3))
arguments = st.dictionaries(st.text("xy", max_size=2), st.one_of(texts, st.integers()), max_size=2)
answers = st.tuples(texts, texts, st.lists(arguments, max_size=2))
"""Thoughts, text and the arguments of calls."""
turns = st.lists(st.tuples(contents, answers, st.permutations([0, 1])), min_size=1, max_size=4)


def block(piece: Any, kind: str) -> Any:
    return {"type": kind, "text": piece} if isinstance(piece, str) else piece


def blocks(content: Any, kind: str) -> Any:
    return content if isinstance(content, str) else [block(piece, kind) for piece in content]


def in_chat(history: list[Any]) -> list[Message]:
    said: list[Any] = []
    for turn, (content, answer, order) in enumerate(history):
        said.append({"role": "user", "content": blocks(content, "text")})
        if answer is None:
            break
        thoughts, text, calls = answer
        message: dict[str, Any] = {"role": "assistant", "content": text or None}
        if thoughts:
            message["reasoning_content"] = thoughts
        if calls:
            message["tool_calls"] = [
                {"id": f"c{turn}{i}", "function": {"name": "f", "arguments": json.dumps(one)}}
                for i, one in enumerate(calls)
            ]
        said.append(message)
        said += [
            {"role": "tool", "tool_call_id": f"c{turn}{i}", "content": blocks(content, "text")}
            for i in order
            if i < len(calls)
        ]
    return chat([*said, {"role": "user", "content": "."}])


def in_messages(history: list[Any]) -> list[Message]:
    said: list[Any] = []
    results: list[Any] = []
    for turn, (content, answer, order) in enumerate(history):
        told = blocks(content, "text")
        told = [block(told, "text")] if isinstance(told, str) else told
        said.append({"role": "user", "content": [*results, *told]})
        results = []
        if answer is None:
            break
        thoughts, text, calls = answer
        parts: list[Any] = [{"type": "thinking", "thinking": thoughts}] if thoughts else []
        parts += [{"type": "text", "text": text}] if text else []
        parts += [
            {"type": "tool_use", "id": f"c{turn}{i}", "name": "f", "input": one}
            for i, one in enumerate(calls)
        ]
        said.append({"role": "assistant", "content": parts})
        results = [
            {"type": "tool_result", "tool_use_id": f"c{turn}{i}", "content": told}
            for i in order
            if i < len(calls)
        ]
    said.append({"role": "user", "content": [*results, {"type": "text", "text": "."}]})
    return list(anthropic(CountBody(model="m", messages=said)).messages)


def in_responses(history: list[Any]) -> list[Message]:
    items: list[Any] = []
    for turn, (content, answer, order) in enumerate(history):
        items.append({"role": "user", "content": blocks(content, "input_text")})
        if answer is None:
            break
        thoughts, text, calls = answer
        if thoughts:
            part = {"type": "reasoning_text", "text": thoughts}
            items.append({"type": "reasoning", "summary": [], "content": [part]})
        if text or not calls:
            part = {"type": "output_text", "text": text}
            items.append({"type": "message", "role": "assistant", "content": [part]})
        items += [
            {
                "type": "function_call",
                "call_id": f"c{turn}{i}",
                "name": "f",
                "arguments": json.dumps(one),
            }
            for i, one in enumerate(calls)
        ]
        items += [
            {
                "type": "function_call_output",
                "call_id": f"c{turn}{i}",
                "output": blocks(content, "input_text"),
            }
            for i in order
            if i < len(calls)
        ]
    items.append({"role": "user", "content": "."})
    return responses(None, msgspec.convert(items, list[Item]))


DIALECTS = {"chat": in_chat, "messages": in_messages, "responses": in_responses}


@pytest.fixture(scope="module")
def template(tiny_folders: dict[str, Path]) -> ChatTemplate:
    return ChatTemplate.load(tiny_folders["qwen3"])


@pytest.mark.parametrize("dialect", DIALECTS)
@settings(
    max_examples=80,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(history=turns)
def test_a_prompt_begins_with_the_one_before(
    template: ChatTemplate, dialect: str, history: list[Any]
) -> None:
    read = DIALECTS[dialect]
    for count in range(1, len(history) + 1):
        whole = history[:count]
        content, _, order = whole[-1]
        asked = arranged(read([*whole[:-1], (content, None, order)])[:-1])
        before = template.render(asked, (), speaks=False)
        after = template.render(arranged(read(whole)), ())
        assert after.startswith(before)


@settings(max_examples=80, deadline=None)
@given(history=turns)
def test_dialects_say_the_same(history: list[Any]) -> None:
    """Of a conversation that all can tell: one text in a message, as they join several alike."""
    told = [
        (content if isinstance(content, str) else "x", answer, order)
        for content, answer, order in history
    ]
    one, two, three = (arranged(read(told)) for read in DIALECTS.values())
    assert one == three
    assert [message for message in two if message.role == "assistant"] == [
        message for message in one if message.role == "assistant"
    ]
