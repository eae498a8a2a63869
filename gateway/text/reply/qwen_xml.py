"""Tool calls in the form of Qwen3-Coder: ``<tool_call>``, ``<function=NAME>``, for every parameter
``<parameter=NAME>`` and its value on lines of its own, and the closing tags."""

from __future__ import annotations

from collections.abc import Collection, Generator, Sequence
from typing import Final

from alipes.gateway.conversation.message import Tool
from alipes.gateway.text.reply.hermes import CLOSE, OPEN
from alipes.gateway.text.reply.json_call import Read
from alipes.gateway.text.reply.members import Members
from alipes.gateway.text.reply.source import Reading, Source
from alipes.gateway.text.reply.tagged import CALLED, tagged

_FUNCTION: Final = "<function="
_FUNCTION_END: Final = "</function>"
_PARAMETER: Final = "<parameter="
_PARAMETER_END: Final = "</parameter>"


def qwen_xml(source: Source, tools: Sequence[Tool]) -> Reading:
    """Models leave out the first tag at times; then only the name of a tool makes it a call."""
    names = {tool.name for tool in tools}

    def call(inner: Source, opening: str) -> Generator[None, None, Read]:
        if opening == _FUNCTION:
            return (yield from _function(inner, tools, names))
        blanks = yield from inner.blanks()
        if not (yield from inner.skip(_FUNCTION)):
            return Read(False, False, blanks)
        read = yield from _function(inner, tools, None)
        return read if read.begun else Read(False, False, blanks + _FUNCTION + read.rest)

    return tagged(source, (OPEN, _FUNCTION), CLOSE, call)


def _function(
    source: Source, tools: Sequence[Tool], names: Collection[str] | None
) -> Generator[None, None, Read]:
    """What follows ``<function=``, if it is one of ``names`` where they are given."""
    head: list[str] = []
    found, _ = yield from source.until(">", "\n", emit=head.append)
    name = "".join(head)
    if found != ">" or not name.strip() or (names is not None and name.strip() not in names):
        return Read(False, False, name + (found or ""))
    source.start(name.strip())
    members = Members(source, name.strip(), tools)
    while True:
        yield from source.blanks()
        if (yield from source.skip(_FUNCTION_END)):
            members.close()
            return CALLED
        if not (yield from source.skip(_PARAMETER)):
            source.end(whole=False)
            return Read(False, True)
        key: list[str] = []
        found, _ = yield from source.until(">", emit=key.append)
        if found is None:
            source.end(whole=False)
            return Read(False, True)
        if not (yield from members.value("".join(key).strip(), _PARAMETER_END, lines=True)):
            return Read(False, True)
