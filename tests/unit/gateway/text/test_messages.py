from __future__ import annotations

from typing import Any

import pytest

from alipes.gateway.text.errors import TextError
from alipes.gateway.text.messages import normalize

HALF = '{"a": "\\ud83d"}'


def test_text_parts_are_joined_and_developer_is_system() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert normalize([{"role": "developer", "content": parts}]) == [
        {"role": "system", "content": "a\nb"}
    ]


def test_arguments_become_mappings_unless_they_are_no_object() -> None:
    def call(arguments: str) -> dict[str, Any]:
        return {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}

    message = {"role": "assistant", "content": None}
    message["tool_calls"] = [call('{"a": 1}'), call("{broken"), call(""), call(HALF)]  # type: ignore[assignment]
    plain = normalize([message])[0]
    assert plain["content"] == ""
    assert [c["function"]["arguments"] for c in plain["tool_calls"]] == [
        {"a": 1},
        "{broken",
        {},
        HALF,
    ]


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        ([], "messages"),
        ([3], "messages[0]"),
        ([{"role": "king", "content": "a"}], "messages[0].role"),
        ([{"role": ["user"], "content": "a"}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": 3}], "messages[0].content"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}],
            "messages[0].content[0]",
        ),
        (
            [{"role": "user", "content": [{"type": "text", "text": 1}]}],
            "messages[0].content[0].text",
        ),
        (
            [{"role": "user", "content": "a", "tool_calls": [{}]}],
            "messages[0].tool_calls",
        ),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": 1}}]}],
            "messages[0].tool_calls[0].function.name",
        ),
    ],
)
def test_errors_name_the_field(messages: list[Any], field: str) -> None:
    with pytest.raises(TextError) as raised:
        normalize(messages)
    assert raised.value.field == field


@pytest.mark.parametrize(
    "message",
    [
        {"role": "r" * 9999, "content": ""},
        {"role": "user", "content": [{"type": "t" * 9999}]},
    ],
)
def test_errors_do_not_repeat_long_values(message: dict[str, Any]) -> None:
    with pytest.raises(TextError) as raised:
        normalize([message])
    assert len(raised.value.message) < 200
