"""Tool calls in the form of Llama 3: JSON objects with ``name`` and ``parameters``, several divided
by semicolons, at the beginning of a reply or after ``<|python_tag|>``. Without that tag only the
name of a tool tells a call from an answer in JSON."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from alipes.gateway.conversation.message import Tool
from alipes.gateway.text.reply.json_call import json_call
from alipes.gateway.text.reply.source import Reading, Source, Wait
from alipes.gateway.text.reply.tagged import Spoken

TAG: Final = "<|python_tag|>"


def llama(source: Source, tools: Sequence[Tool]) -> Reading:
    spoken = Spoken(source)
    spoken.just_called = yield from _calls(source, "", {tool.name for tool in tools})
    while True:
        found, blanks = yield from source.until(TAG, emit=spoken.say, blanks=True)
        if found is None:
            source.say("" if spoken.just_called else blanks)
            return
        spoken.just_called = yield from _calls(source, blanks + TAG, None)


def _calls(source: Source, before: str, names: Collection[str] | None) -> Wait:
    """Calls, if any, of ``names`` if given; ``before`` is what has been read and is text where
    there are none. Returns whether nothing but calls has come."""
    called = False
    blanks = yield from source.blanks()
    while (yield from source.begins("{")):
        read = yield from json_call(source, names)
        if not read.called:
            source.say(read.rest if read.begun else before + blanks + read.rest)
            return False
        called, before = True, ""
        blanks = yield from source.blanks()
        if (yield from source.skip(";")):
            blanks += ";" + (yield from source.blanks())
    over = called and (not source.text or (yield from source.begins(TAG)))
    source.say(before)
    source.text = source.text if over else blanks + source.text
    return over
