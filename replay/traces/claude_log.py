"""The lines of a Claude Code session log, in order: what was said to a model and what it drew.

A reply is written in several lines, one for each part, perhaps with tool results between them;
they have the message's id in common. A line or a part that is there already was written again, and
counts once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Annotated, Final

import msgspec

from alipes.replay.traces.lines import Length, line_error, rows, stem
from alipes.replay.traces.model import Message, ToolCall
from alipes.replay.traces.parts import UNREADABLE

REMEDY: Final = "expected a Claude Code session log (type, uuid, sessionId, timestamp, message)"
SYNTHETIC: Final = "<synthetic>"  # the model of lines that the client wrote itself


class Line(msgspec.Struct, frozen=True):
    type: str
    uuid: str | None = None
    parent: str | None = msgspec.field(default=None, name="parentUuid")
    session: str | None = msgspec.field(default=None, name="sessionId")
    agent: str | None = msgspec.field(default=None, name="agentId")
    sidechain: bool = msgspec.field(default=False, name="isSidechain")
    compaction: bool = msgspec.field(default=False, name="isCompactSummary")
    timestamp: Annotated[datetime, msgspec.Meta(tz=True)] | None = None
    message: msgspec.Raw = msgspec.Raw()


class Usage(msgspec.Struct, frozen=True):
    input_tokens: Length = 0
    cache_creation_input_tokens: Length = 0
    cache_read_input_tokens: Length = 0
    output_tokens: Length = 0

    @property
    def prompt(self) -> int:
        return self.input_tokens + self.cache_creation_input_tokens + self.cache_read_input_tokens


class Part(msgspec.Struct, frozen=True):
    type: str
    text: str | None = None
    thinking: str | None = None
    id: str = ""
    name: str = ""
    input: msgspec.Raw = msgspec.Raw(b"{}")
    tool_use_id: str = ""
    content: str | list[Part] | None = None

    def is_again(self, other: Part) -> bool:
        """Whether this is the same part of a reply, written again."""
        return self == other or (self.id != "" and self.id == other.id)


class Body(msgspec.Struct, frozen=True):
    content: str | list[Part]
    id: str | None = None
    model: str = ""
    usage: Usage | None = None


LINE = msgspec.json.Decoder(Line)
BODY = msgspec.json.Decoder(Body)


@dataclass(frozen=True, slots=True)
class Said:
    """A line of input, said at ``when`` (s). One without messages is there for its place alone, at
    which a later one may go on."""

    uuid: str
    parent: str | None
    when: float
    messages: tuple[Message, ...] = ()
    compaction: bool = False

    @property
    def from_tool(self) -> bool:
        return any(message.role == "tool" for message in self.messages)


@dataclass(slots=True)
class Drawn:
    """A reply; ``first`` and ``end`` (s) are when its first and last line were written. ``lines``
    has the parts of each line of it, by the line's uuid."""

    id: str
    model: str
    first: float
    end: float
    usage: Usage
    output: int
    lines: dict[str, list[Part]]

    @property
    def when(self) -> float:
        return self.first

    def add(self, other: Drawn) -> None:
        """More lines of this reply. One that is there already is replaced by a longer one."""
        self.first, self.end = min(self.first, other.first), max(self.end, other.end)
        # The first parts are written before the count is final.
        self.output = max(self.output, other.output)
        for uuid, parts in other.lines.items():
            if len(parts) >= len(self.lines.get(uuid, ())):
                self.lines[uuid] = parts

    def is_copy(self, other: Drawn) -> bool:
        """Whether a reply of another session is the same one, copied with its history."""
        same = self.id == other.id and self.usage.prompt == other.usage.prompt
        return same and (self.first == other.first or self.message == other.message)

    @property
    def parts(self) -> list[Part]:
        """Every part once: another line may have the same part again, alone or with more."""
        once: list[Part] = []
        for parts in self.lines.values():
            once += [part for part in parts if not any(map(part.is_again, once))]
        return once

    @property
    def thoughts(self) -> list[str]:
        return [part.thinking for part in self.parts if part.thinking]

    @property
    def message(self) -> Message:
        parts = self.parts
        tools = (part for part in parts if part.type == "tool_use")
        return Message(
            "assistant",
            "".join(part.text for part in parts if part.text),
            tuple(ToolCall(one.id, one.name, bytes(one.input).decode()) for one in tools),
        )


