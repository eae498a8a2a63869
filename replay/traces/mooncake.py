"""Mooncake JSONL, a request a line, and AIPerf's extension of it.

A row has exactly one of ``input_length`` (with ``hash_ids``, blocks of tokens), ``text_input``,
``messages`` and ``payload``. Rows of one ``session_id`` are one branch, in the file's order; a row
without is a session of one call. In a session, ``messages`` and ``payload`` are whole prompts, and
``text_input`` comes after all that was said so far; ``turns`` tells which of both ``input_length``
counts. A whole prompt with hash ids keeps the full blocks that the previous one had too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from alipes.replay.traces.clock import begin_of, check_clock, check_stamped, unit_doubt
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
from alipes.replay.traces.turns import Prompts, told_by_file

REMEDY: Final = "expected Mooncake JSONL (input_length, output_length, hash_ids, timestamp in ms)"
MILLISECOND: Final = 0.001
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
Warn = Callable[[Path, str], None]


def read(path: Path, data: bytes, count: Count, size: int, prompts: Prompts, warn: Warn) -> Trace:
    """``size`` tokens a block; ``prompts`` says what lengths count, or that the rows tell. Raises
    ``TraceError``."""
    names = BlockNames(size, scope_of(data))
    groups: dict[tuple[str, int], list[Numbered]] = {}
    for number, row in rows(path, data, DECODER, REMEDY):
        _check_row(path, number, row, size)
        # A row without a session is one of its own.
        alone = row.session_id is None
        key = (f"{stem(path)}-{number}", number) if alone else (str(row.session_id), 0)
        groups.setdefault(key, []).append((number, row))
    begin = _begin(path, groups.values(), warn)
    of_ids = {key: group for key, group in groups.items() if not _of_texts(path, key[0], group)}
    told = _counted(path, list(of_ids.values()), size, prompts, warn)
    counted = dict(zip(of_ids, told, strict=True))
    sessions = []
    for key, group in groups.items():
        which = counted.get(key)
        calls = _blocks(group, names, which) if which else _texts(path, group, count)
        stamp = group[0][1].timestamp
        start = None if stamp is None else (stamp - begin) / 1000
        sessions.append(Session(key[0], (Branch(MAIN, tuple(calls)),), start=start))
    return Trace(path.name, tuple(sessions))


def _begin(path: Path, groups: Iterable[list[Numbered]], warn: Warn) -> float:
    """The time, ms, from which those of the file count. Raises ``TraceError`` where one is missing
    or of another clock."""
    times = [[(number, row.timestamp, row.delay) for number, row in group] for group in groups]
    check_stamped(path, times)
    stamps = [(line, time) for group in times for line, time, _ in group if time is not None]
    check_clock(path, sorted(stamps), MILLISECOND)
    begin = begin_of(time for _, time in stamps)
    if doubt := unit_doubt(begin, MILLISECOND):
        warn(path, doubt)
    return begin


def _of_texts(path: Path, name: str, group: list[Numbered]) -> bool:
    texts = [row.input_length is None for _, row in group]
    if any(texts) and not all(texts):
        line = group[texts.index(not texts[0])][0]
        problem = f"session {name!r} has rows with text and rows without"
        raise line_error(path, line, "", problem, "give all its rows text, or none")
    return texts[0]


def _counted(
    path: Path, groups: list[list[Numbered]], size: int, prompts: Prompts, warn: Warn
) -> Sequence[Prompts]:
    """What the lengths of each group count."""
    if prompts is not Prompts.UNKNOWN:
        return [prompts] * len(groups)
    sized = [[(row.input_length or 0, row.hash_ids or ()) for _, row in group] for group in groups]
    counted, guessed = told_by_file(sized, size)
    if guessed:
        warn(
            path,
            f"the rows of {len(guessed)} sessions (the first begins in line"
            f" {groups[guessed[0]][0][0]}) do not tell whether input_length counts whole prompts or"
            f" what each row adds; read as {Prompts.ADDED}, --prompts {Prompts.WHOLE} reads the"
            " other",
        )
    return counted


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


def _blocks(group: list[Numbered], names: BlockNames, prompts: Prompts) -> list[Call]:
    blocks = SessionBlocks(names)
    context: Context | None = None
    calls: list[Call] = []
    for index, ((_, row), (gap, wait)) in enumerate(zip(group, _waits(group), strict=True)):
        ids, length = row.hash_ids or [], row.input_length or 0
        new, output = new_content(MAIN, index), max(1, row.output_length)
        if prompts is Prompts.WHOLE:
            kept, first = _kept(blocks, context, ids, length), 0
        else:
            kept = first = context.prompt + context.output if context else 0
        added = blocks.content(ids, kept - first, length, new)
        context = Context(ids, first + length, output, (), reply_stream(MAIN, index))
        calls.append(Call(context.prompt, output, kept, added, gap, wait))
    return calls


def _kept(blocks: SessionBlocks, context: Context | None, ids: list[int], length: int) -> int:
    """What a whole prompt has of the context: without ids it goes on after it as far as it fits."""
    if context is None or ids or context.ids:
        return blocks.kept(context, ids, length, reset=True)
    whole = context.prompt + context.output
    return next((most for most in (whole, context.prompt) if most <= length), 0)


def _texts(path: Path, group: list[Numbered], count: Count) -> list[Call]:
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
    return calls


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
