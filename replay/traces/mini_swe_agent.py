"""mini-swe-agent ``.traj.json``: a list of messages, or an object that holds it as ``messages``.

Newer files stamp each message (``extra.timestamp``, seconds): a tool's run time is the time from
an assistant message to the observation that follows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from alipes.replay.traces.model import Call, Message, TraceError
from alipes.replay.traces.parts import (
    CHAT_ROLES,
    Content,
    RecordedToolCall,
    calls_from,
    decode,
    text_of,
    tool_calls_of,
)

REMEDY = "expected a mini-swe-agent .traj.json file (a list of messages, or messages[])"


class Extra(msgspec.Struct, frozen=True):
    timestamp: float | None = None


class Item(msgspec.Struct, frozen=True):
    role: str
    content: Content = None
    tool_calls: list[RecordedToolCall] | None = None
    tool_call_id: str | None = None
    extra: Extra | None = None


class File(msgspec.Struct, frozen=True):
    messages: list[Item]


DECODER: msgspec.json.Decoder[File | list[Item]] = msgspec.json.Decoder(File | list[Item])


def read_calls(path: Path, data: bytes) -> tuple[Call, ...]:
    """The calls of one file, in order. Raises ``TraceError``."""
    file = decode(path, data, DECODER, REMEDY)
    field = "messages" if isinstance(file, File) else "$"
    every = file.messages if isinstance(file, File) else file
    # An exit record ends the file; it tells how the run ended and was never sent to a model.
    kept = [(i, item) for i, item in enumerate(every) if item.role != "exit"]
    messages = [_message(path, f"{field}[{i}]", item) for i, item in kept]
    gaps = _gaps([item for _, item in kept])
    return calls_from(path, field, messages, [True] * len(kept), gaps)


def _gaps(items: Sequence[Item]) -> list[float]:
    gaps: list[float] = []
    asked: float | None = None
    seen: float | None = None
    for item in items:
        stamp = item.extra.timestamp if item.extra else None
        if item.role != "assistant":
            seen = seen if stamp is None else stamp
            continue
        gaps.append(0.0 if asked is None or seen is None else max(0.0, seen - asked))
        asked, seen = stamp, None
    return gaps


def _message(path: Path, field: str, item: Item) -> Message:
    if item.role not in CHAT_ROLES:
        expected = ", ".join(sorted(CHAT_ROLES))
        raise TraceError(path, f"{field}.role", f"unknown role {item.role!r}", f"use {expected}")
    return Message(
        item.role,
        text_of(path, f"{field}.content", item.content),
        tool_calls_of(item.tool_calls),
        item.tool_call_id or "",
    )
