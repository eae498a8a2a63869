from __future__ import annotations

import itertools

import pytest

from alipes.gateway.text.deltas import Delta, TextDelta, ToolArguments, ToolStart, merged
from alipes.gateway.text.hermes import HermesParser


def parser() -> HermesParser:
    count = itertools.count()
    return HermesParser(lambda: f"call_{next(count)}")


def parse(text: str) -> list[Delta]:
    one = parser()
    return merged(one.push(text) + one.finish())


def test_arguments_stream_while_they_are_generated() -> None:
    one = parser()
    assert one.push('Sure.\n<tool_call>\n{"name": "look",') == [TextDelta("Sure.")]
    assert one.push(' "arguments": {"a') == [
        ToolStart(0, "call_0", "look"),
        ToolArguments(0, '{"a'),
    ]
    assert one.push('": "</tool_call>"') == [ToolArguments(0, '": "</tool_call>"')]
    assert one.push("}}\n</tool_") == [ToolArguments(0, "}")]
    assert one.push("call>\n") == []
    assert one.finish() == []


def test_text_around_and_between_calls() -> None:
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    assert parse(f"a {call} b\n\n{call}\n{call}\nc ") == [
        TextDelta("a"),
        ToolStart(0, "call_0", "f"),
        ToolArguments(0, "{}"),
        TextDelta(" b"),
        ToolStart(1, "call_1", "f"),
        ToolArguments(1, "{}"),
        ToolStart(2, "call_2", "f"),
        ToolArguments(2, "{}"),
        TextDelta("\nc "),
    ]


@pytest.mark.parametrize(
    ("body", "name", "arguments"),
    [
        ('{"arguments": {"a": {"b": 1}}, "name": "g"}', "g", '{"a": {"b": 1}}'),
        ('{"name": "g"}', "g", "{}"),
        ('{"name": "g", "arguments": "{\\"a\\": 1}"}', "g", '{"a": 1}'),
        ('{"name": "g", "arguments": {"a": "x\ny"}}', "g", '{"a": "x\\ny"}'),
        ('{"name": "g\\"h", "arguments": {}, "id": 3}', 'g"h', "{}"),
        ('{"name": "\\ud800", "arguments": {}}', "\ufffd", "{}"),
    ],
)
def test_forms_of_a_call(body: str, name: str, arguments: str) -> None:
    expected = [ToolStart(0, "call_0", name), ToolArguments(0, arguments)]
    assert parse(f"<tool_call>{body}</tool_call>") == expected
    assert parse(f"<tool_call>{body}") == expected


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>",
        "  <tool_call> look </tool_call> after",
        '<tool_call>{"name": 1, "arguments": {}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "f", "arguments": "x"}</tool_call>',
        '<tool_call>{"name": "f", "arguments": 1e999, "b": NaN}',
        '<tool_call>{"arguments": {"a": 1e999}, "name": "f"}</tool_call>',
        '<tool_call>{"a": ' + "[" * 9000 + "]" * 9000 + "}</tool_call>",
        "ends with a part <tool_ca",
        '<tool_call>{"name": "f", "argum',
    ],
)
def test_what_is_no_call_comes_back_as_text(text: str) -> None:
    assert parse(text) == [TextDelta(text)]


def test_a_call_that_goes_wrong_late_keeps_what_was_said() -> None:
    assert parse('<tool_call>{"name": "f", "arguments": {"a": oops}}</tool_call>x') == [
        ToolStart(0, "call_0", "f"),
        ToolArguments(0, '{"a": '),
        TextDelta("oops}}</tool_call>x"),
    ]
    assert parse('<tool_call>{"name": "f", "arguments": {"a": 1}, b') == [
        ToolStart(0, "call_0", "f"),
        ToolArguments(0, '{"a": 1}'),
        TextDelta(", b"),
    ]


def test_a_bad_call_does_not_hide_the_good_one_after_it() -> None:
    deltas = parse('<tool_call><tool_call>{"name": "f", "arguments": {}}</tool_call>')
    assert deltas == [
        TextDelta("<tool_call>"),
        ToolStart(0, "call_0", "f"),
        ToolArguments(0, "{}"),
    ]
