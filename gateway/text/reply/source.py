"""What the forms of replies read from and write to.

A form is a generator that reads its source as if all of the reply were there, and yields wherever
it has to wait for more; so it is written in the order in which a reply goes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator

from alipes.gateway.text.reply.deltas import (
    Delta,
    TextDelta,
    ThinkingDelta,
    ToolArguments,
    ToolEnd,
    ToolStart,
    merged,
)
from alipes.gateway.text.stops import partial_suffix

Wait = Generator[None, None, bool]
Reading = Generator[None, None, None]
Emit = Callable[[str], None]


class Source:
    """``text`` is what has come and has not been read; ``ended`` once no more can come."""

    def __init__(self, new_id: Callable[[], str]) -> None:
        self.text = ""
        self.ended = False
        self._new_id = new_id
        self._calls = 0
        self._out: list[Delta] = []

    # --- in ---

    def more(self) -> Wait:
        """Wait for more text; False when there is none."""
        if self.ended:
            return False
        before = len(self.text)
        yield
        return len(self.text) > before or not self.ended

    def take(self, count: int) -> str:
        taken, self.text = self.text[:count], self.text[count:]
        return taken

    def blanks(self) -> Generator[None, None, str]:
        """Read all blanks that come first."""
        read = ""
        while True:
            rest = self.text.lstrip()
            read += self.take(len(self.text) - len(rest))
            if rest or not (yield from self.more()):
                return read

    def begins(self, word: str) -> Wait:
        """Whether ``word`` comes first; nothing is read."""
        while len(self.text) < len(word) and word.startswith(self.text):
            if not (yield from self.more()):
                return False
        return self.text.startswith(word)

    def skip(self, word: str) -> Wait:
        """Read ``word`` if it comes first."""
        found = yield from self.begins(word)
        if found:
            self.take(len(word))
        return found

    def until(
        self, *words: str, emit: Emit, blanks: bool = False
    ) -> Generator[None, None, tuple[str | None, str]]:
        """Read up to and with the first of ``words``, or to the end, and emit what comes before it
        as it comes. Returns the word, None at the end, and with ``blanks`` those that were before
        it, which are not emitted."""
        longest = max(map(len, words))
        new = 0
        while True:
            # What was there before has no word; all of it are blanks, and the beginning of a word.
            start = max(0, new - longest)
            found = [
                (at, -len(word), word) for word in words if (at := self.text.find(word, start)) >= 0
            ]
            if found:
                at, _, word = min(found)
                before = self.take(at)
                kept = before[len(before.rstrip()) :] if blanks else ""
                emit(before[: len(before) - len(kept)])
                self.take(len(word))
                return word, kept
            ready = len(self.text) - max(partial_suffix(self.text, w) for w in words)
            if blanks:
                said = len(self.text[start:ready].rstrip())
                ready = start + said if said else 0
            emit(self.take(ready))
            new = len(self.text)
            if not (yield from self.more()):
                rest = self.take(len(self.text))
                kept = rest[len(rest.rstrip()) :] if blanks else ""
                emit(rest[: len(rest) - len(kept)])
                return None, kept

    # --- out ---

    def say(self, text: str) -> None:
        if text:
            self._out.append(TextDelta(text))

    def think(self, text: str) -> None:
        if text:
            self._out.append(ThinkingDelta(text))

    def start(self, name: str) -> None:
        self._out.append(ToolStart(self._calls, self._new_id(), unicode(name)))
        self._calls += 1

    def argue(self, text: str) -> None:
        if text:
            self._out.append(ToolArguments(self._calls - 1, text))

    def end(self, whole: bool) -> None:
        self._out.append(ToolEnd(self._calls - 1, whole))

    def call(self, name: str, arguments: str) -> None:
        """One whole call."""
        self.start(name)
        self.argue(arguments)
        self.end(whole=True)

    def emitted(self) -> list[Delta]:
        out, self._out = merged(self._out), []
        return out


class FormParser:
    """Drives a form: an ``OutputParser``."""

    def __init__(self, form: Callable[[Source], Reading], new_id: Callable[[], str]) -> None:
        self._source = Source(new_id)
        self._form = form(self._source)
        self._done = False

    def push(self, text: str) -> list[Delta]:
        self._source.text += text
        return self._go_on()

    def finish(self) -> list[Delta]:
        self._source.ended = True
        return self._go_on()

    def _go_on(self) -> list[Delta]:
        if not self._done:
            self._done = next(self._form, self) is self
        return self._source.emitted()


def unicode(text: str) -> str:
    """``text`` without the lone surrogates that JSON escapes can produce."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def quoted(text: str) -> str:
    """The inside of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]
