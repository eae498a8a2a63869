"""Rendering equals that of ``transformers`` on the folders' own templates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from alipes.gateway.text.errors import TextError
from alipes.gateway.text.messages import normalize
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
        for chat in map(normalize, CHATS):
            for tools in (None, TOOLS):
                expected = reference.apply_chat_template(
                    chat, tools=tools, tokenize=False, add_generation_prompt=True
                )
                assert template.render(chat, tools) == expected


def test_tools_are_shown_only_by_the_template_that_knows_them(folders: list[Path]) -> None:
    plain, hermes = (ChatTemplate.load(folder) for folder in folders)
    chat = normalize(CHATS[2])
    assert '"name": "look"' in hermes.render(chat, TOOLS)
    assert plain.render(chat, TOOLS) == plain.render(chat, None)


def test_a_prompt_continues_as_the_assistant_turn(folders: list[Path]) -> None:
    for folder in folders:
        template = ChatTemplate.load(folder)
        chat = normalize(CHATS[0])
        longer = [*chat, {"role": "assistant", "content": "hello"}]
        assert template.render(longer, None).startswith(template.render(chat, None) + "hello")


def test_helpers_and_embedded_templates(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(
        '{"bos_token": {"content": "<s>"}, "chat_template": [{"name": "default", "template": '
        '"{{ bos_token }}{% generation %}{{ messages[0].content }}{% endgeneration %}"}]}'
    )
    assert ChatTemplate.load(tmp_path).render([{"role": "user", "content": "x"}], None) == "<s>x"


@pytest.mark.parametrize(
    "source", ["{{ raise_exception('roles must alternate') }}", "{{ messages[0].content + 3 }}"]
)
def test_a_refusal_is_the_callers_fault(source: str) -> None:
    with pytest.raises(TextError, match="messages: the model's chat template refused"):
        ChatTemplate(source, {}).render([{"role": "user", "content": "x"}], None)


def test_no_template_and_no_way_out_of_the_sandbox() -> None:
    with pytest.raises(TextError, match="no chat template"):
        ChatTemplate("", {}).render([], None)
    with pytest.raises(TextError, match="refused"):
        ChatTemplate("{{ messages.__class__.__mro__ }}", {}).render([], None)
