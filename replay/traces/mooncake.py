"""Mooncake JSONL, a request a line, and AIPerf's extension of it.

A row has exactly one of ``input_length`` (with ``hash_ids``, blocks of tokens), ``text_input``,
``messages`` and ``payload``. Rows of one ``session_id`` are one branch, in the file's order; a row
without is a session of one call. In a session, ``messages`` and ``payload`` are whole prompts,
``text_input`` and ``input_length`` come after all that was said so far, unless the hash ids begin
with the previous row's: then the row is a whole prompt too.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from alipes.replay.traces.form import (
    MAIN,
    Branch,
    Call,
    Session,
    Trace,
    Wait,
    reply_stream,
)
from alipes.replay.traces.hash_ids import BlockNames, Context, SessionBlocks
from alipes.replay.traces.lines import Length, Prompt, Time, line_error, rows, scope_of, stem
from alipes.replay.traces.model import Message, TraceError
from alipes.replay.traces.parts import (
    CHAT_ROLES,
    Content,
    RecordedToolCall,
    text_of,
    tool_calls_of,
)
from alipes.replay.traces.spans import new_content
from alipes.replay.traces.text import Count, TextBranch

REMEDY: Final = "expected Mooncake JSONL (input_length, output_length, hash_ids, timestamp in ms)"
INPUTS: Final = ("input_length", "text_input", "messages", "payload")


class Item(msgspec.Struct, frozen=True):
    role: str
    content: Content = None
    tool_calls: list[RecordedToolCall] | None = None
    tool_call_id: str | None = None


class Payload(msgspec.Struct, frozen=True):
    messages: list[Item]


class Row(msgspec.Struct, frozen=True):
    output_length: Length
    input_length: Prompt | None = None
    text_input: str | None = None
    messages: list[Item] | None = None
    payload: Payload | None = None
    hash_ids: list[int] | None = None
    timestamp: Time | None = None
    delay: Time | None = None
    session_id: str | int | None = None


DECODER = msgspec.json.Decoder(Row)
Numbered = tuple[int, Row]


def read(path: Path, data: bytes, count: Count, size: int) -> Trace:
    """``size`` tokens a block. Raises ``TraceError``."""
    names = BlockNames(size, scope_of(data))
    alone: list[tuple[int, Session]] = []
    together: dict[str, list[Numbered]] = {}
    for number, row in rows(path, data, DECODER, REMEDY):
        _check_row(path, number, row, size)
        if row.session_id is not None:
            together.setdefault(str(row.session_id), []).append((number, row))
        elif row.input_length is not None:
            alone.append((number, _single(f"{stem(path)}-{number}", row, row.input_length, names)))
        else:
            session = _texts(path, f"{stem(path)}-{number}", [(number, row)], count)
            alone.append((number, session))
    for name, group in together.items():
        first = group[0][0]
        texts = [row.input_length is None for _, row in group]
        if any(texts) and not all(texts):
            line = group[texts.index(not texts[0])][0]
            problem = f"session {name!r} has rows with text and rows without"
            raise line_error(path, line, "", problem, "give all its rows text, or none")
        if texts[0]:
            alone.append((first, _texts(path, name, group, count)))
        else:
            alone.append((first, _blocks(name, group, names)))
    return Trace(path.name, tuple(session for _, session in sorted(alone, key=lambda one: one[0])))


def _check_row(path: Path, line: int, row: Row, size: int) -> None:
    given = [name for name in INPUTS if getattr(row, name) is not None]
    if len(given) != 1:
        problem = f"has {' and '.join(given) or 'none'} of {', '.join(INPUTS)}"
        raise line_error(path, line, "", problem, "give exactly one")
    if row.input_length is not None:
        check_blocks(path, line, row.input_length, row.hash_ids, size)


def check_blocks(path: Path, line: int, length: int, hash_ids: list[int] | None, size: int) -> None:
    """A prompt has at most one id for each begun block."""
    most = -(-length // size)
    if hash_ids and len(hash_ids) > most:
        problem = f"{len(hash_ids)} ids for {length} tokens, which are {most} blocks of {size}"
        raise line_error(path, line, "hash_ids", problem, "give the block size of the file")


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


def _single(name: str, row: Row, length: int, names: BlockNames) -> Session:
    added = SessionBlocks(names).content(row.hash_ids or (), 0, length, new_content(MAIN, 0))
    call = Call(length, max(1, row.output_length), 0, added, wait=Wait.START)
    return Session(name, (Branch(MAIN, (call,)),), start=_seconds(row.timestamp))


def _waits(group: list[Numbered]) -> Iterator[tuple[float, Wait]]:
    """The gap before each row: its delay, or for want of it the time from the previous row's
    timestamp, which holds that call too."""
    before: float | None = None
    for index, (_, row) in enumerate(group):
        gap = row.delay or 0.0
        if row.delay is None and index and row.timestamp is not None and before is not None:
            gap = max(0.0, row.timestamp - before)
        before = row.timestamp
        yield gap / 1000, Wait.TOOL if index else Wait.START


def _blocks(name: str, group: list[Numbered], names: BlockNames) -> Session:
    blocks = SessionBlocks(names)
    context: Context | None = None
    calls: list[Call] = []
    for index, ((_, row), (gap, wait)) in enumerate(zip(group, _waits(group), strict=True)):
        ids, length = row.hash_ids or [], row.input_length or 0
        new, reply = new_content(MAIN, index), reply_stream(MAIN, index)
        output = max(1, row.output_length)
        before = context.prompt + context.output if context else 0
        whole = bool(ids) and blocks.kept(context, ids, length) == before
        if whole or context is None:
            added, tail = blocks.call(context, ids, before, length, new)
            context = Context(ids, length, output, tail, reply)
        else:
            added = blocks.content(ids, 0, length, new)
            context = Context((), before + length, output, (), reply)
        calls.append(Call(context.prompt, output, before, added, gap, wait))
    start = _seconds(group[0][1].timestamp)
    return Session(name, (Branch(MAIN, tuple(calls)),), start=start)


def _texts(path: Path, name: str, group: list[Numbered], count: Count) -> Session:
    """A reply is what the next row's messages have in its place; unknown, it is empty."""
    branch = TextBranch(count)
    prompts: list[tuple[Message, ...]] = []
    for line, row in group:
        if row.text_input is not None:
            said = Message("user", row.text_input)
            known = (*prompts[-1], Message("assistant", "")) if prompts else ()
            prompts.append((*known, said))
        else:
            prompts.append(_messages(path, line, row))
    calls = []
    for index, ((_, row), (gap, wait)) in enumerate(zip(group, _waits(group), strict=True)):
        place = len(prompts[index])
        following = prompts[index + 1] if index + 1 < len(prompts) else ()
        reply = Message("assistant", "")
        if len(following) > place and following[place].role == "assistant":
            reply = following[place]
        calls.append(branch.call(prompts[index], reply, gap, wait, row.output_length))
    start = _seconds(group[0][1].timestamp)
    return Session(name, (Branch(MAIN, tuple(calls)),), start=start)


def _messages(path: Path, line: int, row: Row) -> tuple[Message, ...]:
    field = "messages" if row.payload is None else "payload.messages"
    items = row.payload.messages if row.payload else row.messages or []
    if not items:
        raise line_error(path, line, field, "is empty", "give the prompt's messages")
    return tuple(_message(path, f"line {line}: {field}[{i}]", item) for i, item in enumerate(items))


def _message(path: Path, field: str, item: Item) -> Message:
    # Newer OpenAI bodies call the system message the developer's.
    role = "system" if item.role == "developer" else item.role
    if role not in CHAT_ROLES:
        expected = ", ".join(sorted(CHAT_ROLES))
        raise TraceError(path, f"{field}.role", f"unknown role {item.role!r}", f"use {expected}")
    content = text_of(path, f"{field}.content", item.content)
    return Message(role, content, tool_calls_of(item.tool_calls), item.tool_call_id or "")
