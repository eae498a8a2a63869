"""Tool calls in the form of Llama 3: JSON objects with ``name`` and ``parameters``, several divided
by semicolons, at the beginning of a reply or after ``<|python_tag|>``. Without that tag only the
name of a tool tells a call from an answer in JSON."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from alipes.gateway.conversation.message import Tool
from alipes.gateway.text.reply.json_call import json_call
from alipes.gateway.text.reply.source import Reading, Source, Wait

TAG: Final = "<|python_tag|>"


def llama(source: Source, tools: Sequence[Tool]) -> Reading:
    called = yield from _calls(source, "", {tool.name for tool in tools})
    while True:
        found, blanks = yield from source.until(TAG, emit=source.say, blanks=True)
        if found is None:
            source.say("" if called and not blanks.strip() else blanks)
            return
        called = yield from _calls(source, blanks + TAG, None)


def _calls(source: Source, before: str, names: Collection[str] | None) -> Wait:
    """Calls, if any, of ``names`` if given; ``before`` is what has been read and is text where
    there are none."""
    called = False
    before += yield from source.blanks()
    while (yield from source.begins("{")):
        read = yield from json_call(source, names)
        if not read.called:
            source.say(read.rest if read.begun else before + read.rest)
            return called
        called = True
        before = yield from source.blanks()
        if (yield from source.skip(";")):
            before += ";" + (yield from source.blanks())
    over = called and (not source.text or (yield from source.begins(TAG)))
    source.say("" if over else before)
    return called
