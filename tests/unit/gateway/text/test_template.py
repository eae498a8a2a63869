"""Rendering equals that of ``transformers`` on the folders' own templates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from alipes.gateway.api.openai.messages import messages_of, tools_of
from alipes.gateway.conversation.message import Message, shown
from alipes.gateway.text.errors import TextError
from alipes.gateway.text.template import ChatTemplate

TOOLS = [
    {
        "type": "function",
        "function": {"name": "look", "description": "é <b> & 'x'", "parameters": {}},
    }
]
CALL = {"id": "1", "type": "function", "function": {"name": "look", "arguments": '{"a": ["é", 1]}'}}
CHATS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "hi\n"}],
    [{"role": "system", "content": "be brief"}, {"role": "user", "content": " <|im_end|> {{ x }}"}],
    [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": None, "tool_calls": [CALL, CALL]},
        {"role": "tool", "content": "one", "tool_call_id": "1"},
        {"role": "tool", "content": "two", "tool_call_id": "1"},
        {"role": "assistant", "content": "then", "tool_calls": [CALL]},
        {"role": "tool", "content": "three", "tool_call_id": "1"},
        {"role": "user", "content": "and?"},
    ],
]


@pytest.fixture(scope="module")
def folders(smollm2_folder: Path, tiny_folders: dict[str, Path]) -> list[Path]:
    return [smollm2_folder, tiny_folders["qwen3"]]


def test_rendering_equals_transformers(folders: list[Path]) -> None:
    for folder in folders:
        reference = AutoTokenizer.from_pretrained(folder)
        template = ChatTemplate.load(folder)
        for chat in map(messages_of, CHATS[:2] if template.tells_tools else CHATS):
            for tools in (None,) if template.tells_tools else (None, TOOLS):
                expected = reference.apply_chat_template(
                    list(map(shown, chat)), tools=tools, tokenize=False, add_generation_prompt=True
                )
                assert template.render(chat, tools_of(tools)) == expected


def test_a_template_that_knows_no_tools_is_told_them(folders: list[Path]) -> None:
    plain, hermes = (ChatTemplate.load(folder) for folder in folders)
    assert (plain.tells_tools, hermes.tells_tools) == (True, False)
    chat, tools = [Message("system", "be brief"), *messages_of(CHATS[2])], tools_of(TOOLS)
    assert plain.render(chat, tools) == hermes.render(chat, tools)
    assert plain.render(chat, ()) == hermes.render(chat, ())
    assert plain.render(chat[1:], tools) == hermes.render(chat[1:], tools)
    assert plain.render(chat, tools).startswith(plain.render(chat[:2], tools, speaks=False))


def test_a_prompt_continues_as_the_assistant_turn(folders: list[Path]) -> None:
    for folder in folders:
        template = ChatTemplate.load(folder)
        chat = messages_of(CHATS[0])
        longer = [*chat, Message("assistant", "hello")]
        assert template.render(longer, ()).startswith(template.render(chat, ()) + "hello")


def test_helpers_and_embedded_templates(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(
        '{"bos_token": {"content": "<s>"}, "chat_template": [{"name": "default", "template": '
        '"{{ bos_token }}{% generation %}{{ messages[0].content }}{% endgeneration %}"}]}'
    )
    assert ChatTemplate.load(tmp_path).render([Message("user", "x")], ()) == "<s>x"


@pytest.mark.parametrize(
    "source", ["{{ raise_exception('roles must alternate') }}", "{{ messages[0].content + 3 }}"]
)
def test_a_refusal_is_the_callers_fault(source: str) -> None:
    with pytest.raises(TextError, match="messages: the model's chat template refused"):
        ChatTemplate(source, {}).render([Message("user", "x")], ())


def test_no_template_and_no_way_out_of_the_sandbox() -> None:
    with pytest.raises(TextError, match="no chat template"):
        ChatTemplate("", {}).render([], ())
    with pytest.raises(TextError, match="refused"):
        ChatTemplate("{{ messages.__class__.__mro__ }}", {}).render([], ())
