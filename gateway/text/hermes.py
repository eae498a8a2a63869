"""Tool calls in the Hermes form, which Qwen models use as well.

A call is ``<tool_call>``, one JSON object with ``name`` and ``arguments``, ``</tool_call>``. Where
the name comes first, the arguments are passed on while they are generated; otherwise the call
appears when its object is complete. A call that is no such object comes back as text. Should the
arguments break off or go wrong when part of them has been passed on, that part stays as it is (it
will not parse, so nobody acts on half a call) and the rest comes back as text. Blanks between text
and call, and between calls, belong to the form and are dropped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from enum import Enum, auto
from typing import Final

from alipes.gateway.text.deltas import Delta, TextDelta, ToolArguments, ToolStart, merged
from alipes.gateway.text.json_scan import ObjectScanner
from alipes.gateway.text.stops import partial_suffix

OPEN: Final = "<tool_call>"
CLOSE: Final = "</tool_call>"
_STRING: Final = r'"(?:[^"\\]|\\.)*"'
_HEADER: Final = re.compile(
    rf'\s*\{{\s*"name"\s*:\s*({_STRING})\s*,\s*"arguments"\s*:\s*', re.DOTALL
)


class _Phase(Enum):
    TEXT = auto()  # outside of calls; _held may begin a call
    HEADER = auto()  # inside an object whose arguments have not begun
    ARGUMENTS = auto()
    TRAILER = auto()  # after the arguments, inside the object
    CLOSING = auto()  # after the object; _held may begin the closing tag


class HermesParser:
    """``new_id`` makes the id of a call."""

    def __init__(self, new_id: Callable[[], str]) -> None:
        self._new_id = new_id
        self._phase = _Phase.TEXT
        self._held = ""
        self._body: list[str] = []  # what has been read of a call and not been passed on
        self._blank = ""  # the blanks before that call
        self._scanner = ObjectScanner()
        self._calls = 0
        self._after_call = False
        self._out: list[Delta] = []

    def push(self, text: str) -> list[Delta]:
        rest = text
        while rest:
            if self._phase is _Phase.TEXT:
                rest = self._text(rest)
            elif self._phase is _Phase.CLOSING:
                rest = self._closing(rest)
            else:
                rest = self._object(rest)
        return self._take()

    def finish(self) -> list[Delta]:
        if self._phase is _Phase.TEXT and not (self._after_call and self._held.isspace()):
            self._emit_text(self._held)
        elif self._phase is _Phase.HEADER:
            self._give_back()
        self._held = ""
        return self._take()

    def _take(self) -> list[Delta]:
        out, self._out = merged(self._out), []
        return out

    def _emit_text(self, text: str) -> None:
        if text:
            self._out.append(TextDelta(text))
            self._after_call = False

    def _text(self, text: str) -> str:
        """Emits up to where a call or the blanks before one may begin; returns the rest."""
        text = self._held + text
        before, tag, rest = text.partition(OPEN)
        if not tag:
            before = text[: len(text) - partial_suffix(text, OPEN)]
        shown = before.rstrip()
        self._emit_text(shown)
        if not tag:
            self._held = text[len(shown) :]
            return ""
        self._held, self._blank = "", before[len(shown) :]
        self._phase, self._scanner, self._body = _Phase.HEADER, ObjectScanner(), []
        return rest

    def _object(self, text: str) -> str:
        for at, letter in enumerate(text):
            depth, inside = self._scanner.depth, self._scanner.in_string
            if not self._scanner.feed(letter):
                self._give_back()
                return text[at:]
            self._letter(letter, depth, inside)
            if self._scanner.done:
                self._complete()
                return text[at + 1 :]
        return ""

    def _letter(self, letter: str, depth: int, inside: bool) -> None:
        if self._phase is _Phase.HEADER and letter == "{" and (depth, inside) == (1, False):
            self._begin()
        if self._phase is not _Phase.ARGUMENTS:
            self._body.append(letter)
            return
        raw_control = inside and letter < " "
        shown = json.dumps(letter)[1:-1] if raw_control else letter
        self._out.append(ToolArguments(self._calls - 1, shown))
        if self._scanner.depth == 1:
            self._phase = _Phase.TRAILER

    def _begin(self) -> None:
        """The arguments' object opens: if the name came before it, the call is under way."""
        if header := _HEADER.fullmatch("".join(self._body)):
            self._start(json.loads(header[1], strict=False))
            self._phase, self._body = _Phase.ARGUMENTS, []

    def _start(self, name: str) -> None:
        self._out.append(ToolStart(self._calls, self._new_id(), _unicode(name)))
        self._calls += 1
        self._after_call = True

    def _complete(self) -> None:
        """The object is complete; one that was not under way yet appears now, if it is a call."""
        if self._phase is _Phase.HEADER:
            call = _whole_call("".join(self._body))
            if call is None:
                self._give_back()
                return
            self._start(call[0])
            self._out.append(ToolArguments(self._calls - 1, call[1]))
        self._phase = _Phase.CLOSING

    def _give_back(self) -> None:
        started = self._phase is not _Phase.HEADER
        opened = "" if started else self._blank + OPEN
        self._phase = _Phase.TEXT
        self._emit_text(opened + "".join(self._body))

    def _closing(self, text: str) -> str:
        text = self._held + text
        self._held = ""
        tail = text.lstrip()
        if tail.startswith(CLOSE):
            self._phase = _Phase.TEXT
            return tail[len(CLOSE) :]
        if CLOSE.startswith(tail):
            self._held = text
            return ""
        self._phase = _Phase.TEXT  # the tag was forgotten
        return text


def _whole_call(body: str) -> tuple[str, str] | None:
    """Name and arguments text of a complete object, or None if it is not a call."""
    try:
        call = json.loads(body, strict=False)
        name, arguments = call.get("name"), call.get("arguments", {})
        if isinstance(arguments, str):
            arguments = json.loads(arguments, strict=False)
        if not isinstance(name, str) or not isinstance(arguments, dict):
            return None
        return name, _unicode(json.dumps(arguments, ensure_ascii=False, allow_nan=False))
    except (ValueError, RecursionError):  # deeper, longer or larger than Python's JSON goes
        return None


def _unicode(text: str) -> str:
    """``text`` without the lone surrogates that JSON escapes can produce."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
