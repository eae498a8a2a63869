"""Replies as models of each family write them, and as they go wrong."""

from __future__ import annotations

import json
import re
from typing import Any, Final, NamedTuple

from alipes.gateway.conversation.message import Tool
from alipes.gateway.text.reply.family import ReplyForm, form_of

SIGNS: Final = {
    "hermes": "<tool_call>",
    "qwen-xml": "<tool_call><function=",
    "deepseek-v3": "<｜tool▁calls▁begin｜>",
    "deepseek-v31": "<｜tool▁calls▁begin｜>",
    "glm": "<tool_call><arg_key>",
    "llama": "<|python_tag|>",
}
FORMS: Final[dict[str, ReplyForm]] = {name: form_of(sign, ()) for name, sign in SIGNS.items()}
MARKERS: Final = (
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁sep｜>",
    "<|python_tag|>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
)
_PARTS: Final = re.compile(f"({'|'.join(map(re.escape, MARKERS))})")
_STEP: Final = 4

_KINDS: Final[dict[str, Any]] = {
    "path": {"type": "string"},
    "count": {"type": "integer"},
    "ratio": {"type": "number"},
    "deep": {"type": "boolean"},
    "items": {"type": "array", "items": {"type": "string"}},
    "options": {"type": "object"},
    "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    "mode": {"enum": ["fast", "slow"]},
}
TOOLS: Final = tuple(
    Tool(name, None, {"type": "object", "properties": _KINDS}) for name in ("look", "change")
)


class Reply(NamedTuple):
    name: str
    form: str
    text: str
    opened: bool = False

    @property
    def parts(self) -> list[str]:
        """As tokens come: every marker by itself, the rest in small pieces."""
        parts = []
        for part in _PARTS.split(self.text):
            step = len(part) if part in MARKERS else _STEP
            parts += [part[at : at + step] for at in range(0, len(part), step or 1)]
        return parts

    def told(self) -> dict[str, Any]:
        """For a driver."""
        tools = [
            {"type": "function", "function": {"name": tool.name, "parameters": tool.parameters}}
            for tool in TOOLS
        ]
        return {
            "form": self.form,
            "opened": self.opened,
            "parts": self.parts,
            "tools": tools,
            "markers": MARKERS,
        }


def _written(form: str, name: str, arguments: dict[str, Any]) -> str:
    """One call, as the form has it."""
    text = json.dumps(arguments, ensure_ascii=False)
    bare = [
        (key, value if isinstance(value, str) else json.dumps(value))
        for key, value in arguments.items()
    ]
    if form == "hermes":
        return f'<tool_call>\n{{"name": "{name}", "arguments": {text}}}\n</tool_call>'
    if form == "qwen-xml":
        inner = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in bare)
        return f"<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>"
    if form == "deepseek-v3":
        head = f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n"
        return f"{head}{text}\n```<｜tool▁call▁end｜>"
    if form == "deepseek-v31":
        return f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{text}<｜tool▁call▁end｜>"
    if form == "glm":
        inner = "".join(f"<arg_key>{k}</arg_key>\n<arg_value>{v}</arg_value>\n" for k, v in bare)
        return f"<tool_call>{name}\n{inner}</tool_call>"
    return f'{{"name": "{name}", "parameters": {text}}}'


def _calls(form: str, *calls: str) -> str:
    if form.startswith("deepseek"):
        between = "\n" if form == "deepseek-v3" else ""
        return f"<｜tool▁calls▁begin｜>{between.join(calls)}<｜tool▁calls▁end｜>"
    return {"llama": "; "}.get(form, "\n").join(calls)


