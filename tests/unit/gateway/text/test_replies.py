"""Replies in the forms of the families: thoughts, text and calls."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence

import pytest

from alipes.gateway.conversation.message import Tool
from alipes.gateway.text.reply.deltas import (
    Delta,
    OutputParser,
    TextDelta,
    ThinkingDelta,
    ToolArguments,
    ToolEnd,
    ToolStart,
    merged,
)
from alipes.gateway.text.reply.family import HERMES, ReplyForm, form_of

TOOLS = (
    Tool(
        "f",
        None,
        {
            "type": "object",
            "properties": {
                "path": {"type": "string"},
                "count": {"type": "integer"},
                "any": {},
                "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                "deep": {"type": ["boolean", "null"]},
                "kind": {"$ref": "#/$defs/kind"},
            },
            "$defs": {"kind": {"enum": ["1", "2"]}},
        },
    ),
    Tool("g", None, {}),
    Tool("function", None, {}),
)
SIGNS = {
    "hermes": "<tool_call>",
    "qwen-xml": "<tool_call><function=",
    "deepseek": "<｜tool▁calls▁begin｜>",
    "glm": "<tool_call><arg_key>",
    "llama": "<|python_tag|>",
}
FORMS = {name: form_of(sign, ()) for name, sign in SIGNS.items()}


def parser(form: ReplyForm = HERMES, opened: bool = False) -> OutputParser:
    count = itertools.count()
    return form.parser(TOOLS, opened, lambda: f"call_{next(count)}")


def parse(text: str, form: ReplyForm = HERMES, opened: bool = False) -> list[Delta]:
    one = parser(form, opened)
    return merged(one.push(text) + one.finish())


def call(index: int, name: str, arguments: str, whole: bool = True) -> list[Delta]:
    started = [ToolStart(index, f"call_{index}", name), ToolArguments(index, arguments)]
    return [*merged(started), ToolEnd(index, whole)]


def test_signs_lead_to_forms() -> None:
    assert {name: form.name for name, form in FORMS.items()} == {name: name for name in SIGNS}
    assert form_of("", ()).name == "hermes"
    assert form_of("", ("<|python_tag|>",)).visible == {"<|python_tag|>"}
    assert form_of("", ("[THINK]", "[/THINK]")).marks == ("[THINK]", "[/THINK]")
    assert form_of("", ("<think>", "</think>")).visible == {"<think>", "</think>"}


def test_arguments_stream_while_they_are_generated() -> None:
    one = parser()
    assert one.push('Sure.\n<tool_call>\n{"name": "look",') == [TextDelta("Sure.")]
    assert one.push(' "arguments": {"a') == [
        ToolStart(0, "call_0", "look"),
        ToolArguments(0, '{"a'),
    ]
    assert one.push('": "</tool_call>"') == [ToolArguments(0, '": "</tool_call>"')]
    assert one.push("}}\n</tool_") == [ToolArguments(0, "}"), ToolEnd(0, True)]
    assert one.push("call>\n") == []
    assert one.finish() == []


def test_text_around_and_between_calls() -> None:
    one = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    assert parse(f"a {one} b\n\n{one}\n{one}\nc ") == [
        TextDelta("a"),
        *call(0, "f", "{}"),
        TextDelta(" b"),
        *call(1, "f", "{}"),
        *call(2, "f", "{}"),
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
    expected = call(0, name, arguments)
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
        *call(0, "f", '{"a": ', whole=False),
        TextDelta("oops}}</tool_call>x"),
    ]
    assert parse('<tool_call>{"name": "f", "arguments": {"a": 1}, b') == [
        *call(0, "f", '{"a": 1}'),
        TextDelta(", b"),
    ]


@pytest.mark.parametrize("value", ["[" * 5000 + "]" * 5000, "1" * 5000])
def test_arguments_that_no_reader_of_json_takes_are_not_whole(value: str) -> None:
    deltas = parse(f'<tool_call>{{"name": "f", "arguments": {{"a": {value}}}}}</tool_call>')
    assert [delta for delta in deltas if isinstance(delta, ToolEnd)] == [ToolEnd(0, False)]


def test_a_bad_call_does_not_hide_the_good_one_after_it() -> None:
    deltas = parse('<tool_call><tool_call>{"name": "f", "arguments": {}}</tool_call>')
    assert deltas == [
        TextDelta("<tool_call>"),
        *call(0, "f", "{}"),
    ]


CASES: Sequence[tuple[str, str, list[Delta]]] = (
    (
        "qwen-xml",
        'Ok.\n<tool_call>\n<function=f>\n<parameter=path>\na "b"\nc\n</parameter>\n'
        "<parameter=count>\n3\n</parameter>\n<parameter=any>\n[1, {}]\n</parameter>\n"
        "</function>\n</tool_call>\n",
        [TextDelta("Ok."), *call(0, "f", '{"path": "a \\"b\\"\\nc", "count": 3, "any": [1, {}]}')],
    ),
    (
        "qwen-xml",
        "<tool_call><function=g><parameter=x>3</parameter></function></tool_call>",
        call(0, "g", '{"x": 3}'),
    ),
    ("qwen-xml", "<tool_call>\n<function=f>\n</function>\n</tool_call>", call(0, "f", "{}")),
    (
        "qwen-xml",
        "<tool_call>\n<function=f>\n<parameter=path>\n/a",
        call(0, "f", '{"path": "/a', whole=False),
    ),
    ("qwen-xml", "<tool_call>\nno", [TextDelta("<tool_call>\nno")]),
    (
        "deepseek",
        "Ok.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n"
        '{"a": 1}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n'
        "```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        [TextDelta("Ok."), *call(0, "f", '{"a": 1}'), *call(1, "g", "{}")],
    ),
    (
        "deepseek",
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"a": {"b": []}}'
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        call(0, "f", '{"a": {"b": []}}'),
    ),
    (
        "deepseek",
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"a": ',
        call(0, "f", '{"a": ', whole=False),
    ),
    ("deepseek", "<｜tool▁calls▁begin｜> no", [TextDelta("<｜tool▁calls▁begin｜> no")]),
    (
        "glm",
        "Ok.\n<tool_call>f\n<arg_key>path</arg_key>\n<arg_value>3</arg_value>\n"
        "<arg_key>count</arg_key>\n<arg_value>3</arg_value>\n</tool_call>\n<tool_call>g</tool_call>",
        [TextDelta("Ok."), *call(0, "f", '{"path": "3", "count": 3}'), *call(1, "g", "{}")],
    ),
    (
        "glm",
        "<tool_call>f<arg_key>any</arg_key><arg_value>yes</arg_value></tool_call>b",
        [*call(0, "f", '{"any": "yes"}'), TextDelta("b")],
    ),
    (
        "glm",
        "<tool_call>f\n<arg_key>path</arg_key>\n<arg_value>a",
        call(0, "f", '{"path": "a', whole=False),
    ),
    ("glm", '<tool_call>{"name": 1}', [TextDelta('<tool_call>{"name": 1}')]),
    (
        "llama",
        '{"name": "f", "parameters": {"a": 1}}; {"name": "g", "parameters": {}}',
        [*call(0, "f", '{"a": 1}'), *call(1, "g", "{}")],
    ),
    (
        "llama",
        'Ok. <|python_tag|>{"type": "function", "name": "f", "parameters": {"a": 1}}',
        [TextDelta("Ok."), *call(0, "f", '{"a": 1}')],
    ),
    (
        "llama",
        '{"name": "f", "parameters": {}}; {"name": "Bob", "parameters": {}}',
        [*call(0, "f", "{}"), TextDelta('; {"name": "Bob", "parameters": {}}')],
    ),
    (
        "llama",
        '{"name": "f", "parameters": {}}\n<|python_tag|>{"name": "h", "parameters": {}}\n',
        [*call(0, "f", "{}"), *call(1, "h", "{}")],
    ),
    ("llama", '{"name": "Bob", "age": 3}', [TextDelta('{"name": "Bob", "age": 3}')]),
    ("llama", '{"name": "f", "age": 3}', [TextDelta('{"name": "f", "age": 3}')]),
    (
        "llama",
        '{"name": "Bob", "parameters": {"a": {}}}',
        [TextDelta('{"name": "Bob", "parameters": {"a": {}}}')],
    ),
    (
        "qwen-xml",
        "Ok.\n<function=f>\n<parameter=path>\na\n</parameter>\n</function>\n</tool_call>",
        [TextDelta("Ok."), *call(0, "f", '{"path": "a"}')],
    ),
    ("qwen-xml", "Write <function=h> here", [TextDelta("Write <function=h> here")]),
    (
        "qwen-xml",
        "<tool_call><function=f><parameter=maybe>12</parameter><parameter=maybe>\nnull\n"
        "</parameter><parameter=maybe>nullable</parameter><parameter=deep>False</parameter>"
        "<parameter=deep>None</parameter><parameter=kind>1</parameter>"
        "<parameter=any>True</parameter></function></tool_call>",
        call(
            0,
            "f",
            '{"maybe": "12", "maybe": null, "maybe": "nullable", "deep": false, "deep": null, '
            '"kind": "1", "any": "True"}',
        ),
    ),
    (
        "glm",
        '<tool_call>f<arg_key>any</arg_key><arg_value>["\\ud800"]</arg_value></tool_call>',
        call(0, "f", '{"any": ["\\ud800"]}'),
    ),
    (
        "deepseek",
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>{"a": 1}'
        "<｜tool▁call▁end｜>",
        call(0, "function", '{"a": 1}'),
    ),
    ("llama", '{"a": 1} and more', [TextDelta('{"a": 1} and more')]),
    ("llama", "<|python_tag|>print(1)", [TextDelta("<|python_tag|>print(1)")]),
)


@pytest.mark.parametrize(("form", "text", "deltas"), CASES)
def test_forms(form: str, text: str, deltas: list[Delta]) -> None:
    assert parse(text, FORMS[form]) == deltas
    one = parser(FORMS[form])
    letters = [delta for letter in text for delta in one.push(letter)]
    assert merged(letters + one.finish()) == deltas
    for delta in deltas:
        if isinstance(delta, ToolEnd) and delta.whole:
            index = delta.index
            said = [d for d in deltas if isinstance(d, ToolArguments) and d.index == index]
            assert isinstance(json.loads(said[0].text), dict)


@pytest.mark.parametrize("form", FORMS)
def test_strings_are_passed_on_while_they_are_written(form: str) -> None:
    begin = {
        "hermes": '<tool_call>\n{"name": "f", "arguments": {"path": "',
        "qwen-xml": "<tool_call>\n<function=f>\n<parameter=path>\n",
        "deepseek": '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"path": "',
        "glm": "<tool_call>f\n<arg_key>path</arg_key>\n<arg_value>",
        "llama": '{"name": "f", "parameters": {"path": "',
    }
    one = parser(FORMS[form])
    assert one.push(begin[form])[0] == ToolStart(0, "call_0", "f")
    assert one.push("hello") == [ToolArguments(0, "hello")]


@pytest.mark.parametrize(
    ("text", "opened", "deltas"),
    [
        ("<think>\na\n</think>\n\nb", False, [ThinkingDelta("a"), TextDelta("b")]),
        ("a\n</think>\n\nb", True, [ThinkingDelta("a"), TextDelta("b")]),
        ("<think>a</think>b", True, [ThinkingDelta("a"), TextDelta("b")]),
        ("<think>never ends\n", False, [ThinkingDelta("never ends")]),
        ("<think></think>b", False, [TextDelta("b")]),
        ("the tag <think> is", False, [TextDelta("the tag <think> is")]),
        (
            '<think>I could <tool_call>{"name": "f", "arguments": {}}</tool_call></think>No.',
            False,
            [
                ThinkingDelta('I could <tool_call>{"name": "f", "arguments": {}}</tool_call>'),
                TextDelta("No."),
            ],
        ),
        (
            '<think>a</think>\n<tool_call>{"name": "f", "arguments": {}}</tool_call>',
            False,
            [ThinkingDelta("a"), *call(0, "f", "{}")],
        ),
    ],
)
def test_thoughts_are_apart(text: str, opened: bool, deltas: list[Delta]) -> None:
    assert parse(text, opened=opened) == deltas
    one = parser(opened=opened)
    letters = [delta for letter in text for delta in one.push(letter)]
    assert merged(letters + one.finish()) == deltas


def test_without_tools_nothing_is_a_call() -> None:
    text = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    one = HERMES.parser((), False, lambda: "x")
    assert merged(one.push("<think>a</think>" + text) + one.finish()) == [
        ThinkingDelta("a"),
        TextDelta(text),
    ]


def test_a_prompt_may_open_thoughts() -> None:
    assert HERMES.opened("<|im_start|>assistant\n<think>\n")
    assert not HERMES.opened("<|im_start|>assistant\n")
