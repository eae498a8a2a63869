"""From items and tools of the Responses API to what a chat template takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from alipes.gateway.api.errors import ApiError, invalid
from alipes.gateway.api.openai.responses.schema import Item, Part, Tool

Message = dict[str, Any]

_ROLES: Final = ("user", "assistant", "system", "developer")
_TEXT_PARTS: Final = ("input_text", "output_text", "text")
_SHOWN: Final = 64


@dataclass(frozen=True, slots=True)
class Tools:
    """``shown`` are the tools in the form of templates, None for none; ``names`` leads from the
    name that a model sees to (namespace or None, name); ``used`` are those they come from."""

    shown: list[Message] | None = None
    names: dict[str, tuple[str | None, str]] = field(default_factory=dict)
    used: list[Tool] = field(default_factory=list)


def tools_of(tools: Sequence[Tool] | None) -> Tools:
    """The functions among the tools, those in namespaces too. Other types (web_search, custom,
    image_generation, ...) are left out: agents offer them unasked, no model here can use them,
    and one that does not see a tool does not call it. Raises a 400 for a nameless function."""
    shown: list[Message] = []
    names: dict[str, tuple[str | None, str]] = {}
    used: list[Tool] = []
    for i, tool in enumerate(tools or ()):
        functions = _functions(f"tools[{i}]", tool)
        for namespace, function in functions:
            name = shown_name(namespace, function.name or "")
            names[name] = (namespace, function.name or "")
            shown.append({"type": "function", "function": _described(name, function)})
        if functions:
            used.append(tool)
    return Tools(shown or None, names, used)


def _functions(place: str, tool: Tool) -> list[tuple[str | None, Tool]]:
    if tool.type == "function":
        if not tool.name:
            raise invalid(f"{place}.name", "is required")
        return [(None, tool)]
    if tool.type != "namespace":
        return []
    inner = [
        function
        for j, each in enumerate(tool.tools or ())
        for _, function in _functions(f"{place}.tools[{j}]", each)
    ]
    return [(tool.name, function) for function in inner]


def _described(name: str, tool: Tool) -> Message:
    function: Message = {"name": name}
    if tool.description is not None:
        function["description"] = tool.description
    function["parameters"] = tool.parameters or {"type": "object", "properties": {}}
    return function


def shown_name(namespace: str | None, name: str) -> str:
    """What a model calls the function: its name, behind that of its namespace."""
    if not namespace:
        return name
    return namespace + name if namespace.endswith("__") else f"{namespace}__{name}"


def messages_of(instructions: str | None, items: Sequence[Item], first: int = 0) -> list[Message]:
    """Chat messages of a conversation. Raises a 400 that names the item: those before ``first``
    were checked in an earlier call, ``input[0]`` comes after them.

    What the system says before anybody else becomes one message, as many templates take one
    only. Text and calls of an assistant's turn become one message again, as it was generated.
    """
    messages: list[Message] = [{"role": "system", "content": instructions}] if instructions else []
    for i, item in enumerate(items):
        _append(messages, item, f"input[{i - first}]")
    return messages


def _append(messages: list[Message], item: Item, place: str) -> None:
    last = messages[-1] if messages else None
    kind = item.type or ("message" if item.role else None)
    if kind == "message":
        _append_message(messages, last, item, place)
    elif kind == "function_call":
        call = _call(item, place)
        if last is None or last["role"] != "assistant":
            last = {"role": "assistant", "content": ""}
            messages.append(last)
        last.setdefault("tool_calls", []).append(call)
    elif kind == "function_call_output":
        content = _text(f"{place}.output", item.output)
        messages.append({"role": "tool", "tool_call_id": item.call_id or "", "content": content})
    elif kind is None:
        raise invalid(f"{place}.type", "is required")
    elif kind != "reasoning":
        raise _unsupported(f"{place}.type", kind)


def _append_message(messages: list[Message], last: Message | None, item: Item, place: str) -> None:
    if item.role not in _ROLES:
        shown = repr(item.role)[:_SHOWN]
        raise invalid(f"{place}.role", f"is {shown}; use one of {', '.join(_ROLES)}")
    role = "system" if item.role == "developer" else item.role
    content = _text(f"{place}.content", item.content)
    if last is None or last["role"] != role:
        messages.append({"role": role, "content": content})
    elif role == "system" and len(messages) == 1:
        last["content"] += "\n\n" + content
    elif role == "assistant" and "tool_calls" in last:
        last["content"] += content
    else:
        messages.append({"role": role, "content": content})


def _call(item: Item, place: str) -> Message:
    if not item.name:
        raise invalid(f"{place}.name", "is required")
    function = {
        "name": shown_name(item.namespace, item.name),
        "arguments": item.arguments or "{}",
    }
    return {"id": item.call_id or "", "type": "function", "function": function}


def _text(place: str, content: str | list[Part] | None) -> str:
    if content is None:
        raise invalid(place, "is required")
    if isinstance(content, str):
        return content
    return "\n".join(_part(f"{place}[{i}]", part) for i, part in enumerate(content))


def _part(place: str, part: Part) -> str:
    if part.type == "refusal":
        return part.refusal or ""
    if part.type not in _TEXT_PARTS:
        raise _unsupported(f"{place}.type", part.type)
    if part.text is None:
        raise invalid(f"{place}.text", "is required")
    return part.text


def _unsupported(place: str, kind: str) -> ApiError:
    message = f"{kind[:_SHOWN]!r} is not supported: the models here read text and call functions"
    return invalid(place, message, "unsupported")
