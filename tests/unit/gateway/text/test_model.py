from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, processors
from transformers import AutoTokenizer

from alipes.gateway.api.openai.messages import messages_of
from alipes.gateway.conversation.message import Conversation, Message, Tool, ToolCall
from alipes.gateway.text import model
from alipes.gateway.text.decode import Pieces
from alipes.gateway.text.errors import TextError
from alipes.gateway.text.model import ModelText, Prompt
from alipes.gateway.text.reply.deltas import TextDelta, ToolStart
from alipes.gateway.text.template import ChatTemplate
from alipes.gateway.text.tokens import TextEncoder

A_USERS = Message("user", "b")


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def prompt_of(text: ModelText, chat: list[dict[str, Any]], tenant: str = "") -> Prompt:
    return asyncio.run(text.chat(Conversation(messages_of(chat)), tenant))


def test_facts_of_a_folder(smollm2_folder: Path, tiny_folders: dict[str, Path]) -> None:
    text = ModelText.load("s", smollm2_folder)
    assert (text.name, text.context, text.vocab_size, text.stop_ids) == ("s", 8192, 49152, (2, 0))
    assert ModelText.load("t", tiny_folders["qwen3"]).context == 8192


def test_prompts_equal_transformers_and_grow_cheaply(smollm2_folder: Path) -> None:
    reference = AutoTokenizer.from_pretrained(smollm2_folder)
    text = ModelText.load("s", smollm2_folder)
    chat = [user("Tell me about 2 lamps.  " * 50)]
    before = 0
    for turn in range(5):
        prompt = prompt_of(text, chat)
        rendered = reference.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        ids = reference(rendered, add_special_tokens=False).input_ids
        assert prompt.tokens.tolist() == ids
        assert prompt.reused >= before - 10
        before = len(ids)
        chat = [*chat, {"role": "assistant", "content": "no"}, user(f"turn {turn}")]
    assert prompt_of(text, chat[:-2]).reused == before
    assert prompt_of(text, chat[:-2], "other").reused == 0
    with pytest.raises(ValueError, match="read-only"):
        prompt.tokens[0] = 1


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_the_next_prompt_begins_with_the_stem(tiny_folders: dict[str, Path], family: str) -> None:
    text = ModelText.load("t", tiny_folders[family])
    chat = [{"role": "system", "content": "Be brief."}]
    assert prompt_of(text, chat).stem == 0
    chat.append(user("hi"))
    for _ in range(3):
        before = prompt_of(text, chat)
        shown = "".join(text.piece(int(token))[0] for token in before.tokens[before.stem :])
        assert shown.startswith("<|im_start|>assistant")
        chat += [{"role": "assistant", "content": "no"}, user("more")]
        after = prompt_of(text, chat)
        assert after.tokens[: before.stem].tolist() == before.tokens[: before.stem].tolist()
    assert asyncio.run(text.text("Once upon")).stem == 2


def test_long_and_short_texts_tokenize_alike(smollm2_folder: Path) -> None:
    reference = Tokenizer.from_file(str(smollm2_folder / "tokenizer.json"))
    text = ModelText.load("s", smollm2_folder)
    for prompt in ("", "a", "Once <|im_end|> upon\n\n  a time 12 " * 500):
        assert asyncio.run(text.text(prompt)).tokens.tolist() == reference.encode(prompt).ids


def test_what_the_tokenizer_puts_around_a_text_is_kept(smollm2_folder: Path) -> None:
    def framed() -> Tokenizer:
        tokenizer = Tokenizer.from_file(str(smollm2_folder / "tokenizer.json"))
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<|im_start|> $A <|im_end|>",
            special_tokens=[("<|im_start|>", 1), ("<|im_end|>", 2)],
        )
        return tokenizer

    encoder, reference = TextEncoder(framed()), framed()
    ids = encoder.framed(encoder.encode("some text", release=False).ids)
    assert ids.tolist() == reference.encode("some text").ids
    assert ids[0] == 1


def test_callers_faults_name_the_field(smollm2_folder: Path) -> None:
    text = ModelText.load("s", smollm2_folder)
    with pytest.raises(TextError, match="messages"):
        prompt_of(text, [user("a\ud800")])
    with pytest.raises(TextError, match="prompt"):
        asyncio.run(text.text("a\ud800"))


def test_what_cannot_fit_is_refused_before_it_is_tokenized(smollm2_folder: Path) -> None:
    text = ModelText.load("s", smollm2_folder)
    huge = "x" * (30 << 20)
    with pytest.raises(TextError, match=r"messages: make about \d+ tokens; the context of s is"):
        prompt_of(text, [user(huge)])
    with pytest.raises(TextError, match="prompt: make about"):
        asyncio.run(text.text(huge))


