"""OpenAI chat messages, checked and brought into the one shape that chat templates expect."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from alipes.gateway.text.errors import TextError

Message = dict[str, Any]

_ROLES: Final = {"system", "developer", "user", "assistant", "tool"}
_SHOWN: Final = 64
_KEPT: Final = ("name", "tool_call_id", "reasoning_content")


def normalize(messages: Sequence[Any]) -> list[Message]:
    """Messages whose content is a string and whose tool-call arguments are mappings.

    Arguments that are not a JSON object, or hold half a surrogate pair, stay the string they are:
    models do write such calls and agents send them back. Raises ``TextError`` that names the field.
    """
    if not messages:
        raise TextError("messages", "is empty; send at least one message")
    return [_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def _message(message: Any, where: str) -> Message:
    if not isinstance(message, dict):
        raise TextError(where, "is not an object")
    role = message.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise TextError(
            f"{where}.role", f"is {_shown(role)}; use one of {', '.join(sorted(_ROLES))}"
        )
    plain: Message = {"role": "system" if role == "developer" else role}
    plain["content"] = _content(message.get("content"), role, f"{where}.content")
    for name in _KEPT:
        if isinstance(message.get(name), str):
            plain[name] = message[name]
    if message.get("tool_calls"):
        plain["tool_calls"] = _calls(message["tool_calls"], role, f"{where}.tool_calls")
    return plain


def _content(content: Any, role: str, where: str) -> str:
    if isinstance(content, str):
        return content
    if content is None:
        if role != "assistant":
            raise TextError(where, "is missing; send a string or a list of text parts")
        return ""
    if not isinstance(content, list):
        raise TextError(where, "must be a string or a list of text parts")
    return "\n".join(_part(part, f"{where}[{i}]") for i, part in enumerate(content))


def _part(part: Any, where: str) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        raise TextError(where, "is not a content part")
    kind = part.get("type")
    text = part.get("text" if kind == "text" else "refusal")
    if kind not in ("text", "refusal"):
        raise TextError(where, f"has type {_shown(kind)}; this model reads text parts only")
    if not isinstance(text, str):
        raise TextError(f"{where}.{kind}", "is not a string")
    return text


def _calls(calls: Any, role: str, where: str) -> list[Message]:
    if role != "assistant":
        raise TextError(where, f"is not allowed in a message of role {role!r}")
    if not isinstance(calls, list):
        raise TextError(where, "is not a list")
    return [_call(call, f"{where}[{i}]") for i, call in enumerate(calls)]


def _call(call: Any, where: str) -> Message:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        raise TextError(f"{where}.function", "is missing")
    name = function.get("name")
    if not isinstance(name, str):
        raise TextError(f"{where}.function.name", "is not a string")
    plain: Message = {"type": "function", "function": {"name": name}}
    plain["function"]["arguments"] = _arguments(function.get("arguments"), where)
    if isinstance(call.get("id"), str):
        plain["id"] = call["id"]
    return plain


def _arguments(arguments: Any, where: str) -> dict[str, Any] | str:
    if isinstance(arguments, dict):
        return arguments
    if arguments is None or arguments == "":
        return {}
    if not isinstance(arguments, str):
        raise TextError(f"{where}.function.arguments", "is not a string")
    try:
        parsed = json.loads(arguments)
        if "\\u" in arguments:
            json.dumps(parsed, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return arguments
    return parsed if isinstance(parsed, dict) else arguments


def _shown(value: Any) -> str:
    """As much of a client's value as an error line should repeat."""
    text = repr(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
