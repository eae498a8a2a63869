"""What items and tools of the Responses API say, as a conversation."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import msgspec

from alipes.gateway.api.errors import invalid
from alipes.gateway.api.openai.messages import arguments_of, freeform
from alipes.gateway.api.openai.responses.schema import Item, Tool
from alipes.gateway.conversation import message as model
from alipes.gateway.conversation.content import string_of, text_of
from alipes.gateway.conversation.message import Message, Role, ToolCall

_ROLES: Final[dict[str, Role]] = {
    "user": "user",
    "assistant": "assistant",
    "system": "system",
    "developer": "system",
}
_CALLS: Final = ("function_call", "custom_tool_call")
_OUTPUTS: Final = ("function_call_output", "custom_tool_call_output")
_SHOWN: Final = 64
_SEALED: Final = "text:"


class Origin(NamedTuple):
    """What a client calls a tool."""

    namespace: str | None
    name: str
    freeform: bool = False


@dataclass(frozen=True, slots=True)
class Tools:
    """``shown`` are those a model sees; ``origins`` leads from the name that it sees; ``used`` are
    those of the client that they come from. ``hosted`` are the types of the others."""

    shown: list[model.Tool] = field(default_factory=list)
    origins: dict[str, Origin] = field(default_factory=dict)
    used: list[Tool] = field(default_factory=list)
    hosted: set[str] = field(default_factory=set)

    def origin(self, name: str) -> Origin:
        return self.origins.get(name) or Origin(None, name)


# --- tools ---------------------------------------------------------------------------------------


def tools_of(tools: Sequence[Tool] | None, items: Sequence[Item] = ()) -> Tools:
    """The functions and freeform tools among the tools and those that ``items`` bring, in
    namespaces too; of several with one name the first. Other types (web_search,
    image_generation, ...) are left out: agents offer them unasked, no model here can use them, and
    one that does not see a tool does not call it. Raises a 400 for one without a name."""
    made = Tools()
    for place, tool in [*_offered(tools), *_brought(items)]:
        found = False
        for origin, each in _callable(place, tool, None):
            found = True
            name = shown_name(origin.namespace, origin.name)
            if name not in made.origins:
                made.origins[name] = origin
                made.shown.append(_described(name, each))
        if found:
            made.used.append(tool)
        else:
            made.hosted.add(tool.type)
    return made


def _offered(tools: Sequence[Tool] | None) -> Iterator[tuple[str, Tool]]:
    for i, tool in enumerate(tools or ()):
        yield f"tools[{i}]", tool


def _brought(items: Sequence[Item]) -> Iterator[tuple[str, Tool]]:
    for item in items:
        if item.type == "additional_tools" and isinstance(item.tools, list):
            for i, tool in enumerate(item.tools):
                place = f"additional_tools.tools[{i}]"
                try:
                    yield place, msgspec.convert(tool, Tool)
                except msgspec.ValidationError as error:
                    raise invalid(place, str(error)) from None


def _callable(place: str, tool: Tool, namespace: str | None) -> Iterator[tuple[Origin, Tool]]:
    if tool.type in ("function", "custom"):
        if not tool.name:
            raise invalid(f"{place}.name", "is required")
        yield Origin(namespace, tool.name, tool.type == "custom"), tool
    elif tool.type == "namespace":
        for i, each in enumerate(tool.tools or ()):
            yield from _callable(f"{place}.tools[{i}]", each, tool.name)


def _described(name: str, tool: Tool) -> model.Tool:
    if tool.type == "custom":
        return freeform(name, tool.description, tool.format)
    parameters = tool.parameters or model.NO_PARAMETERS
    return model.Tool(name, tool.description, parameters, strict=tool.strict is True)


def shown_name(namespace: str | None, name: str) -> str:
    """What a model calls the function: its name, behind that of its namespace."""
    if not namespace:
        return name
    return namespace + name if namespace.endswith("__") else f"{namespace}__{name}"


# --- messages ------------------------------------------------------------------------------------


def messages_of(instructions: str | None, items: Sequence[Item], first: int = 0) -> list[Message]:
    """Raises ``TextError``, or a 400, that names the item: those before ``first`` were checked in
    an earlier call, ``input[0]`` comes after them.

    What the system says before anybody else becomes one message, as many templates take one
    only. Thoughts, text and calls of an assistant's turn become one message again, as it was
    generated. Items that say nothing to a text model are passed over.
    """
    reader = _Reader(instructions)
    for i, item in enumerate(items):
        reader.read(item, f"input[{i - first}]", last=i == len(items) - 1)
    return reader.messages()


class _Reader:
    """``_turn`` is what the assistant has said so far in the turn that is being read."""

    def __init__(self, instructions: str | None) -> None:
        self._done = [Message("system", instructions)] if instructions else []
        self._turn: list[Message] = []

    def messages(self) -> list[Message]:
        self._end_turn()
        return self._done

    def read(self, item: Item, place: str, last: bool) -> None:
        kind = item.type or ("message" if item.role else None)
        if kind is None:
            raise invalid(f"{place}.type", "is required")
        if kind == "message":
            self._message(item, place, last)
        elif kind == "reasoning":
            self._say(Message("assistant", reasoning=_thoughts(item, place)))
        elif kind in _CALLS or (kind.endswith("_call") and item.call_id):
            self._say(Message("assistant", calls=(_call(item, kind, place),)))
        elif kind in _OUTPUTS or (kind.endswith("_output") and item.call_id):
            self._result(item, place)

    def _message(self, item: Item, place: str, last: bool) -> None:
        role = _ROLES.get(item.role) if isinstance(item.role, str) else None
        if role is None:
            shown = repr(item.role)[:_SHOWN]
            raise invalid(f"{place}.role", f"is {shown}; use one of {', '.join(_ROLES)}")
        text = text_of(item.content, f"{place}.content", handed=last and role == "user")
        if role == "assistant":
            if any(said.text for said in self._turn) and not any(s.calls for s in self._turn):
                self._end_turn()
            self._say(Message("assistant", text))
            return
        self._end_turn()
        if role == "system" and [message.role for message in self._done] == ["system"]:
            text = f"{self._done.pop().text}\n\n{text}"
        self._done.append(Message(role, text))

    def _result(self, item: Item, place: str) -> None:
        self._end_turn()
        text = text_of(item.output, f"{place}.output")
        self._done.append(Message("tool", text, answers=string_of(item.call_id)))

    def _say(self, message: Message) -> None:
        self._turn.append(message)

    def _end_turn(self) -> None:
        said, self._turn = self._turn, []
        if any(message.text or message.calls or message.reasoning for message in said):
            self._done.append(model.joined(said, between=""))
        elif said:
            self._done.append(Message("assistant"))


def _thoughts(item: Item, place: str) -> str:
    """Those that the item shows, in whole or in short, or that were sealed here."""
    sealed = unsealed(item.encrypted_content)
    if sealed is not None:
        return sealed
    text = text_of(item.content, f"{place}.content")
    return text or text_of(item.summary, f"{place}.summary")


def _call(item: Item, kind: str, place: str) -> ToolCall:
    name = string_of(item.name)
    if not name and kind in _CALLS:
        raise invalid(f"{place}.name", "is required")
    shown = shown_name(string_of(item.namespace) or None, name or kind.removesuffix("_call"))
    return ToolCall(shown, _arguments(item, kind, place), string_of(item.call_id))


def _arguments(item: Item, kind: str, place: str) -> dict[str, Any] | str:
    if kind == "custom_tool_call":
        return {"input": string_of(item.input)}
    for value in (item.arguments, item.input, item.action):
        if isinstance(value, Mapping | str):
            return arguments_of(value, f"{place}.arguments")
    return {}


def sealed(thoughts: str) -> str:
    """Thoughts as a client keeps them that sends back only what is ``encrypted_content``."""
    return _SEALED + base64.b64encode(thoughts.encode("utf-8", "replace")).decode()


def unsealed(content: Any) -> str | None:
    if not isinstance(content, str) or not content.startswith(_SEALED):
        return None
    try:
        return base64.b64decode(content.removeprefix(_SEALED), validate=True).decode()
    except (binascii.Error, ValueError):
        return None
