"""SWE-agent ``.traj``: ``history`` holds the messages, ``trajectory`` one step for each call.

Newer files also keep, in each step, the exact prompt (``query``) and the tool's run time
(``execution_time``); the oldest have a ``history`` alone.
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

REMEDY = "expected a SWE-agent .traj file (object with history[] and, if kept, trajectory[])"


class HistoryItem(msgspec.Struct, frozen=True):
    role: str
    content: Content = None
    agent: str = ""
    is_demo: bool | None = None
    tool_calls: list[RecordedToolCall] | None = None
    tool_call_ids: list[str] | None = None


class Step(msgspec.Struct, frozen=True):
    response: str | None = None
    execution_time: float | None = None
    query: list[HistoryItem] | None = None
    tool_calls: list[RecordedToolCall] | None = None


class File(msgspec.Struct, frozen=True):
    history: list[HistoryItem]
    trajectory: list[Step] = []


DECODER = msgspec.json.Decoder(File)


def read_calls(path: Path, data: bytes) -> tuple[Call, ...]:
    """The calls of one file, in order. Raises ``TraceError``."""
    file = decode(path, data, DECODER, REMEDY)
    _check_times(path, file.trajectory)
    if file.trajectory and all(step.query and step.response for step in file.trajectory):
        return _from_queries(path, file)
    return _from_history(path, file)


def _check_times(path: Path, steps: Sequence[Step]) -> None:
    for index, step in enumerate(steps):
        seconds = step.execution_time
        if seconds is not None and not 0 <= seconds < float("inf"):
            field = f"trajectory[{index}].execution_time"
            raise TraceError(path, field, f"{seconds} is not a duration", "use seconds, 0 or more")


def _from_queries(path: Path, file: File) -> tuple[Call, ...]:
    calls, gap = [], 0.0
    for index, step in enumerate(file.trajectory):
        field = f"trajectory[{index}].query"
        prompt = tuple(
            _message(path, f"{field}[{i}]", item) for i, item in enumerate(step.query or ())
        )
        reply = Message("assistant", step.response or "", tool_calls_of(step.tool_calls))
        calls.append(Call(prompt, reply, gap))
        gap = step.execution_time or 0.0
    return tuple(calls)


def _from_history(path: Path, file: File) -> tuple[Call, ...]:
    if not file.history:
        raise TraceError(path, "history", "is empty", "replay a run with at least one call")
    # Several agents may share one history; each saw its own messages only.
    agent = file.history[0].agent
    kept = [(i, item) for i, item in enumerate(file.history) if item.agent == agent]
    messages = [_message(path, f"history[{i}]", item) for i, item in kept]
    own = [not item.is_demo for _, item in kept]
    replies = [
        message.content
        for message, mine in zip(messages, own, strict=True)
        if mine and message.role == "assistant"
    ]
    times, trailing = _step_times(replies, file.trajectory)
    calls = calls_from(path, "history", messages, own, (0.0, *times)[: len(replies)])
    if trailing is not None and messages[-1].role != "assistant":
        # The last step's reply ended the run and was not added to the history.
        reply = Message("assistant", trailing.response or "", tool_calls_of(trailing.tool_calls))
        calls += (Call(tuple(messages), reply, times[-1]),)
    return calls


def _step_times(replies: Sequence[str], steps: Sequence[Step]) -> tuple[list[float], Step | None]:
    """Seconds that followed each reply, found by matching replies to steps in order (a reply
    without a step has 0), and the one step left over at the end, if there is one."""
    times, place = [], 0
    for reply in replies:
        match = next((i for i in range(place, len(steps)) if steps[i].response == reply), None)
        times.append(0.0 if match is None else steps[match].execution_time or 0.0)
        place = place if match is None else match + 1
    left = steps[place:]
    return times, left[0] if len(left) == 1 and left[0].response else None


def _message(path: Path, field: str, item: HistoryItem) -> Message:
    if item.role not in CHAT_ROLES:
        expected = ", ".join(sorted(CHAT_ROLES))
        raise TraceError(path, f"{field}.role", f"unknown role {item.role!r}", f"use {expected}")
    return Message(
        item.role,
        text_of(path, f"{field}.content", item.content),
        tool_calls_of(item.tool_calls),
        item.tool_call_ids[0] if item.role == "tool" and item.tool_call_ids else "",
    )
