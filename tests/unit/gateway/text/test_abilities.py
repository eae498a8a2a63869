"""Conversations in the shape that a template takes."""

from __future__ import annotations

import pytest

from alipes.gateway.conversation.message import Message, ToolCall
from alipes.gateway.text.template import ChatTemplate

ALTERNATING = (
    "{% for m in messages %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate user/assistant') }}{% endif %}"
    "[{{ m.role }}] {{ m.content }}\n{% endfor %}[assistant]"
)
SYSTEM_FIRST = (
    "{% for m in messages %}"
    "{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('system must be first') }}{% endif %}"
    "{% if m.role == 'tool' %}{{ raise_exception('unknown role') }}{% endif %}"
    "[{{ m.role }}] {{ m.content }}\n{% endfor %}[assistant]"
)
TAKES_ALL = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}[assistant]"


def said(*turns: tuple[str, str]) -> list[Message]:
    return [Message(role, text) for role, text in turns]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("source", "messages", "text"),
    [
        (ALTERNATING, said(("user", "x"), ("user", "y")), "[user] x\n\ny\n[assistant]"),
        (ALTERNATING, said(("system", "s"), ("user", "x")), "[user] s\n\nx\n[assistant]"),
        (
            ALTERNATING,
            said(("assistant", "a"), ("user", "x")),
            "[user] \n[assistant] a\n[user] x\n[assistant]",
        ),
        (
            SYSTEM_FIRST,
            said(("system", "a"), ("user", "x"), ("assistant", "y"), ("system", "b")),
            "[system] a\n[user] x\n[assistant] y\n[user] b\n[assistant]",
        ),
        (
            TAKES_ALL,
            said(("user", "x"), ("system", "b"), ("user", "y"), ("user", "z")),
            "[user] x\n[system] b\n[user] y\n[user] z\n[assistant]",
        ),
    ],
)
def test_what_a_template_refuses_is_shown_in_another_place(
    source: str, messages: list[Message], text: str
) -> None:
    assert ChatTemplate(source, {}).render(messages, ()) == text


@pytest.mark.parametrize("source", [ALTERNATING, SYSTEM_FIRST])
def test_tools_are_told_to_templates_that_know_none(source: str) -> None:
    call = Message("assistant", "ok", calls=(ToolCall("look", {"x": "é"}, "c"),))
    messages = [Message("user", "go"), call, Message("tool", "found", answers="c")]
    text = ChatTemplate(source, {}).render(messages, ())
    assert text == (
        '[user] go\n[assistant] ok\n<tool_call>\n{"name": "look", "arguments": {"x": "é"}}\n'
        "</tool_call>\n[user] <tool_response>\nfound\n</tool_response>\n[assistant]"
    )


@pytest.mark.parametrize("source", [ALTERNATING, SYSTEM_FIRST, TAKES_ALL])
def test_a_prompt_is_the_beginning_of_the_next_one(source: str) -> None:
    template = ChatTemplate(source, {})
    turns = said(("system", "s"), ("user", "a"), ("assistant", "b"), ("system", "c"))
    turns += said(("user", "d"), ("assistant", "e"), ("user", "f"))
    ends = [i for i in range(2, len(turns) + 1) if turns[i - 1].role == "user"]
    before = ""
    for end in ends:
        text = template.render(turns[:end], ())
        assert text.startswith(before)
        before = text.removesuffix("[assistant]")
