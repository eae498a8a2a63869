"""Templates that take the calls of tools in other shapes than most, and show no tools."""

from __future__ import annotations

import pytest

from alipes.gateway.conversation.message import Message, Tool, ToolCall
from alipes.gateway.text.call_shape import CallShape
from alipes.gateway.text.reply.deltas import ToolStart
from alipes.gateway.text.reply.family import form_of
from alipes.gateway.text.template import ChatTemplate

ADDED = """\
{%- for m in messages -%}
    {{- '<' + m.role + '>' + m.content -}}
    {%- for call in m.tool_calls or [] -%}
        {{- '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + call.function.name -}}
        {{- '<｜tool▁sep｜>' + call.function.arguments -}}
        {{- '<｜tool▁call▁end｜><｜tool▁calls▁end｜>' -}}
    {%- endfor -%}
{%- endfor -%}
"""
ALONE = """\
{%- for m in messages -%}
    {%- if m.content is not none -%}
        {{- '<' + m.role + '>' + m.content -}}
    {%- else -%}
        {%- for call in m.tool_calls -%}
            {{- '<｜tool▁calls▁begin｜>function\\n```json\\n' + call.function.name -}}
            {{- call.function.arguments -}}
        {%- endfor -%}
    {%- endif -%}
{%- endfor -%}
"""
ITEMS = """\
{%- for m in messages -%}
    {{- '<' + m.role + '>' + m.content -}}
    {%- for call in m.tool_calls or [] -%}
        {{- '<function=' + call.function.name + '>' -}}
        {%- for name, value in call.function.arguments|items -%}
            {{- '<parameter=' + name + '>' + value|string -}}
        {%- endfor -%}
    {%- endfor -%}
{%- endfor -%}
"""
JSON = """\
{%- for t in tools or [] -%}{{- t|tojson -}}{%- endfor -%}
{%- for m in messages -%}
    {{- '<' + m.role + '>' + m.content -}}
    {%- for call in m.tool_calls or [] -%}{{- call.function|tojson -}}{%- endfor -%}
{%- endfor -%}
"""
PLAIN = "{%- for m in messages -%}{{- '<' + m.role + '>' + m.content -}}{%- endfor -%}"
TOOL = Tool("look", "d", {"type": "object", "properties": {"a": {}}})
HALF = '{"a": "x", "b": '


def chat(arguments: dict[str, str] | str, text: str = "I look.") -> list[Message]:
    call = ToolCall("look", arguments, "c1")
    result = Message("tool", "seen", answers="c1")
    return [Message("user", "hi"), Message("assistant", text, calls=(call,)), result]


@pytest.mark.parametrize(
    ("source", "shape", "told"),
    [
        (ADDED, CallShape(as_text=True), (True, False)),
        (ALONE, CallShape(as_text=True, alone=True), (True, False)),
        (ITEMS, CallShape(takes_text=False), (True, False)),
        (JSON, CallShape(), (False, False)),
        (PLAIN, CallShape(), (True, True)),
    ],
)
def test_shapes_are_found_by_trying(source: str, shape: CallShape, told: tuple[bool, bool]) -> None:
    template = ChatTemplate(source, {})
    assert template._shape == shape
    assert (template.tells_tools, template.tells_calls) == told


@pytest.mark.parametrize("source", [ADDED, ALONE, ITEMS, JSON, PLAIN])
@pytest.mark.parametrize("arguments", [{"a": "x"}, HALF])
@pytest.mark.parametrize("text", ["I look.", ""])
def test_all_of_a_call_is_shown(source: str, arguments: dict[str, str] | str, text: str) -> None:
    shown = ChatTemplate(source, {}).render(chat(arguments, text), [TOOL])
    assert "seen" in shown
    assert text in shown
    assert shown.count("look") >= 2
    half = arguments if source is not JSON else '{\\"a\\": \\"x\\", \\"b\\": '
    assert ("x" if isinstance(arguments, dict) else half) in shown.partition("hi")[2]


@pytest.mark.parametrize("source", [ADDED, ALONE, ITEMS, PLAIN])
@pytest.mark.parametrize("added", [(), ("<|python_tag|>",)])
def test_models_are_read_as_they_are_told_to_call(source: str, added: tuple[str, ...]) -> None:
    """The example in the prompt, as a reply, is a call."""
    template = ChatTemplate(source, {})
    prompt = template.render([Message("user", "hi")], [TOOL])
    assert '"name": "look"' in prompt
    told = prompt.partition("write its name and arguments ")[2].partition(":\n")[2]
    example = told.partition("<user>")[0]
    parser = form_of(source, added, hermes=template.tells_calls).parser([TOOL], False, str)
    deltas = [*parser.push(example), *parser.finish()]
    assert [delta.name for delta in deltas if isinstance(delta, ToolStart)] == ["function"]