@dataclass(slots=True)
class Log:
    """One branch, which begins in ``line`` of ``path``: ``agent`` is empty for the main one."""

    session: str
    agent: str
    path: Path
    line: int
    items: list[Said | Drawn] = field(default_factory=list)
    said: set[str] = field(default_factory=set)
    replies: dict[str, Drawn] = field(default_factory=dict)

    def say(self, said: Said) -> None:
        """One line of input, unless it is there already."""
        if said.uuid not in self.said:
            self.said.add(said.uuid)
            self.items.append(said)

    def draw(self, drawn: Drawn) -> None:
        """One reply, or more of one that is there already."""
        if (known := self.replies.get(drawn.id)) is not None:
            known.add(drawn)
        else:
            self.replies[drawn.id] = drawn
            self.items.append(drawn)


def read_logs(path: Path, data: bytes) -> tuple[Log, ...]:
    """The branches of all sessions of a file, in order of their first lines. Raises
    ``TraceError``."""
    logs: dict[tuple[str, str], Log] = {}
    chains: dict[str, str] = {}
    for number, line in rows(path, data, LINE, REMEDY):
        if line.uuid is None:
            continue
        # Older logs name no agent: its lines hang together by their parents.
        chain = chains.get(line.parent or "", line.uuid) if line.sidechain else ""
        chain = chains.setdefault(line.uuid, chain)
        key = (line.session or stem(path), (line.agent or chain) if line.sidechain else "")
        log = logs.setdefault(key, Log(*key, path, number))
        _add(log, number, line, line.uuid)
    return tuple(logs.values())


def _add(log: Log, number: int, line: Line, uuid: str) -> None:
    if line.type not in ("user", "assistant"):
        log.say(Said(uuid, line.parent, log.items[-1].when if log.items else 0.0))
        return
    if line.timestamp is None:
        # Without it neither gaps nor who spawned a sub-agent can be told.
        raise line_error(log.path, number, "timestamp", "is missing", REMEDY)
    when = line.timestamp.timestamp()
    body = _body(log.path, number, line)
    if line.type == "user":
        log.say(Said(uuid, line.parent, when, _input(body), line.compaction))
    elif body.model != SYNTHETIC:
        log.draw(_drawn(body, uuid, when))


def _body(path: Path, number: int, line: Line) -> Body:
    try:
        return BODY.decode(line.message)
    except msgspec.ValidationError as error:
        problem, _, place = str(error).partition(" - at ")
        field = "message" + place.strip("`").removeprefix("$")
        raise line_error(path, number, field, problem, REMEDY) from None
    except UNREADABLE:
        raise line_error(path, number, "message", "is missing", REMEDY) from None


def _drawn(body: Body, uuid: str, when: float) -> Drawn:
    """The reply as far as one line has it."""
    usage = body.usage or Usage()
    parts = [Part("text", body.content)] if isinstance(body.content, str) else body.content
    lines = {uuid: parts}
    return Drawn(body.id or uuid, body.model, when, when, usage, usage.output_tokens, lines)


def _input(body: Body) -> tuple[Message, ...]:
    if isinstance(body.content, str):
        return (Message("user", body.content),)
    messages, texts = [], []
    for part in body.content:
        if part.type == "tool_result":
            messages.append(Message("tool", _text(part.content), (), part.tool_use_id))
        else:
            texts.append(_text([part]))
    if texts:
        messages.append(Message("user", "".join(texts)))
    return tuple(messages)


def _text(content: str | list[Part] | None) -> str:
    """The text of parts; of one that holds none, such as an image, its type in brackets."""
    if isinstance(content, str):
        return content
    return "".join(f"[{p.type}]" if p.text is None else p.text for p in content or ())
