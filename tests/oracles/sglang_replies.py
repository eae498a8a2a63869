"""Reads replies with SGLang's parsers. Runs in their environment: ``SOURCE < replies > read``."""

from __future__ import annotations

import json
import sys
from typing import Any

from stand_ins import install

install("sglang", sys.argv[1])

from sglang.srt.entrypoints.openai.protocol import Tool  # noqa: E402
from sglang.srt.function_call.function_call_parser import FunctionCallParser  # noqa: E402
from sglang.srt.parser.reasoning_parser import ReasoningParser  # noqa: E402

FORMS = {
    "hermes": ("qwen3", "hermes"),
    "qwen-xml": ("qwen3", "qwen3_coder"),
    "deepseek-v3": ("qwen3", "deepseekv3"),
    "deepseek-v31": ("qwen3", "deepseekv31"),
    "glm": ("glm45", "glm45"),
    "llama": ("qwen3", "llama3"),
}


def parsers(reply: dict[str, Any]) -> tuple[Any, Any]:
    thinking, calls = FORMS[reply["form"]]
    tools = [Tool(**tool) for tool in reply["tools"]]
    # Our own force or none: what a template opens is told by the reply.
    return (
        ReasoningParser(thinking, force_reasoning=reply["opened"]),
        FunctionCallParser(tools, calls),
    )


def whole(reply: dict[str, Any]) -> dict[str, Any]:
    thinking, calls = parsers(reply)
    thought, text = thinking.parse_non_stream("".join(reply["parts"]))
    found = []
    if calls.has_tool_call(text or ""):
        text, found = calls.parse_non_stream(text)
    told = [[call.name, call.parameters] for call in found]
    return {"thinking": thought or "", "text": text or "", "calls": told}


def streamed(reply: dict[str, Any]) -> dict[str, Any]:
    thinking, calls = parsers(reply)
    thoughts, texts = "", ""
    told: dict[int, list[str]] = {}
    for part in reply["parts"]:
        thought, text = thinking.parse_stream_chunk(part)
        thoughts += thought or ""
        if not text:
            continue
        said, found = calls.parse_stream_chunk(text)
        texts += said
        for call in found:
            entry = told.setdefault(call.tool_index, ["", ""])
            entry[0] += call.name or ""
            entry[1] += call.parameters or ""
    return {"thinking": thoughts, "text": texts, "calls": [told[i] for i in sorted(told)]}


print(json.dumps([{"whole": whole(r), "streamed": streamed(r)} for r in json.load(sys.stdin)]))
