"""Reads replies with vLLM's parsers. Runs in their environment: ``SOURCE < replies > read``."""

from __future__ import annotations

import json
import sys
from typing import Any

from stand_ins import install

install(
    "vllm",
    sys.argv[1],
    (
        "compilation",
        "config",
        "distributed",
        "engine",
        "inputs",
        "lora",
        "model_executor",
        "multimodal",
        "platforms",
        "plugins",
        "renderers",
        "sampling_params",
        "tokenizers",
        "transformers_utils",
        "v1",
    ),
)

import vllm.renderers.chat_utils as chat_utils  # noqa: E402

chat_utils.make_tool_call_id = lambda *_, **__: "x"

from vllm.entrypoints.openai.chat_completion.protocol import (  # noqa: E402
    ChatCompletionRequest,
    ChatCompletionToolsParam,
)
from vllm.reasoning.deepseek_r1_reasoning_parser import DeepSeekR1ReasoningParser  # noqa: E402
from vllm.tool_parsers.deepseekv3_tool_parser import DeepSeekV3ToolParser  # noqa: E402
from vllm.tool_parsers.deepseekv31_tool_parser import DeepSeekV31ToolParser  # noqa: E402
from vllm.tool_parsers.glm47_moe_tool_parser import Glm47MoeModelToolParser  # noqa: E402
from vllm.tool_parsers.hermes_tool_parser import Hermes2ProToolParser  # noqa: E402
from vllm.tool_parsers.llama_tool_parser import Llama3JsonToolParser  # noqa: E402
from vllm.tool_parsers.qwen3_engine_tool_parser import Qwen3EngineToolParser  # noqa: E402

FORMS = {
    "hermes": Hermes2ProToolParser,
    "qwen-xml": Qwen3EngineToolParser,
    "deepseek-v3": DeepSeekV3ToolParser,
    "deepseek-v31": DeepSeekV31ToolParser,
    "glm": Glm47MoeModelToolParser,
    "llama": Llama3JsonToolParser,
}


class Tokenizer:
    """Every part of a reply is one token."""

    def __init__(self, reply: dict[str, Any]) -> None:
        words = dict.fromkeys([*reply["markers"], *reply["parts"]])
        self._ids = {word: number for number, word in enumerate(words)}
        self._words = list(words)
        self.all_special_tokens: list[str] = list(reply["markers"])
        self.all_special_ids = [self._ids[marker] for marker in reply["markers"]]

    def get_vocab(self) -> dict[str, int]:
        return self._ids

    def decode(self, ids: list[int], **_: Any) -> str:
        return "".join(self._words[number] for number in ids)

    def encode(self, text: str, **_: Any) -> list[int]:
        return [self._ids[text]] if text in self._ids else []

    def convert_tokens_to_ids(self, text: str) -> int | None:
        return self._ids.get(text)

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        return [self._words[number] for number in ids]


def made(reply: dict[str, Any]) -> tuple[Any, Any, Any]:
    tokenizer = Tokenizer(reply)
    tools = [ChatCompletionToolsParam(**tool) for tool in reply["tools"]]
    request = ChatCompletionRequest(messages=[], model="m", tools=tools)
    thinks = reply["opened"] or reply["parts"][:1] == ["<think>"]
    thinking = DeepSeekR1ReasoningParser(tokenizer) if thinks else None
    return thinking, FORMS[reply["form"]](tokenizer, tools), request


def whole(reply: dict[str, Any]) -> dict[str, Any]:
    thinking, calls, request = made(reply)
    thought, text = "", "".join(reply["parts"])
    if thinking is not None:
        thought, text = thinking.extract_reasoning(text, request)
    found = calls.extract_tool_calls(text or "", request)
    told = [[call.function.name, call.function.arguments] for call in found.tool_calls]
    return {"thinking": thought or "", "text": found.content or "", "calls": told}


def streamed(reply: dict[str, Any]) -> dict[str, Any]:
    thinking, calls, request = made(reply)
    tokenizer = Tokenizer(reply)
    thoughts, rest = "", []
    past: list[str] = []
    for part in reply["parts"]:
        if thinking is None:
            rest.append(part)
            continue
        delta = thinking.extract_reasoning_streaming(*_step(tokenizer, past, part))
        past.append(part)
        thoughts += (delta and delta.reasoning) or ""
        rest += [delta.content] if delta and delta.content else []
    texts, past = "", []
    told: dict[int, list[str]] = {}
    deltas = []
    for part in rest:
        deltas.append(
            calls.extract_tool_calls_streaming(*_step(tokenizer, past, part), request=request)
        )
        past.append(part)
    if hasattr(calls, "finish_streaming"):
        deltas.append(calls.finish_streaming())
    for delta in deltas:
        texts += (delta and delta.content) or ""
        for call in (delta and delta.tool_calls) or []:
            entry = told.setdefault(call.index, ["", ""])
            entry[0] += (call.function and call.function.name) or ""
            entry[1] += (call.function and call.function.arguments) or ""
    return {"thinking": thoughts, "text": texts, "calls": [told[i] for i in sorted(told)]}


def _step(tokenizer: Tokenizer, past: list[str], part: str) -> tuple[Any, ...]:
    before = [number for word in past for number in tokenizer.encode(word)]
    new = tokenizer.encode(part)
    said = "".join(past)
    return said, said + part, part, before, before + new, new


print(json.dumps([{"whole": whole(r), "streamed": streamed(r)} for r in json.load(sys.stdin)]))
