"""What a reply consists of, piece by piece."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import msgspec


class TextDelta(msgspec.Struct, frozen=True):
    text: str


class ThinkingDelta(msgspec.Struct, frozen=True):
    """What the model says to itself before it answers."""

    text: str


class ToolStart(msgspec.Struct, frozen=True):
    """A call begins. ``index`` counts the calls of a reply from 0."""

    index: int
    id: str
    name: str


class ToolArguments(msgspec.Struct, frozen=True):
    """More of the call's arguments: JSON text, an object when put together."""

    index: int
    text: str


class ToolEnd(msgspec.Struct, frozen=True):
    """The call ends. Only one whose arguments are ``whole``, a JSON object, counts."""

    index: int
    whole: bool


Delta = TextDelta | ThinkingDelta | ToolStart | ToolArguments | ToolEnd


class OutputParser(Protocol):
    """Splits the text of one reply; the outcome does not depend on how the text arrives."""

    def push(self, text: str) -> list[Delta]: ...

    def finish(self) -> list[Delta]: ...


class PlainParser:
    """All is text."""

    def push(self, text: str) -> list[Delta]:
        return [TextDelta(text)] if text else []

    def finish(self) -> list[Delta]:
        return []


def merged(deltas: Iterable[Delta]) -> list[Delta]:
    """The same deltas with neighbours of one kind joined and empty ones left out."""
    result: list[Delta] = []
    for delta in deltas:
        last = result[-1] if result else None
        match last, delta:
            case TextDelta(), TextDelta():
                result[-1] = TextDelta(last.text + delta.text)
            case ThinkingDelta(), ThinkingDelta():
                result[-1] = ThinkingDelta(last.text + delta.text)
            case ToolArguments(), ToolArguments():
                result[-1] = ToolArguments(last.index, last.text + delta.text)
            case _, TextDelta(text="") | ThinkingDelta(text="") | ToolArguments(text=""):
                pass
            case _:
                result.append(delta)
    return result
