"""Reads a whole reply at once, in the plainest way: what the streaming parsers must come to."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from alipes.gateway.conversation.message import Tool


class Call(NamedTuple):
    name: str
    arguments: Any


class Unsure(Exception):
    """Something has begun and went wrong; what comes of it is told by examples elsewhere."""


# A call at a place of the text, and where it ends; None if there is no call.
Found = tuple[Call, int] | None
Finder = Callable[[str, int, dict[str, Tool]], Found]

_JSON: Final = json.JSONDecoder(strict=False)
_QWEN: Final = re.compile(r"(<tool_call>\s*)?<function=([^>\n]*)>")
_QWEN_VALUE: Final = re.compile(r"\s*<parameter=([^>]*)>\n?(.*?)\n?</parameter>", re.DOTALL)
_QWEN_END: Final = re.compile(r"\s*</function>(\s*</tool_call>)?")
_GLM: Final = re.compile(r"<tool_call>([^\n<{]*)(?=\s*(?:</tool_call>|<arg_key>))")
_GLM_VALUE: Final = re.compile(
    r"\s*<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL
)
_GLM_END: Final = re.compile(r"\s*</tool_call>")
_DEEPSEEK: Final = re.compile(
    r"(<｜tool▁calls▁begin｜>\s*)?<｜tool▁call▁begin｜>"
    r"(?:function<｜tool▁sep｜>(?P<fenced>[^\n]*)\n\s*```json|(?P<bare>.*?)<｜tool▁sep｜>)\s*(?={)",
    re.DOTALL,
)
_DEEPSEEK_END: Final = re.compile(
    r"\s*(?:```)?\s*(?:<｜tool▁call▁end｜>)?\s*(?:<｜tool▁calls▁end｜>)?"
)
_BEGINS: Final = {
    "hermes": ("<tool_call>",),
    "qwen-xml": ("<tool_call>", "<function="),
    "glm": ("<tool_call>",),
    "deepseek": ("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"),
}


def read(form: str, text: str, opened: bool, tools: tuple[Tool, ...]) -> tuple[str, list[Any]]:
    """Thoughts, and texts and calls in their order. Raises ``Unsure``."""
    thoughts, rest = _thoughts(text, opened)
    if rest is None:
        return thoughts, []
    by_name = {tool.name: tool for tool in tools}
    if form == "llama":
        return thoughts, _joined(_llama(rest, by_name))
    return thoughts, _joined(_tagged(rest, _BEGINS[form], _FINDERS[form], by_name))


def _thoughts(text: str, opened: bool) -> tuple[str, str | None]:
    bare = text.lstrip()
    if bare.startswith("<think>"):
        bare = bare.removeprefix("<think>")
    elif not opened:
        return "", text
    thoughts, closing, rest = bare.partition("</think>")
    return thoughts.strip(), (rest.lstrip() or None) if closing else None


def _tagged(
    text: str, begins: tuple[str, ...], finder: Finder, tools: dict[str, Tool]
) -> list[Any]:
    said: list[Any] = []
    at = start = 0
    while at < len(text):
        found = finder(text, at, tools) if text.startswith(begins, at) else None
        if found is None:
            at += 1
            continue
        said += [text[start:at].rstrip(), found[0]]
        at = start = found[1]
    last = text[start:]
    return [*said, "" if said and not last.strip() else last]


def _object(text: str, at: int) -> tuple[dict[str, Any], int]:
    try:
        value, end = _JSON.raw_decode(text, at)
    except ValueError:
        raise Unsure from None
    return value, end


def _hermes(text: str, at: int, tools: dict[str, Tool]) -> Found:
    del tools
    at += len("<tool_call>")
    at += len(text[at:]) - len(text[at:].lstrip())
    if not text.startswith("{", at):
        return None
    value, at = _object(text, at)
    arguments = value.get("arguments", {})
    if not isinstance(value.get("name"), str) or not isinstance(arguments, dict):
        raise Unsure
    closing = re.compile(r"\s*</tool_call>").match(text, at)
    return Call(value["name"], arguments), closing.end() if closing else at


def _qwen(text: str, at: int, tools: dict[str, Tool]) -> Found:
    head = _QWEN.match(text, at)
    if head is None or not head[2].strip() or (not head[1] and head[2].strip() not in tools):
        return None
    call, at = _members(text, head.end(), head[2].strip(), _QWEN_VALUE, tools)
    end = _QWEN_END.match(text, at)
    if end is None:
        raise Unsure
    return call, end.end()


def _glm(text: str, at: int, tools: dict[str, Tool]) -> Found:
    head = _GLM.match(text, at)
    if head is None:
        if re.compile(r"<tool_call>[^\n<{]*\S[^\n<{]*\n").match(text, at):
            raise Unsure
        return None
    if not head[1].strip():
        return None
    call, at = _members(text, head.end(), head[1].strip(), _GLM_VALUE, tools)
    end = _GLM_END.match(text, at)
    if end is None:
        raise Unsure
    return call, end.end()


def _members(
    text: str, at: int, name: str, pattern: re.Pattern[str], tools: dict[str, Tool]
) -> tuple[Call, int]:
    kinds = tools[name].parameters.get("properties", {}) if name in tools else {}
    arguments: dict[str, Any] = {}
    while value := pattern.match(text, at):
        key = value[1].strip()
        arguments[key] = value[2]
        if kinds.get(key, {}).get("type") != "string":
            try:
                arguments[key] = json.loads(value[2])
            except ValueError:
                if value[2].strip().lower() in ("true", "false", "none", "null"):
                    raise Unsure from None
        at = value.end()
    return Call(name, arguments), at


def _deepseek(text: str, at: int, tools: dict[str, Tool]) -> Found:
    del tools
    head = _DEEPSEEK.match(text, at)
    if head is None:
        if "<｜tool▁call▁begin｜>" in text[at:]:
            raise Unsure
        return None
    name = (head["fenced"] or head["bare"] or "").strip()
    if not name or "｜" in name or "\n" in name or name == "function":
        raise Unsure
    value, at = _object(text, head.end())
    end = _DEEPSEEK_END.match(text, at)
    assert end is not None
    return Call(name, value), end.end()


def _llama(text: str, tools: dict[str, Tool]) -> list[Any]:
    said: list[Any] = []
    names = set(tools)
    for index, part in enumerate(text.split("<|python_tag|>")):
        bare = part.strip()
        if not bare.startswith("{"):
            if index:
                raise Unsure
            said.append(part.rstrip() if "<|python_tag|>" in text else part)
            continue
        at = 0
        while bare.startswith("{", at):
            value, at = _object(bare, at)
            if (
                not isinstance(value.get("parameters"), dict)
                or not isinstance(value.get("name"), str)
                or (not index and value["name"] not in names)
            ):
                raise Unsure
            said.append(Call(value["name"], value["parameters"]))
            between = re.compile(r"\s*;?\s*").match(bare, at)
            at = between.end() if between else at
        if at < len(bare):
            raise Unsure
    return said


def _joined(said: list[Any]) -> list[Any]:
    """Texts side by side as one, empty ones left out."""
    result: list[Any] = []
    for one in said:
        if isinstance(one, str) and result and isinstance(result[-1], str):
            result[-1] += one
        elif one != "":
            result.append(one)
    return result


_FINDERS: Final[dict[str, Finder]] = {
    "hermes": _hermes,
    "qwen-xml": _qwen,
    "glm": _glm,
    "deepseek": _deepseek,
}
