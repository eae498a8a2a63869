"""Reads one JSON object character by character and says at once where it stops being one."""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import Final

_BLANK: Final = " \t\r\n"
_SCALAR: Final = re.compile(r"true|false|null|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")
_SCALAR_START: Final = frozenset("-0123456789tfn")
_SCALAR_INSIDE: Final = frozenset("-+.0123456789Eaeflnrstu")
_SCALAR_END: Final = frozenset(",]}" + _BLANK)
_DEEPEST: Final = 200
_LONGEST: Final = 1000
_HEX: Final = frozenset("0123456789abcdefABCDEF")


class _State(Enum):
    START = auto()
    VALUE = auto()
    VALUE_OR_END = auto()
    KEY = auto()
    KEY_OR_END = auto()
    COLON = auto()
    NEXT = auto()
    STRING = auto()
    ESCAPE = auto()
    HEX = auto()
    SCALAR = auto()
    DONE = auto()


class ObjectScanner:
    """Raw control characters inside strings are let through: models write them. What is too deep
    or has a number too long for readers of JSON is none."""

    def __init__(self) -> None:
        self._state = _State.START
        self._stack: list[str] = []
        self._is_key = False
        self._hex = 0
        self._scalar = ""

    @property
    def depth(self) -> int:
        """Open objects and arrays."""
        return len(self._stack)

    @property
    def done(self) -> bool:
        return self._state is _State.DONE

    @property
    def in_string(self) -> bool:
        return self._state is _State.STRING

    def feed(self, letter: str) -> bool:
        """Takes one character; false when no JSON object continues so (then ask no more)."""
        if self._state is _State.STRING:
            return self._string(letter)
        if self._state is _State.ESCAPE:
            return self._escape(letter)
        if self._state is _State.HEX:
            self._hex -= 1
            self._state = _State.HEX if self._hex else _State.STRING
            return letter in _HEX
        if self._state is _State.SCALAR:
            if letter not in _SCALAR_END:
                self._scalar += letter
                return letter in _SCALAR_INSIDE and len(self._scalar) <= _LONGEST
            if not _SCALAR.fullmatch(self._scalar):
                return False
            self._state = _State.NEXT
        return letter in _BLANK or self._structure(letter)

    def _string(self, letter: str) -> bool:
        if letter == "\\":
            self._state = _State.ESCAPE
        elif letter == '"':
            self._state = _State.COLON if self._is_key else _State.NEXT
        return True

    def _escape(self, letter: str) -> bool:
        if letter == "u":
            self._state, self._hex = _State.HEX, 4
            return True
        self._state = _State.STRING
        return letter in '"\\/bfnrt'

    def _structure(self, letter: str) -> bool:
        state = self._state
        if state is _State.START:
            return letter == "{" and self._open(letter)
        if state in (_State.KEY, _State.KEY_OR_END) and letter == '"':
            return self._begin_string(is_key=True)
        if state is _State.KEY_OR_END:
            return letter == "}" and self._close(letter)
        if state is _State.COLON and letter == ":":
            self._state = _State.VALUE
            return True
        if state is _State.NEXT:
            return self._next(letter)
        if state is _State.VALUE_OR_END and letter == "]":
            return self._close(letter)
        return state in (_State.VALUE, _State.VALUE_OR_END) and self._value(letter)

    def _value(self, letter: str) -> bool:
        if letter in "{[":
            return self._open(letter)
        if letter == '"':
            return self._begin_string(is_key=False)
        self._state, self._scalar = _State.SCALAR, letter
        return letter in _SCALAR_START

    def _next(self, letter: str) -> bool:
        if letter == ",":
            self._state = _State.KEY if self._stack[-1] == "{" else _State.VALUE
            return True
        return letter in "]}" and self._close(letter)

    def _begin_string(self, is_key: bool) -> bool:
        self._state, self._is_key = _State.STRING, is_key
        return True

    def _open(self, letter: str) -> bool:
        self._stack.append(letter)
        self._state = _State.KEY_OR_END if letter == "{" else _State.VALUE_OR_END
        return len(self._stack) <= _DEEPEST

    def _close(self, letter: str) -> bool:
        matches = self._stack.pop() + letter in ("{}", "[]")
        self._state = _State.NEXT if self._stack else _State.DONE
        return matches