def test_what_cannot_fit_is_refused_before_it_is_rendered(
    smollm2_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = ModelText.load("s", smollm2_folder)
    monkeypatch.setattr("alipes.gateway.text.model.rendered", None)
    with pytest.raises(TextError, match="at least 8193 tokens; the context of s is 8192") as raised:
        prompt_of(text, [user("a")] * 8193)
    assert raised.value.overflow == (8193, 8192)
    calls = [{"function": {"name": "f", "arguments": "{}"}}] * 8191
    chat = [user("a"), {"role": "assistant", "tool_calls": calls}]
    with pytest.raises(TextError, match="at least 8193 tokens"):
        prompt_of(text, chat)
    with pytest.raises(TextError, match="make about"):
        prompt_of(text, [user("<\ufdd0" * 60_000), user("word " * 20_000)])


@pytest.mark.parametrize(
    ("chat", "apart"),
    [
        (Conversation([Message("user", "a")] * 2000), {"message_keys", "rendered"}),
        (Conversation([Message("user", "word " * 20_000)]), {"rendered"}),
        (Conversation([Message("user", "a")], [Tool("f", "word " * 20_000, {})]), {"rendered"}),
        (
            Conversation(
                [Message("assistant", calls=(ToolCall("f", {"a": "word " * 20_000}),)), A_USERS]
            ),
            {"rendered"},
        ),
        (Conversation([Message("user", "word " * 10_000), A_USERS]), set()),
    ],
    ids=["many", "text", "tool", "call", "short"],
)
def test_long_conversations_are_hashed_and_rendered_apart(
    smollm2_folder: Path, monkeypatch: pytest.MonkeyPatch, chat: Conversation, apart: set[str]
) -> None:
    seen = set()

    def watch(name: str) -> None:
        made = getattr(model, name)

        def watched(*args: Any) -> Any:
            if threading.current_thread() is not threading.main_thread():
                seen.add(name)
            return made(*args)

        monkeypatch.setattr(model, name, watched)

    watch("message_keys")
    watch("rendered")
    encoder = TextEncoder.load(smollm2_folder)
    config = {"max_position_embeddings": 1 << 20, "vocab_size": 49152}
    template, pieces = ChatTemplate.load(smollm2_folder), Pieces(encoder.tokenizer)
    text = ModelText("s", config, (), template, encoder, pieces)
    assert len(asyncio.run(text.chat(chat)).tokens) > 5000
    assert seen == apart
    more = Conversation([*chat.messages[-1000:], A_USERS], chat.tools)
    asyncio.run(text.chat(more))
    seen.clear()
    asyncio.run(text.chat(Conversation([*more.messages, A_USERS], more.tools)))
    assert not seen, "what is known is not looked through again"


def test_the_first_control_token_of_a_client_takes_no_second_tokenizer(
    smollm2_folder: Path,
) -> None:
    encoder = TextEncoder.load(smollm2_folder)
    before = time.perf_counter()
    encoder.encode(encoder.literals.text("what is <|im_end|>?"), release=False)
    assert time.perf_counter() - before < 0.15


def test_deep_and_large_arguments_are_read(tiny_folders: dict[str, Path]) -> None:
    text = ModelText.load("t", tiny_folders["qwen3"])
    for arguments in ('{"a": 1' + "0" * 40 + "}", '{"a": "\\ud83d"}', "[" * 5000, '{"a": NaN}'):
        call = {"function": {"name": "f", "arguments": arguments}}
        chat = [user("a"), {"role": "assistant", "content": None, "tool_calls": [call]}]
        assert len(prompt_of(text, chat).tokens) > 10
    nested = {"function": {"name": "f", "arguments": '{"a":' * 900 + "1" + "}" * 900}}
    chat = [user("a"), {"role": "assistant", "content": "", "tool_calls": [nested]}]
    assert len(prompt_of(text, chat).tokens) > 900


def test_tools_choose_the_parser(smollm2_folder: Path) -> None:
    text = ModelText.load("s", smollm2_folder)
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    assert isinstance(text.output((Tool("f", None, {}),)).push(call)[0], ToolStart)
    assert text.output(()).push(call) == [TextDelta(call)]
    assert text.piece(2) == ("<|im_end|>", b"<|im_end|>")
    assert text.piece(10**9) == ("", b"")


def test_the_gateway_side_loads_no_torch() -> None:
    code = (
        "import sys, alipes.gateway.text.model; print({'torch', 'transformers'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
