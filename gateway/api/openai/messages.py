"""What OpenAI chat messages and tools say, as a conversation."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from alipes.gateway.conversation.content import string_of, text_of
from alipes.gateway.conversation.message import NO_PARAMETERS, Message, Role, Tool, ToolCall
from alipes.gateway.text.errors import TextError

_ROLES: Final[dict[str, Role]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
_SHOWN: Final = 64
_SERVED: Final = ("function", "custom")
"""The types of tools that a client runs itself."""


def messages_of(messages: Sequence[Any]) -> list[Message]:
    """Raises ``TextError`` that names the field."""
    if not messages:
        raise TextError("messages", "is empty; send at least one message")
    last = len(messages) - 1
    return [_message(m, f"messages[{i}]", i == last) for i, m in enumerate(messages)]


def _message(message: Any, place: str, last: bool) -> Message:
    if not isinstance(message, Mapping):
        raise TextError(place, "is not an object")
    sent = message.get("role")
    role = _ROLES.get(sent) if isinstance(sent, str) else None
    if role is None:
        known = ", ".join(sorted(_ROLES))
        raise TextError(f"{place}.role", f"is {shortened(sent)}; use one of {known}")
    text = text_of(message.get("content"), f"{place}.content", handed=last and role == "user")
    if not text and role == "assistant":
        text = string_of(message.get("refusal"))
    if message.get("tool_calls") and role != "assistant":
        raise TextError(f"{place}.tool_calls", f"is not allowed in a message of role {sent!r}")
    return Message(
        role,
        text,
        string_of(message.get("reasoning_content")) or string_of(message.get("reasoning")),
        _calls(message, place) if role == "assistant" else (),
        string_of(message.get("tool_call_id")) if role == "tool" else "",
        string_of(message.get("name")),
    )


def _calls(message: Mapping[str, Any], place: str) -> tuple[ToolCall, ...]:
    calls = message.get("tool_calls")
    if calls is None and isinstance(message.get("function_call"), Mapping):
        calls = [{"function": message["function_call"]}]
    if calls is not None and not isinstance(calls, list):
        raise TextError(f"{place}.tool_calls", "is not a list")
    return tuple(_call(call, f"{place}.tool_calls[{i}]") for i, call in enumerate(calls or ()))


def _call(call: Any, place: str) -> ToolCall:
    kind = "custom" if isinstance(call, Mapping) and "custom" in call else "function"
    made = call.get(kind) if isinstance(call, Mapping) else None
    if not isinstance(made, Mapping):
        raise TextError(f"{place}.{kind}", "is missing")
    name = made.get("name")
    if not isinstance(name, str):
        raise TextError(f"{place}.{kind}.name", "is not a string")
    if kind == "custom":
        arguments: dict[str, Any] | str = {"input": string_of(made.get("input"))}
    else:
        arguments = arguments_of(made.get("arguments"), f"{place}.function.arguments")
    return ToolCall(name, arguments, string_of(call.get("id")))


def arguments_of(arguments: Any, place: str) -> dict[str, Any] | str:
    """An object; what is none, or holds half a surrogate pair, stays the text it is: models do
    write such calls and agents send them back."""
    if isinstance(arguments, dict):
        return arguments
    if arguments is None or arguments == "":
        return {}
    if not isinstance(arguments, str):
        raise TextError(place, "is not a string")
    try:
        parsed = json.loads(arguments)
        if "\\u" in arguments:
            json.dumps(parsed, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return arguments
    return parsed if isinstance(parsed, dict) else arguments


def tools_of(tools: Sequence[Any] | None) -> list[Tool]:
    """Tools of types that nothing here can serve are left out; raises ``TextError`` for one without
    a name."""
    made = (_tool(tool, f"tools[{i}]") for i, tool in enumerate(tools or ()))
    return [tool for tool in made if tool is not None]


def hosted_of(tools: Sequence[Any] | None) -> set[str]:
    """The types of those that are left out."""
    kinds = {tool.get("type") for tool in tools or () if isinstance(tool.get("type"), str)}
    return kinds - set(_SERVED)


def _tool(tool: Any, place: str) -> Tool | None:
    if not isinstance(tool, Mapping):
        raise TextError(place, "is not an object")
    kind = tool.get("type", "function")
    if kind not in _SERVED:
        return None
    described = tool.get(kind)
    if not isinstance(described, Mapping) or not isinstance(described.get("name"), str):
        raise TextError(f"{place}.{kind}.name", "is required")
    description = described.get("description")
    description = description if isinstance(description, str) else None
    if kind == "custom":
        return freeform(described["name"], description, described.get("format"))
    parameters = described.get("parameters")
    parameters = parameters if isinstance(parameters, dict) else NO_PARAMETERS
    strict = described.get("strict") is True
    return Tool(described["name"], description, parameters, strict=strict)


def freeform(name: str, description: str | None, form: Any) -> Tool:
    """A tool that takes a text, as a function of one string. ``form`` is what the client says of
    that text; a grammar is shown to the model."""
    told = description or ""
    syntax, definition = _grammar(form)
    if definition:
        grammar = f"The input follows this {syntax or 'formal'} grammar:\n{definition}"
        told = f"{told}\n\n{grammar}" if told else grammar
    schema = {"type": "string", "description": "The whole input of the tool, as plain text."}
    parameters = {"type": "object", "properties": {"input": schema}, "required": ["input"]}
    known = syntax in ("lark", "regex")
    return Tool(
        name,
        told or None,
        parameters,
        freeform=True,
        syntax=syntax if known else "",
        definition=definition if known else "",
    )


def _grammar(form: Any) -> tuple[str, str]:
    """Syntax and definition, empty where there is none."""
    if not isinstance(form, Mapping):
        return "", ""
    inner = form["grammar"] if isinstance(form.get("grammar"), Mapping) else form
    return string_of(inner.get("syntax")), string_of(inner.get("definition"))


def shortened(value: Any) -> str:
    """As much of a client's value as an error line should repeat."""
    text = repr(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
