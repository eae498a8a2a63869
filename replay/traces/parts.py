"""What the public chat-log formats share: message content and tool calls."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from alipes.replay.traces.model import Call, Message, ToolCall, TraceError

T = TypeVar("T")
# What a decoder raises for bytes that are no JSON, or nested too deep.
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
CHAT_ROLES = frozenset({"system", "user", "assistant", "tool"})


class Part(msgspec.Struct, frozen=True):
    type: str
    text: str | None = None


class Function(msgspec.Struct, frozen=True):
    name: str
    arguments: str | dict[str, object] = ""


class RecordedToolCall(msgspec.Struct, frozen=True):
    function: Function
    id: str = ""


Content = str | list[Part] | None


def decode(path: Path, data: bytes, decoder: msgspec.json.Decoder[T], remedy: str) -> T:
    """``data`` through ``decoder``; ``TraceError`` names the field that does not fit."""
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        problem, _, place = str(error).partition(" - at ")
        raise TraceError(path, place.strip("`"), problem, remedy) from None
    except UNREADABLE as error:
        raise TraceError(path, "", f"not valid JSON ({error})", remedy) from None


def text_of(path: Path, field: str, content: Content) -> str:
    """The text of a message whose content is a string, a list of text parts, or absent."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    for index, part in enumerate(content):
        if part.type != "text" or part.text is None:
            raise TraceError(
                path,
                f"{field}[{index}]",
                f"a part of type {part.type!r} is not text",
                "replay holds text only: remove the part or replay another run",
            )
    return "".join(part.text or "" for part in content)


def tool_calls_of(recorded: Sequence[RecordedToolCall] | None) -> tuple[ToolCall, ...]:
    def arguments(value: str | dict[str, object]) -> str:
        return value if isinstance(value, str) else msgspec.json.encode(value).decode()

    return tuple(
        ToolCall(item.id, item.function.name, arguments(item.function.arguments))
        for item in recorded or ()
    )


def calls_from(
    path: Path, field: str, messages: Sequence[Message], own: Sequence[bool], gaps: Sequence[float]
) -> tuple[Call, ...]:
    """One call for each assistant message that is the model's ``own`` (not a demonstration):
    everything before it was its prompt. ``gaps[i]`` precedes call i."""
    places = [i for i, message in enumerate(messages) if message.role == "assistant" and own[i]]
    if not places:
        raise TraceError(path, field, "no assistant message", "replay a run with at least one call")
    if places[0] == 0:
        raise TraceError(
            path, f"{field}[0]", "the first call has no prompt", "keep the messages before it"
        )
    return tuple(
        Call(tuple(messages[:place]), messages[place], gap)
        for place, gap in zip(places, gaps, strict=True)
    )
