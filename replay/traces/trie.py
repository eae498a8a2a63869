"""trie's agentic workloads, JSONL: a session a line, lengths of its turns and of tool outputs.

Each prompt is the one before, its reply and the tool's output. Content is the session's own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from alipes.replay.traces.check import check_sessions
from alipes.replay.traces.form import MAIN, Branch, Call, Session, Trace, Wait
from alipes.replay.traces.lines import Length, Prompt, Time, line_error, rows, stem
from alipes.replay.traces.spans import new_content, one

REMEDY: Final = "expected trie JSONL (num_turns, input_prompt_length, assistant_response_length[])"
LISTS: Final = ("assistant_response_length", "tool_call_output_length", "tool_call_latency")


class Row(msgspec.Struct, frozen=True):
    """Latencies are seconds."""

    num_turns: Length
    input_prompt_length: Prompt
    assistant_response_length: list[Length]
    tool_call_output_length: list[Length]
    tool_call_latency: list[Time]
    final_assistant_response_length: Length


DECODER = msgspec.json.Decoder(Row)


def read(path: Path, data: bytes) -> Trace:
    """Raises ``TraceError``."""
    sessions, lines = [], {}
    for number, row in rows(path, data, DECODER, REMEDY):
        for field in LISTS:
            if (length := len(getattr(row, field))) != row.num_turns:
                problem = f"{length} entries for {row.num_turns} turns"
                raise line_error(path, number, field, problem, "give one for each turn")
        session = Session(f"{stem(path)}-{number}", (Branch(MAIN, _calls(row)),))
        sessions.append(session)
        lines[session.id] = number
    check_sessions(sessions, path, lines)
    return Trace(path.name, tuple(sessions))


def _calls(row: Row) -> tuple[Call, ...]:
    outputs = (*row.assistant_response_length, row.final_assistant_response_length)
    brought = (row.input_prompt_length, *row.tool_call_output_length)
    gaps = (0.0, *row.tool_call_latency)
    calls, context = [], 0
    for index, (output, new, gap) in enumerate(zip(outputs, brought, gaps, strict=True)):
        drawn = max(1, output)
        added = one(new_content(MAIN, index), new)
        wait = Wait.TOOL if index else Wait.START
        calls.append(Call(context + new, drawn, context, added, gap, wait))
        context += new + drawn
    return tuple(calls)
