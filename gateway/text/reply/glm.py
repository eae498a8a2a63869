"""Tool calls in the form of GLM-4.5: ``<tool_call>NAME``, for every argument ``<arg_key>`` and
``<arg_value>``, ``</tool_call>``."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Final

from alipes.gateway.conversation.message import Tool
from alipes.gateway.text.reply.hermes import CLOSE, OPEN
from alipes.gateway.text.reply.json_call import Read
from alipes.gateway.text.reply.members import Members
from alipes.gateway.text.reply.source import Reading, Source
from alipes.gateway.text.reply.tagged import CALLED, tagged

KEY: Final = "<arg_key>"
KEY_END: Final = "</arg_key>"
VALUE: Final = "<arg_value>"
VALUE_END: Final = "</arg_value>"
TAGS: Final = frozenset((OPEN, CLOSE, KEY, KEY_END, VALUE, VALUE_END))


def glm(source: Source, tools: Sequence[Tool]) -> Reading:
    def call(inner: Source, _: str) -> Generator[None, None, Read]:
        return _call(inner, tools)

    return tagged(source, (OPEN,), "", call)


def _call(source: Source, tools: Sequence[Tool]) -> Generator[None, None, Read]:
    head: list[str] = []
    found, _ = yield from source.until(KEY, CLOSE, "\n", emit=head.append)
    name = "".join(head).strip()
    if found is None or not name or any(mark in name for mark in "<{"):
        return Read(False, False, "".join(head) + (found or ""))
    source.start(name)
    members = Members(source, name, tools)
    while found != CLOSE:
        if found == "\n":
            yield from source.blanks()
            if (yield from source.skip(CLOSE)):
                break
            if not (yield from source.skip(KEY)):
                source.end(whole=False)
                return Read(False, True)
        if not (yield from _argument(source, members)):
            return Read(False, True)
        found = "\n"
    members.close()
    return CALLED


def _argument(source: Source, members: Members) -> Generator[None, None, bool]:
    key: list[str] = []
    found, _ = yield from source.until(KEY_END, emit=key.append)
    yield from source.blanks()
    if found is None or not (yield from source.skip(VALUE)):
        source.end(whole=False)
        return False
    return (yield from members.value("".join(key).strip(), VALUE_END, lines=False))
