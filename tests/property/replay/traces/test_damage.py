"""Rows of every format with one value changed, or cut: a whole trace or one error."""

from __future__ import annotations

import copy
import json
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from alipes.replay.traces.check import check
from alipes.replay.traces.form import Trace
from alipes.replay.traces.load import load
from alipes.replay.traces.model import TraceError

Json = dict[str, object]

CALLS = [
    {"gap": 0.5, "wait": wait, "prompt": prompt, "kept": kept, "output": 9, "latency": 1.5}
    for wait, prompt, kept in (("user", 100, 0), ("branch", 150, 100), ("tool", 90, 50))
]
USAGE = {"input_tokens": 4, "cache_read_input_tokens": 96, "output_tokens": 7}
USE = {"type": "tool_use", "id": "t", "name": "Bash", "input": {"command": "ls"}}
RESULT = {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "x"}]}


def log_line(number: int, kind: str, message: Json, **more: object) -> Json:
    own: Json = {"type": kind, "uuid": f"u{number}", "parentUuid": f"u{number - 1}"}
    stamp = f"2025-07-01T10:00:0{number}Z"
    return {**own, "sessionId": "s", "timestamp": stamp, "message": message, **more}


def weka(t: float, length: int, ids: list[int]) -> Json:
    own: Json = {"t": t, "type": "n", "model": "m", "in": length, "out": 5, "hash_ids": ids}
    return {**own, "api_time": 1.0, "think_time": 0.5, "stop": "tool_use"}


ROWS: dict[str, list[Json]] = {
    "mooncake": [
        {"timestamp": 5, "input_length": 900, "output_length": 5, "hash_ids": [1, 2]},
        {"session_id": "x", "input_length": 90, "output_length": 5, "timestamp": 7},
        {"session_id": "x", "input_length": 9, "output_length": 5, "hash_ids": [3]},
        {"session_id": "y", "messages": [{"role": "user", "content": "hi"}], "output_length": 5}
        | {"timestamp": 9},
    ],
    "bailian": [
        {"chat_id": 1, "parent_chat_id": -1, "timestamp": 5.5, "input_length": 33}
        | {"output_length": 5, "type": "text", "turn": 1, "hash_ids": [1, 2, 3]},
        {"chat_id": 2, "parent_chat_id": 1, "timestamp": 6.5, "input_length": 40}
        | {"output_length": 5, "type": "text", "turn": 2, "hash_ids": [1, 2, 4]},
    ],
    "agentic-mooncake": [
        {"request_id": "a", "session_id": "s", "input_length": 600, "output_length": 5}
        | {"hash_ids": [1, 2], "timestamp": 5, "branches": ["b"]},
        {"request_id": "b", "session_id": "t", "input_length": 512, "output_length": 5}
        | {"hash_ids": [3], "wait_for": ["a"], "delay": 5, "prefix_reset": True},
        {"request_id": "c", "session_id": "s", "input_length": 700, "output_length": 5}
        | {"hash_ids": [1, 4], "wait_for": ["a", "b"], "tool_wait_ms": 5},
    ],
    "trie": [
        {"num_turns": 1, "input_prompt_length": 50, "assistant_response_length": [5]}
        | {"tool_call_output_length": [6], "tool_call_latency": [0.5]}
        | {"final_assistant_response_length": 7}
    ],
    "weka": [
        {"id": "w", "block_size": 64, "hash_id_scope": "local"}
        | {
            "requests": [
                weka(0, 128, [1, 2]),
                {"t": 2, "type": "subagent", "agent_id": "g", "requests": [weka(1, 64, [7])]},
                weka(9, 256, [1, 2, 3, 4]),
            ]
        }
    ],
    "claude-code-sessions": [
        {"session": "s", "agent": "a"}
        | {
            "branches": [
                {"branch": "main", "calls": CALLS},
                {"branch": "sub", "parent": "main", "spawned_by_call": 0, "calls": CALLS[:1]},
            ]
        }
    ],
    "claude-code": [
        log_line(1, "user", {"content": "go"}),
        log_line(2, "assistant", {"id": "m1", "model": "m", "content": [USE], "usage": USAGE}),
        log_line(3, "user", {"content": "find"}, isSidechain=True),
        log_line(4, "assistant", {"id": "m2", "content": [USE], "usage": USAGE}, isSidechain=True),
        log_line(5, "user", {"content": [RESULT]}),
        log_line(6, "assistant", {"id": "m3", "content": "done", "usage": USAGE}),
    ],
    "swe-agent": [
        {
            "history": [
                {"role": "system", "content": "help"},
                {"role": "user", "content": [{"type": "text", "text": "fix"}]},
                {"role": "assistant", "content": "a"},
            ],
            "trajectory": [{"response": "a", "execution_time": 0.5}],
        }
    ],
}

VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([-1, 0, 1, 2**31, 2**64, 10**30, 0.5, 1e300, -0.0]),
    st.sampled_from(["", "a", "b", "s", "main", "user", "branch", "x\ny", "\ud800"]),
    st.just([]),
    st.just({}),
)


@st.composite
def changed(draw: st.DrawFn, row: Json) -> Json:
    """The row with one value somewhere in it replaced, dropped or doubled."""
    row = copy.deepcopy(row)
    inside: dict[str, object] | list[object] = row
    while True:
        keys = list(inside) if isinstance(inside, dict) else list(range(len(inside)))
        if not keys:
            return row
        key = draw(st.sampled_from(keys))
        value = inside[key]  # type: ignore[index,call-overload]
        if isinstance(value, dict | list) and draw(st.integers(0, 3)):
            inside = value
            continue
        kind = draw(st.sampled_from(["replace", "drop", "double"]))
        if kind == "replace":
            inside[key] = draw(VALUES)  # type: ignore[index,call-overload]
        elif kind == "drop":
            del inside[key]  # type: ignore[arg-type]
        elif isinstance(inside, list):
            inside.append(copy.deepcopy(value))
        return row


def outcome(path: Path, format: str) -> tuple[Trace | None, str]:
    try:
        return load([path], format), ""
    except TraceError as error:
        return None, str(error)


@settings(max_examples=300)
@given(st.sampled_from(sorted(ROWS)), st.data())
def test_a_changed_value_gives_a_whole_trace_or_one_error(format: str, data: st.DataObject) -> None:
    rows = list(ROWS[format])
    number = data.draw(st.integers(0, len(rows) - 1))
    rows[number] = data.draw(changed(rows[number]))
    lines = [json.dumps(row) for row in rows]
    if data.draw(st.integers(0, 4)) == 0:
        lines[number] = lines[number][: data.draw(st.integers(1, len(lines[number]) - 1))]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.jsonl"
        path.write_text("\n".join(lines) + "\n")
        trace, complaint = outcome(path, format)
    if trace is None:
        assert complaint.startswith(f"{path}: ")
        assert "; " in complaint
        assert len(complaint.splitlines()) == 1
    else:
        check(trace, path)


def test_the_rows_are_read_as_they_are(tmp_path: Path) -> None:
    for format, rows in ROWS.items():
        path = tmp_path / format
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        assert load([path], format) == load([path])
