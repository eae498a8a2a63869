"""A conversation in terms of no dialect: what readers of dialects make and templates are shown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final, Literal

import msgspec
from msgspec.structs import replace

Role = Literal["system", "user", "assistant", "tool"]
NO_PARAMETERS: Final[dict[str, Any]] = {"type": "object", "properties": {}}
"""The schema of a tool that tells none."""


class ToolCall(msgspec.Struct, frozen=True):
    """``arguments`` are an object, or the text that a model wrote in place of one."""

    name: str
    arguments: dict[str, Any] | str
    id: str = ""


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """All a text model can be shown of a message. ``answers`` is the id of the call that a tool's
    message is the result of; ``name`` is that of who speaks, where the client tells it."""

    role: Role
    text: str = ""
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()
    answers: str = ""
    name: str = ""


class Tool(msgspec.Struct, frozen=True):
    """``parameters`` is a JSON schema. A ``freeform`` tool takes a text: to the model it is a
    function of one string, ``input``, which keeps to the grammar ``definition`` in ``syntax``
    (``lark``, ``regex``) if there is one. Calls of a ``strict`` one keep to its schema."""

    name: str
    description: str | None
    parameters: dict[str, Any]
    freeform: bool = False
    strict: bool = False
    syntax: str = ""
    definition: str = ""


@dataclass(frozen=True, slots=True)
class Conversation:
    """``tools`` are shown to the model; with ``mute`` its calls of them are withheld from the
    client. With ``continues`` the last message is the assistant's and is gone on with. Errors name
    ``field`` where the messages are not those that the client sent, else the message."""

    messages: Sequence[Message]
    tools: Sequence[Tool] = ()
    mute: bool = False
    continues: bool = False
    field: str = ""


def goes_on(messages: Sequence[Message]) -> bool:
    """Whether the last message is an assistant's that can be gone on with."""
    last = messages[-1] if messages else None
    return last is not None and last.role == "assistant" and bool(last.text) and not last.calls


def arranged(messages: Iterable[Message]) -> list[Message]:
    """Results of parallel calls in the order of the calls, in whatever order they came."""
    order: dict[str, int] = {}
    result: list[Message] = []
    for is_result, group in groupby(messages, lambda message: message.role == "tool"):
        if is_result:
            result += sorted(group, key=lambda message: order.get(message.answers, len(order)))
            continue
        for message in group:
            result.append(message)
            order = {call.id: i for i, call in enumerate(message.calls) if call.id}
    return result


def joined(messages: Iterable[Message], between: str = "\n\n") -> Message:
    """Several messages of one role as one."""
    first, *rest = messages
    if not rest:
        return first
    texts = [message.text for message in (first, *rest) if message.text]
    thoughts = [message.reasoning for message in (first, *rest) if message.reasoning]
    calls = tuple(call for message in (first, *rest) for call in message.calls)
    return replace(first, text=between.join(texts), reasoning=between.join(thoughts), calls=calls)


def shown(message: Message) -> dict[str, Any]:
    """As chat templates take it: OpenAI's shape, the arguments of calls as mappings."""
    made: dict[str, Any] = {"role": message.role, "content": message.text}
    if message.reasoning:
        made["reasoning_content"] = message.reasoning
    if message.answers:
        made["tool_call_id"] = message.answers
    if message.name:
        made["name"] = message.name
    if message.calls:
        made["tool_calls"] = list(_shown_calls(message.calls))
    return made


def _shown_calls(calls: Iterable[ToolCall]) -> Iterator[dict[str, Any]]:
    for call in calls:
        made = {
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        yield {**made, "id": call.id} if call.id else made


def shown_tool(tool: Tool) -> dict[str, Any]:
    """As chat templates take it."""
    function: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    return {"type": "function", "function": {**function, "parameters": tool.parameters}}
