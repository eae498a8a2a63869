"""The lines of a gateway's recording, each checked.

A file may hold several recordings, one after the other, each with a header. A gateway that was
killed may have left half a line at the end of its own, which is passed over with a warning.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import msgspec

from alipes.replay.traces.lines import line_error, rows
from alipes.replay.traces.model import Message
from alipes.replay.traces.parts import (
    UNREADABLE,
    Content,
    RecordedToolCall,
    text_of,
    tool_calls_of,
)

VERSION: Final = 1
DIGITS: Final = 16
REMEDY: Final = "expected what gateway.record wrote (a header line, then a call a line)"
BEGINNING: Final = b'{"kind":"'
"""Of every line that a gateway wrote."""
HEADING: Final = b'{"kind":"recording"'

Tokens = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
Seconds = Annotated[float, msgspec.Meta(ge=0, lt=2**53)]
Id = Annotated[str, msgspec.Meta(pattern=f"^[0-9a-f]{{{DIGITS}}}$")]


class Header(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="recording"
):
    version: int
    began: Seconds
    block_tokens: Annotated[int, msgspec.Meta(ge=1, lt=2**20)]


class Item(msgspec.Struct, frozen=True):
    """A message of the chat completions API."""

    role: str
    content: Content = None
    tool_calls: list[RecordedToolCall] | None = None
    tool_call_id: str | None = None


class Messages(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    kept: Tokens
    added: list[Item]
    reply: str


class Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="call"):
    session: Id
    branch: Id
    number: Tokens
    model: str
    arrived: Seconds
    begun: Seconds
    ended: Seconds
    prompt: Annotated[int, msgspec.Meta(ge=1, lt=2**31)]
    output: Annotated[int, msgspec.Meta(ge=1, lt=2**31)]
    kept: Tokens = 0
    parent: Id | None = None
    parent_calls: Tokens = 0
    blocks: Annotated[str, msgspec.Meta(pattern=f"^([0-9a-f]{{{DIGITS}}})*$")] = ""
    messages: Messages | None = None


ROW: msgspec.json.Decoder[Header | Line] = msgspec.json.Decoder(Header | Line)
log = logging.getLogger("alipes.replay")


@dataclass(frozen=True, slots=True)
class Recorded:
    """A line, with its times counted from the file's first header; ``messages`` are those added."""

    line: Line
    block: int
    arrived: float
    ended: float
    messages: tuple[Message, ...] = ()


def recorded(path: Path, data: bytes) -> Iterator[Recorded]:
    """The calls in the order of the file. Raises ``TraceError``."""
    header: Header | None = None
    began = 0.0
    for number, row in rows(path, _without_torn(path, data), ROW, REMEDY):
        if isinstance(row, Header):
            if row.version != VERSION:
                problem = f"{row.version} is unknown here, which reads {VERSION}"
                raise line_error(path, number, "version", problem, "use a newer alipes")
            began = began if header is not None else row.began
            header = row
            continue
        if header is None:
            raise line_error(path, number, "", "stands before any header", REMEDY)
        expected = max(0, row.prompt // header.block_tokens - -(-row.kept // header.block_tokens))
        if len(row.blocks) != expected * DIGITS:
            problem = f"{len(row.blocks) // DIGITS} hashes, where {expected} blocks follow"
            raise line_error(path, number, "blocks", problem, REMEDY)
        if not row.arrived <= row.begun <= row.ended:
            raise line_error(path, number, "ended", "the call ends before it begins", REMEDY)
        offset = max(0.0, header.began - began)
        yield Recorded(
            row,
            header.block_tokens,
            offset + row.arrived,
            offset + row.ended,
            _messages(path, number, row.messages),
        )


def _without_torn(path: Path, data: bytes) -> bytes:
    """Each line in its place, and nothing in that of one which a gateway could not end: the last,
    or one before the header of the next recording."""
    lines = data.rstrip(b"\n").split(b"\n")
    nexts = (*lines[1:], HEADING)
    ends = [i for i, line in enumerate(nexts) if _heads(line) and _torn(lines[i])]
    if not ends:
        return data
    log.warning(
        "%s: line %d: the gateway ended while it wrote this%s; read without it",
        path,
        ends[0] + 1,
        f", and {len(ends) - 1} more" if len(ends) > 1 else "",
    )
    for i in ends:
        lines[i] = b""
    return b"\n".join(lines)


def _heads(line: bytes) -> bool:
    """Whether this is a header, or as much of one as was written."""
    return line.startswith(HEADING) or (line != b"" and HEADING.startswith(line))


def _torn(line: bytes) -> bool:
    """Whether this is the beginning of a line of ours, and no more."""
    if not line or not (line.startswith(BEGINNING) or BEGINNING.startswith(line)):
        return False
    try:
        ROW.decode(line)
    except msgspec.ValidationError:
        return False
    except UNREADABLE:
        return True
    return False


def _messages(path: Path, number: int, messages: Messages | None) -> tuple[Message, ...]:
    field = f"line {number}: messages.added"
    return tuple(
        Message(
            item.role,
            text_of(path, f"{field}[{i}].content", item.content),
            tool_calls_of(item.tool_calls),
            item.tool_call_id or "",
        )
        for i, item in enumerate(messages.added if messages is not None else ())
    )
