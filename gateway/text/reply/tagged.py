"""What is common to forms in which calls stand between tags in a text."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Final

from alipes.gateway.text.reply.json_call import Read
from alipes.gateway.text.reply.source import Reading, Source

ReadCall = Callable[[Source, str], Generator[None, None, Read]]
CALLED: Final = Read(True, True)


def tagged(source: Source, openings: Sequence[str], closing: str, read_call: ReadCall) -> Reading:
    """Text and calls, each after one of ``openings``. ``read_call``, which is told which, reads
    one; what is none comes back as text. Blanks before a call, between calls and before the end of
    the reply belong to the form and are dropped, and so is ``closing``, which is empty where
    ``read_call`` reads it."""
    spoken = Spoken(source)
    while True:
        found, blanks = yield from source.until(*openings, emit=spoken.say, blanks=True)
        if found is None:
            if not spoken.just_called:
                source.say(blanks)
            return
        read = yield from read_call(source, found)
        if read.called:
            spoken.just_called = True
            yield from closed(source, closing)
        else:
            spoken.say(read.rest if read.begun else blanks + found + read.rest)


def closed(source: Source, closing: str) -> Reading:
    """The closing tag and the blanks before it, unless it was forgotten."""
    if not closing:
        return
    blanks = yield from source.blanks()
    if not (yield from source.skip(closing)):
        source.text = blanks + source.text


class Spoken:
    """``just_called``: nothing has been said since a call."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.just_called = False

    def say(self, text: str) -> None:
        if text:
            self._source.say(text)
            self.just_called = False
