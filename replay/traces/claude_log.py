"""The lines of a Claude Code session log, in order: what was said to a model and what it drew.

A reply is written in several lines, one for each part, perhaps with tool results between them;
they have the message's id in common.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Annotated, Final

import msgspec

from alipes.replay.traces.lines import Length, line_error, rows
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
    """A reply; ``first`` and ``end`` (s) are when its first and last line were written."""

    uuids: list[str]
    model: str
    first: float
    end: float
    usage: Usage
    output: int = 0
    texts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    tools: list[ToolCall] = field(default_factory=list)

    @property
    def message(self) -> Message:
        return Message("assistant", "".join(self.texts), tuple(self.tools))


@dataclass(slots=True)
class Log:
    """One branch: ``agent`` is empty for the main one."""

    session: str
    agent: str
    line: int
    items: list[Said | Drawn] = field(default_factory=list)
    replies: dict[str, Drawn] = field(default_factory=dict)


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
        chains[line.uuid] = chain
        key = (line.session or "", (line.agent or chain) if line.sidechain else "")
        log = logs.setdefault(key, Log(*key, number))
        if line.type not in ("user", "assistant"):
            log.items.append(Said(line.uuid, line.parent, 0.0))
            continue
        if line.timestamp is None:
            # Without it neither gaps nor who spawned a sub-agent can be told.
            raise line_error(path, number, "timestamp", "is missing", REMEDY)
        when = line.timestamp.timestamp()
        body = _body(path, number, line)
        if line.type == "user":
            said = Said(line.uuid, line.parent, when, _input(body), line.compaction)
            log.items.append(said)
        elif body.model != SYNTHETIC:
            _draw(log, body, line.uuid, when)
    return tuple(logs.values())


def _body(path: Path, number: int, line: Line) -> Body:
    try:
        return BODY.decode(line.message)
    except msgspec.ValidationError as error:
        problem, _, place = str(error).partition(" - at ")
        field = "message" + place.strip("`").removeprefix("$")
        raise line_error(path, number, field, problem, REMEDY) from None
    except UNREADABLE:
        raise line_error(path, number, "message", "is missing", REMEDY) from None


def _draw(log: Log, body: Body, uuid: str, when: float) -> None:
    name = body.id or uuid
    usage = body.usage or Usage()
    drawn = log.replies.get(name)
    if drawn is None:
        drawn = Drawn([], body.model, when, when, usage)
        log.replies[name] = drawn
        log.items.append(drawn)
    drawn.uuids.append(uuid)
    drawn.end = max(drawn.end, when)
    # The first parts are written before the count is final.
    drawn.output = max(drawn.output, usage.output_tokens)
    parts = [Part("text", body.content)] if isinstance(body.content, str) else body.content
    for part in parts:
        if part.type == "tool_use":
            arguments = bytes(part.input).decode()
            drawn.tools.append(ToolCall(part.id, part.name, arguments))
        drawn.texts += filter(None, [part.text])
        drawn.thoughts += filter(None, [part.thinking])


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
