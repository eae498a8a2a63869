"""Streamed replies come to what a plain reader makes of the whole text, in every form."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.property.whole_replies import Call, Unsure, read

from alipes.gateway.conversation.message import Tool
from alipes.gateway.text.reply.deltas import (
    Delta,
    TextDelta,
    ThinkingDelta,
    ToolArguments,
    ToolEnd,
    ToolStart,
    merged,
)
from alipes.gateway.text.reply.family import form_of

SIGNS = {
    "hermes": "<tool_call>",
    "qwen-xml": "<function=",
    "deepseek": "<｜tool▁calls▁begin｜>",
    "glm": "<arg_key>",
    "llama": "<|python_tag|>",
}
FORMS = {name: form_of(sign, ()) for name, sign in SIGNS.items()}
PROPERTIES = {"s": {"type": "string"}, "n": {"type": "integer"}, "o": {"type": "object"}, "any": {}}
TOOLS = tuple(Tool(name, None, {"properties": PROPERTIES}) for name in ("f", "g"))

texts = st.text(alphabet="ab1<>/{}\"\\;'é\n ", max_size=8)
values = {
    "s": texts,
    "n": st.integers(-9, 10**20),
    "o": st.dictionaries(st.sampled_from("ab"), st.one_of(texts, st.none(), st.lists(texts))),
}
arguments = st.fixed_dictionaries({}, optional=values)
spoken = st.one_of(
    st.sampled_from(["", "Yes.", "\n", " \n\n", "a < b", "<tool_ca", "```json", "; ", "<think>"]),
    st.text(alphabet="ab .,<>\n", max_size=8),
)
thoughts = st.sampled_from(
    ["", "<think>a</think>", "\n<think>\n\n</think>\n\n", "</think>", "<think>"]
)


def written(form: str, name: str, value: dict[str, Any], flat: bool) -> str:
    """One call, with line ends beside tags or, where ``flat``, without."""
    line = "" if flat else "\n"
    text = json.dumps(value, ensure_ascii=flat)
    bare = {key: one if isinstance(one, str) else json.dumps(one) for key, one in value.items()}
    if form == "hermes":
        return f'<tool_call>{line}{{"name": "{name}", "arguments": {text}}}{line}</tool_call>'
    if form == "qwen-xml":
        inner = "".join(f"<parameter={k}>\n{v}\n</parameter>{line}" for k, v in bare.items())
        return f"<tool_call>{line}<function={name}>{line}{inner}</function>{line}</tool_call>"
    if form == "glm":
        inner = "".join(
            f"<arg_key>{k}</arg_key>{line}<arg_value>{v}</arg_value>{line}" for k, v in bare.items()
        )
        return f"<tool_call>{name}{line}{inner}</tool_call>"
    if form == "deepseek":
        if flat:
            return f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{text}<｜tool▁call▁end｜>"
        head = f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}"
        return f"{head}\n```json\n{text}\n```<｜tool▁call▁end｜>"
    return f'{{"name": "{name}", "parameters": {text}}}'


@st.composite
def replies(draw: st.DrawFn, form: str) -> str:
    one = st.builds(written, st.just(form), st.sampled_from("fgh"), arguments, st.booleans())
    calls = draw(st.lists(one, max_size=3))
    before, after = draw(spoken), draw(spoken)
    if form == "deepseek":
        inner = "\n".join(calls)
        said = f"<｜tool▁calls▁begin｜>{inner}<｜tool▁calls▁end｜>" if calls else ""
        return draw(thoughts) + before + said + after
    if form == "llama":
        tag = draw(st.sampled_from(["", "<|python_tag|>"]))
        return draw(thoughts) + (before if tag else "") + tag + "; ".join(calls)
    parts = [before, *(part for call in calls for part in (call, draw(spoken))), after]
    return draw(thoughts) + "".join(parts)


def streamed(form: str, parts: list[str], opened: bool) -> list[Delta]:
    parser = FORMS[form].parser(TOOLS, opened, lambda: "x")
    return merged([delta for part in parts for delta in parser.push(part)] + parser.finish())


def told(deltas: list[Delta]) -> tuple[str, list[Any]]:
    """Thoughts, texts and calls, as the plain reader tells them."""
    thinking = "".join(delta.text for delta in deltas if isinstance(delta, ThinkingDelta))
    said: list[Any] = []
    for delta in deltas:
        if isinstance(delta, TextDelta):
            said.append(delta.text)
        elif isinstance(delta, ToolStart):
            said.append(Call(delta.name, ""))
        elif isinstance(delta, ToolArguments):
            said[-1] = Call(said[-1].name, said[-1].arguments + delta.text)
        elif isinstance(delta, ToolEnd):
            assert delta.whole
            said[-1] = Call(said[-1].name, json.loads(said[-1].arguments))
    return thinking, said


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_streamed_reply_is_that_of_a_plain_reader(form: str, data: st.DataObject) -> None:
    text = data.draw(replies(form))
    opened = data.draw(st.booleans())
    try:
        expected = read(form, text, opened, TOOLS)
    except Unsure:
        assume(False)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=12)))
    edges = [0, *cuts, len(text)]
    parts = [text[a:b] for a, b in itertools.pairwise(edges)]
    assert told(streamed(form, parts, opened)) == expected
    assert told(streamed(form, list(text), opened)) == expected
