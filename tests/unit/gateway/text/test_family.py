"""Forms are told from chat templates, and a reply that is sent back is the text that was made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import pytest

from alipes.gateway.conversation.message import Message, Tool, ToolCall
from alipes.gateway.text.reply.deltas import (
    Delta,
    TextDelta,
    ThinkingDelta,
    ToolArguments,
    ToolEnd,
    ToolStart,
)
from alipes.gateway.text.reply.family import form_of
from alipes.gateway.text.template import ChatTemplate
from alipes.instance import checkpoints

TEMPLATES: Final = Path(__file__).parents[3] / "data" / "templates"
HERMES: Final = Path(checkpoints.__path__[0]) / "data" / "hermes.jinja"
DEEPSEEK: Final = frozenset(
    {
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁call▁end｜>",
        "<｜tool▁sep｜>",
    }
)
# Of each template: its added tokens, its form, and the tokens that replies must show.
FAMILIES: Final[dict[str, tuple[frozenset[str], str, frozenset[str]]]] = {
    "hermes": (
        frozenset({"<|im_end|>", "<tool_call>", "</tool_call>"}),
        "hermes",
        frozenset({"<tool_call>", "</tool_call>"}),
    ),
    "qwen-xml": (
        frozenset({"<|im_end|>", "<tool_call>", "</tool_call>", "<think>", "</think>"}),
        "qwen-xml",
        frozenset({"<tool_call>", "</tool_call>", "<think>", "</think>"}),
    ),
    "deepseek-r1": (
        DEEPSEEK | {"<｜User｜>", "<think>", "</think>"},
        "deepseek",
        DEEPSEEK | {"<think>", "</think>"},
    ),
    "deepseek-v31": (DEEPSEEK | {"<｜User｜>"}, "deepseek", DEEPSEEK),
    "glm": (
        frozenset({"<|user|>", "<tool_call>", "<think>", "</think>", "<arg_key>", "</arg_key>"}),
        "glm",
        frozenset({"<tool_call>", "<think>", "</think>", "<arg_key>", "</arg_key>"}),
    ),
    "llama": (
        frozenset({"<|eot_id|>", "<|python_tag|>"}),
        "llama",
        frozenset({"<|python_tag|>"}),
    ),
}
ENDS: Final = ("<|im_end|>\n", "<｜end▁of▁sentence｜>", "<|eot_id|>")
TOOLS: Final = (
    Tool(
        "edit",
        "Changes a file.",
        {
            "type": "object",
            "properties": {"path": {"type": "string"}, "lines": {"type": "array"}},
        },
    ),
    Tool("look", None, {"type": "object", "properties": {}}),
)
EDIT: Final = ToolCall("edit", {"path": "a\n  b", "lines": [1, "x"]})
LOOK: Final = ToolCall("look", {})
REPLIES: Final = (
    Message("assistant", "Done."),
    Message("assistant", "", calls=(EDIT,)),
    Message("assistant", "", calls=(EDIT, LOOK)),
    Message("assistant", "I look.\n\nThen", calls=(LOOK,)),
    Message("assistant", "Yes.", reasoning="Is it?\n\nIt is."),
    Message("assistant", "", reasoning="I need to see.", calls=(LOOK, EDIT)),
)
ASKED: Final = (Message("user", "Go."),)


def template(family: str) -> ChatTemplate:
    file = HERMES if family == "hermes" else TEMPLATES / f"{family}.jinja"
    return ChatTemplate(file.read_text(), {"bos_token": "<bos>"})


@pytest.mark.parametrize("family", FAMILIES)
def test_a_form_is_told_from_template_and_tokens(family: str) -> None:
    added, name, visible = FAMILIES[family]
    form = form_of(template(family).source, added)
    assert (form.name, form.visible) == (name, visible)
    prompt = template(family).render(ASKED, TOOLS)
    assert form.opened(prompt) == (family == "deepseek-r1")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("reply", REPLIES)
def test_a_reply_that_is_sent_back_is_the_text_that_was_made(family: str, reply: Message) -> None:
    if family == "llama" and (reply.reasoning or (reply.text and reply.calls)):
        pytest.skip("the form has no way of saying it")
    if family == "deepseek-r1" and not reply.reasoning:
        pytest.skip("it always thinks")
    made = template(family)
    form = form_of(made.source, FAMILIES[family][0])
    prompt = made.render(ASKED, TOOLS)
    after = made.render([*ASKED, reply], TOOLS, speaks=False)
    assert after.startswith(prompt)
    said = after[len(prompt) :]
    for end in ENDS:
        said = said.removesuffix(end)
    parser = form.parser(TOOLS, form.opened(prompt), lambda: "x")
    deltas = [delta for letter in said for delta in parser.push(letter)]
    again = message(deltas + parser.finish())
    assert again == reply
    assert made.render([*ASKED, again], TOOLS, speaks=False) == after


def message(deltas: list[Delta]) -> Message:
    """What a client would make of a reply."""
    assert all(delta.whole for delta in deltas if isinstance(delta, ToolEnd))
    names = [delta.name for delta in deltas if isinstance(delta, ToolStart)]
    text = "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))
    arguments = [
        "".join(d.text for d in deltas if isinstance(d, ToolArguments) and d.index == index)
        for index in range(len(names))
    ]
    return Message(
        "assistant",
        text.strip(),
        "".join(delta.text for delta in deltas if isinstance(delta, ThinkingDelta)),
        tuple(
            ToolCall(name, json.loads(text)) for name, text in zip(names, arguments, strict=True)
        ),
    )