_PLAIN: Final[dict[str, dict[str, Any]]] = {
    "a string": {"path": "src/a b.py"},
    "a string of a number": {"path": "3"},
    "a string of letters": {"path": 'Grüße, "日本" \\ \t end'},
    "lines": {"path": "def f():\n    return 1\n\nprint(f())"},
    "an indented text": {"path": "    x\n  y  "},
    "a number": {"count": 12},
    "a fraction": {"ratio": 0.25},
    "a truth": {"deep": True},
    "a list": {"items": ["a", "b, c"]},
    "an object": {"options": {"a": {"b": [1, None]}}},
    "a string or none": {"maybe": "12"},
    "none": {"maybe": None},
    "one of some": {"mode": "fast"},
    "several": {"path": "a", "count": 1, "deep": False, "items": []},
    "no arguments": {},
}


def _made(form: str) -> list[Reply]:
    def call(name: str = "look", **arguments: Any) -> str:
        return _written(form, name, arguments)

    one = _calls(form, call(path="a"))
    two = _calls(form, call(path="a"), call("change", count=2))
    replies = [
        Reply(name, form, _calls(form, _written(form, "look", value)))
        for name, value in _PLAIN.items()
    ]
    replies += [
        Reply("only text", form, "It is done.\n\nAll of it."),
        Reply("text with signs", form, "if a < b and c > d: {x} `<b>`"),
        Reply("two calls", form, two),
        Reply("thinks and speaks", form, "<think>\nHm.\n</think>\n\nYes."),
        Reply("thinks and calls", form, f"<think>\nHm.\n</think>\n\n{one}"),
        Reply("opened, thinks and calls", form, f"Hm.\n</think>\n\n{one}", True),
        Reply("opened, never closed", form, "Hm. And then", True),
        Reply("thinks of nothing", form, "<think>\n\n</think>\n\nYes."),
        Reply("thinks of a call", form, f"<think>\nI say {one}\n</think>\n\nNo."),
    ]
    if form != "llama":
        replies.append(Reply("text and a call", form, f"Let me look.\n\n{one}"))
        replies.append(Reply("text and two calls", form, f"Let me look.{two}"))
    return replies


CORPUS: Final = [reply for form in FORMS for reply in _made(form)] + [
    Reply("tagged", "llama", '<|python_tag|>{"name": "look", "parameters": {"path": "a"}}'),
    Reply("an answer in JSON", "llama", '{"name": "Bob", "age": 3}'),
    Reply("broken off", "hermes", '<tool_call>\n{"name": "look", "arguments": {"path": "a'),
    Reply("broken off", "qwen-xml", "<tool_call>\n<function=look>\n<parameter=path>\na"),
    Reply("not JSON", "hermes", "<tool_call>\nlook at it\n</tool_call>"),
    Reply(
        "a tag in a string",
        "hermes",
        '<tool_call>\n{"name": "look", "arguments": {"path": "a</tool_call>b"}}\n</tool_call>',
    ),
    Reply(
        "text after a call",
        "hermes",
        '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>\nDone.',
    ),
    Reply(
        "arguments first",
        "hermes",
        '<tool_call>\n{"arguments": {"path": "a"}, "name": "look"}\n</tool_call>',
    ),
    Reply(
        "no outer tags",
        "qwen-xml",
        "<function=look>\n<parameter=path>\na\n</parameter>\n</function>",
    ),
    Reply(
        "Python's truth",
        "qwen-xml",
        "<tool_call>\n<function=look>\n<parameter=deep>\nTrue\n</parameter>\n"
        "</function>\n</tool_call>",
    ),
    Reply(
        "a tag in a value",
        "qwen-xml",
        "<tool_call>\n<function=look>\n<parameter=path>\na <parameter=b> c\n</parameter>\n"
        "</function>\n</tool_call>",
    ),
    Reply(
        "an unknown argument",
        "qwen-xml",
        "<tool_call>\n<function=look>\n<parameter=other>\n3\n</parameter>\n"
        "</function>\n</tool_call>",
    ),
    Reply(
        "no lines",
        "glm",
        "<tool_call>look<arg_key>count</arg_key><arg_value>3</arg_value></tool_call>",
    ),
]
