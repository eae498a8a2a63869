"""Every format by a small file: what is read, and what a fault in it says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from alipes.replay.traces.form import Session, Span, Trace, Wait, reply_stream
from alipes.replay.traces.formats import READERS, format_of
from alipes.replay.traces.load import load
from alipes.replay.traces.model import Message, TraceError
from alipes.replay.traces.source import Source

Json = dict[str, object]

MOONCAKE: Json = {
    "timestamp": 1500,
    "input_length": 1030,
    "output_length": 7,
    "hash_ids": [5, 6, 9],
}
TRIE: Json = {
    "num_turns": 2,
    "input_prompt_length": 100,
    "assistant_response_length": [10, 20],
    "tool_call_output_length": [30, 40],
    "tool_call_latency": [0.5, 1.25],
    "final_assistant_response_length": 50,
}
OURS: Json = {
    "session": "s",
    "agent": "claude-code",
    "branches": [
        {
            "branch": "main",
            "parent": None,
            "spawned_by_call": None,
            "spawn_delay": 0.0,
            "calls": [
                {"gap": 0.0, "wait": "user", "prompt": 100, "kept": 0, "output": 10, "latency": 1},
                {"gap": 9, "wait": "branch", "prompt": 130, "kept": 100, "output": 5, "latency": 1},
                {"gap": 1, "wait": "tool", "prompt": 132, "kept": 130, "output": 5, "latency": 1},
                {"gap": 2, "wait": "user", "prompt": 60, "kept": 40, "output": 5, "latency": 1},
                {"gap": 3, "wait": "branch", "prompt": 70, "kept": 60, "output": 5, "latency": 1},
            ],
        },
        {
            "branch": "sub1",
            "parent": "main",
            "spawned_by_call": 0,
            "spawn_delay": 0.25,
            "calls": [
                {
                    "gap": 0,
                    "wait": "tool",
                    "prompt": 80,
                    "kept": 0,
                    "output": 3,
                    "latency": 2,
                    "provider_cached": 30,
                },
                {"gap": 1, "wait": "tool", "prompt": 90, "kept": 80, "output": 3, "latency": 0.5},
            ],
        },
        {
            "branch": "sub2",
            "parent": "main",
            "spawned_by_call": 0,
            "spawn_delay": 0.5,
            "calls": [
                {
                    "gap": 0,
                    "wait": "tool",
                    "prompt": 20,
                    "kept": 0,
                    "output": 3,
                    "latency": 2,
                    "provider_cached": 0,
                }
            ],
        },
    ],
}
AGENTIC: Json = {
    "request_id": "r1",
    "session_id": "s",
    "timestamp": 250,
    "input_length": 1024,
    "output_length": 512,
    "hash_ids": [1, 2],
    "prefix_reset": True,
}
WEKA: Json = {
    "id": "w",
    "models": ["big"],
    "block_size": 64,
    "hash_id_scope": "local",
    "requests": [{"t": 0, "type": "n", "model": "big", "in": 130, "out": 9, "hash_ids": [1, 2, 3]}],
}
BAILIAN: Json = {
    "chat_id": 159,
    "parent_chat_id": -1,
    "timestamp": 61.114,
    "input_length": 33,
    "output_length": 132,
    "type": "text",
    "turn": 1,
    "hash_ids": [5, 6, 7],
}
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:17:03.9799600,4808,10\r\n"


def lines(folder: Path, *rows: Json | str, name: str = "t.jsonl") -> Path:
    path = folder / name
    path.write_text(
        "".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows)
    )
    return path


def one(trace: Trace) -> Session:
    (session,) = trace.sessions
    return session


def test_mooncake_blocks_are_shared_by_id_and_end_with_the_prompt(tmp_path: Path) -> None:
    second = {**MOONCAKE, "hash_ids": [5, 8], "input_length": 1300, "timestamp": 2000.5}
    trace = load([lines(tmp_path, MOONCAKE, second)])
    first, other = (session.branches[0].calls[0] for session in trace.sessions)
    assert [session.id for session in trace.sessions] == ["t-1", "t-2"]
    assert [session.start for session in trace.sessions] == [1.5, 2.0005]
    assert [(span.start, span.length) for span in first.added] == [(0, 512), (0, 512), (0, 6)]
    assert first.added[0] == other.added[0]
    assert first.added[1] != other.added[1]
    # The ids name 1024 tokens; the rest is the call's own.
    assert other.added[2].length == 1300 - 1024
    assert other.added[2].stream < 0 <= other.added[1].stream


def test_ids_of_different_files_are_different_content(tmp_path: Path) -> None:
    one_file = lines(tmp_path, MOONCAKE, name="a.jsonl")
    other = lines(tmp_path, {**MOONCAKE, "output_length": 8}, name="b.jsonl")
    first, second = load([one_file, other]).sessions
    assert first.branches[0].calls[0].added[0] != second.branches[0].calls[0].added[0]


def test_rows_of_a_session_add_to_what_was_said(tmp_path: Path) -> None:
    rows = [
        {"session_id": "x", "input_length": 100, "output_length": 10, "timestamp": 1000},
        {"session_id": "x", "input_length": 30, "output_length": 0, "delay": 250},
        {"session_id": "x", "input_length": 5, "output_length": 4, "hash_ids": [7]},
    ]
    session = one(load([lines(tmp_path, *rows)]))
    calls = session.branches[0].calls
    assert session.start == 1.0
    assert [(call.kept, call.prompt, call.output) for call in calls] == [
        (0, 100, 10),
        (110, 140, 1),
        (141, 146, 4),
    ]
    assert [call.gap for call in calls] == [0.0, 0.25, 0.0]


def test_rows_of_a_session_that_hold_the_previous_ids_are_whole_prompts(tmp_path: Path) -> None:
    rows = [
        {"session_id": "x", "input_length": 1024, "output_length": 88, "hash_ids": [1, 2]},
        {"session_id": "x", "input_length": 1600, "output_length": 8, "hash_ids": [1, 2, 3, 4]},
    ]
    calls = one(load([lines(tmp_path, *rows)])).branches[0].calls
    assert [(call.kept, call.prompt) for call in calls] == [(0, 1024), (1024, 1600)]


def test_messages_are_whole_prompts_and_give_the_reply_before(tmp_path: Path) -> None:
    system, ask = {"role": "developer", "content": "Help."}, {"role": "user", "content": "12345678"}
    reply, more = {"role": "assistant", "content": "Yes"}, {"role": "user", "content": "go on"}
    rows = [
        {"session_id": "x", "messages": [system, ask], "output_length": 40},
        {
            "session_id": "x",
            "payload": {"messages": [system, ask, reply, more]},
            "output_length": 2,
        },
    ]
    calls = one(load([lines(tmp_path, *rows)], count=len)).branches[0].calls
    first, second = (call.turn for call in calls)
    assert first
    assert second
    assert first.added == (Message("system", "Help."), Message("user", "12345678"))
    assert first.reply == Message("assistant", "Yes")
    assert (second.kept, second.added) == (3, (Message("user", "go on"),))
    assert [(call.prompt, call.kept, call.output) for call in calls] == [(13, 0, 40), (58, 53, 2)]


def test_trie_turns_grow_by_reply_and_tool_output(tmp_path: Path) -> None:
    calls = one(load([lines(tmp_path, TRIE)])).branches[0].calls
    assert [(call.prompt, call.output, call.gap) for call in calls] == [
        (100, 10, 0.0),
        (140, 20, 0.5),
        (200, 50, 1.25),
    ]
    assert [call.kept for call in calls] == [0, 110, 160]


def test_azure_rows_arrive_when_they_did(tmp_path: Path) -> None:
    path = lines(tmp_path, AZURE, "2023-11-16 18:17:05,300,0\r\n", name="a.csv")
    first, second = load([path]).sessions
    assert (first.start, second.start) == (0.0, 1.02004)
    assert [s.branches[0].calls[0].prompt for s in (first, second)] == [4808, 300]
    assert second.branches[0].calls[0].output == 1


def test_recorded_claude_code_sessions(tmp_path: Path) -> None:
    session = one(load([lines(tmp_path, OURS)]))
    main, first, second = session.branches
    # The third prompt is shorter than prompt and reply before; the fourth was compacted.
    assert [call.kept for call in main.calls] == [0, 110, 132, 40, 65]
    assert [call.wait for call in main.calls] == [
        Wait.START,
        Wait.BRANCH,
        Wait.TOOL,
        Wait.USER,
        Wait.TOOL,
    ]
    assert main.calls[1].joins == ("sub1", "sub2")
    # sub1 ended 0.25 + 2 + 1 + 0.5 s after its spawner, of the 9 s to the joining call.
    assert main.calls[1].gap == 5.25
    # No sub-agent is left for the last call to wait for.
    assert (main.calls[4].gap, main.calls[4].joins) == (3.0, ())
    assert [call.gap for call in first.calls] == [0.25, 1.0]
    assert [span.length for span in first.calls[0].added] == [30, 50]
    assert second.calls[0].added == (Span(first.calls[0].added[0].stream, 0, 20),)


def agentic(request: str, length: int, ids: list[int], *waits: str, **more: object) -> Json:
    own = {"request_id": request, "input_length": length, "output_length": 100, "hash_ids": ids}
    return {**own, "wait_for": waits, **more}


def test_agentic_rows_become_branches_and_joins(tmp_path: Path) -> None:
    rows = [
        agentic("a", 1024, [1, 2], session_id="s", timestamp=250, branches=["c"], model="big"),
        agentic("b", 1536, [1, 2, 3], "a", session_id="s", tool_wait_ms=40, delay=2),
        agentic("c", 512, [9], "a", session_id="s/sub", delay=5, prefix_reset=True, model="small"),
        agentic("d", 2048, [1, 2, 3, 4], "b", "c", session_id="s", delay=7),
        agentic("e", 512, [1], session_id="other"),
        agentic("f", 1100, [1, 2, 8], "d", session_id="s", delay=60_000),
    ]
    session, other = load([lines(tmp_path, *rows)]).sessions
    main, sub = session.branches
    assert (session.id, session.model, session.start) == ("s", "big", 0.25)
    assert (sub.name, sub.parent, sub.spawned_by, sub.model) == ("sub", "main", 0, "small")
    assert [call.wait for call in main.calls] == [Wait.START, Wait.TOOL, Wait.BRANCH, Wait.USER]
    assert [call.gap for call in main.calls] == [0.0, 0.042, 0.007, 60.0]
    assert main.calls[2].joins == ("sub",)
    assert sub.calls[0].gap == 0.005
    # b goes on after a's reply, d after b's; f has two blocks of d's left.
    assert [call.kept for call in main.calls] == [0, 1124, 1636, 1024]
    assert other.branches[0].calls[0].added == main.calls[0].added[:1]


def test_a_block_that_holds_a_reply_is_that_reply_wherever_its_id_stands(tmp_path: Path) -> None:
    rows = [
        agentic("a", 1024, [1, 2], session_id="s", branches=["c"]),
        agentic("b", 1536, [1, 2, 3], "a", session_id="s"),
        agentic("c", 1536, [7, 3, 2], "a", session_id="s/sub", prefix_reset=True),
    ]
    main, sub = one(load([lines(tmp_path, *rows)])).branches
    grown = main.calls[1].added[0]
    assert sub.calls[0].added[1:3] == (
        Span(reply_stream("main", 0), 0, 100),
        Span(grown.stream, grown.start, grown.length),
    )


def test_agentic_rows_may_stand_in_any_order(tmp_path: Path) -> None:
    rows = [
        agentic("a", 1024, [1, 2], session_id="s", branches=["c"]),
        agentic("b", 1536, [1, 2, 3], "a", "c", session_id="s"),
        agentic("c", 512, [9], "a", session_id="s/sub"),
    ]
    sorted_rows = [rows[0], rows[2], rows[1]]
    session = one(load([lines(tmp_path, *rows)]))
    again = one(load([lines(tmp_path, *sorted_rows, name="sorted.jsonl")]))
    shape = [(b.name, b.spawned_by, [(c.kept, c.joins) for c in b.calls]) for b in session.branches]
    assert shape == [
        (b.name, b.spawned_by, [(c.kept, c.joins) for c in b.calls]) for b in again.branches
    ]
    assert session.branches[0].calls[1].joins == ("sub",)


def weka_request(t: float, prompt: int, ids: list[int], **more: object) -> Json:
    own: Json = {"t": t, "type": "n", "model": "big", "in": prompt, "out": 10, "hash_ids": ids}
    return {**own, "api_time": 1.0, **more}


@pytest.mark.parametrize("inner", [0.5, 12.5], ids=["relative", "absolute"])
def test_weka_subagents_and_other_models_are_branches(tmp_path: Path, inner: float) -> None:
    sub = {
        "t": 12.0,
        "type": "subagent",
        "agent_id": "agent_001",
        "subagent_type": "Explore",
        "requests": [
            weka_request(inner, 64, [50], model="small"),
            weka_request(inner + 2, 128, [50, 51], model="small", think_time=0.75),
        ],
    }
    away = {**sub, "agent_id": "away", "status": "async_launched"}
    requests = [
        weka_request(0, 32, [99], model="small"),
        weka_request(10, 128, [1, 2], stop="tool_use"),
        sub,
        away,
        weka_request(20, 256, [1, 2, 3, 4], stop="end_turn"),
        weka_request(30, 320, [1, 2, 3, 4, 5], type="s", ttft=0.2),
    ]
    session = one(load([lines(tmp_path, {**WEKA, "requests": requests})]))
    main, aside, agent, other = session.branches
    assert (session.model, main.model, agent.model, aside.model) == ("big", "", "small", "small")
    assert [call.wait for call in main.calls] == [Wait.START, Wait.BRANCH, Wait.USER]
    assert main.calls[1].joins == ("agent_001",)
    # The sub-agent's last call ended at 15.5; the main one's went on at 20.
    assert [call.gap for call in main.calls] == [0.0, 4.5, 9.0]
    assert [call.kept for call in main.calls] == [0, 138, 266]
    assert (agent.parent, agent.spawned_by) == ("main", 0)
    assert [call.gap for call in agent.calls] == [1.5, 0.75]
    assert [call.kept for call in agent.calls] == [0, 74]
    # Equal ids in one task are equal content.
    assert other.calls[0].added == agent.calls[0].added
    assert aside.calls[0].prompt == 32


def test_weka_reads_one_object_over_several_lines(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(WEKA, indent=1))
    assert (
        one(load([path])) == one(load([lines(tmp_path, WEKA)]))
        or format_of(Source(path)).format == "weka"
    )
    assert one(load([path])).branches[0].calls[0].prompt == 130


CASES = [
    ("mooncake", MOONCAKE, {"input_length": -1}, "input_length"),
    ("mooncake", MOONCAKE, {"input_length": 1024.5}, "input_length"),
    ("mooncake", MOONCAKE, {"hash_ids": [5, "6"]}, "hash_ids[1]"),
    ("mooncake", MOONCAKE, {"hash_ids": [1, 2, 3, 4]}, "hash_ids"),
    ("mooncake", MOONCAKE, {"text_input": "two inputs"}, "text_input"),
    ("mooncake", MOONCAKE, {"timestamp": -5}, "timestamp"),
    ("mooncake", MOONCAKE, {"output_length": None}, "output_length"),
    ("bailian", BAILIAN, {"timestamp": None}, "timestamp"),
    ("bailian", BAILIAN, {"chat_id": 160, "hash_ids": [1, 2, 3, 4]}, "hash_ids"),
    ("bailian", BAILIAN, {"parent_chat_id": 4}, "chat_id"),
    ("trie", TRIE, {"tool_call_latency": [1]}, "tool_call_latency"),
    ("trie", TRIE, {"num_turns": "2"}, "num_turns"),
    ("claude-code-sessions", OURS, {"session": 3}, "session"),
    ("claude-code-sessions", OURS, {"branches": [{"branch": "main", "calls": []}]}, "branches"),
    ("agentic-mooncake", AGENTIC, {"wait_for": ["r9"]}, "wait_for"),
    ("agentic-mooncake", AGENTIC, {"branches": ["r9"]}, "branches"),
    ("agentic-mooncake", AGENTIC, {"wait_for": ["r1"]}, "wait_for"),
    ("agentic-mooncake", AGENTIC, {"delay": -1}, "delay"),
    ("agentic-mooncake", AGENTIC, {"hash_ids": [1, 2, 3]}, "hash_ids"),
    ("weka", WEKA, {"requests": []}, "requests"),
    ("weka", WEKA, {"requests": [{"type": "x"}]}, "requests[0]"),
    ("weka", WEKA, {"block_size": 0}, "block_size"),
]


@pytest.mark.parametrize(("format", "row", "change", "field"), CASES)
def test_a_fault_names_file_line_and_field(
    tmp_path: Path, format: str, row: Json, change: Json, field: str
) -> None:
    good = json.loads(json.dumps(row).replace('"r1"', '"r0"').replace('"w"', '"w0"'))
    if "session" in good:
        good["session"] = "s0"
    path = lines(tmp_path, good, {**row, **change})
    assert format_of(Source(path)).format == format
    with pytest.raises(TraceError) as caught:
        load([path])
    assert str(caught.value).startswith(f"{path}: line 2: ")
    assert field in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("format", ["mooncake", "trie", "agentic-mooncake", "weka", "alipes"])
def test_what_is_no_json_is_named_by_line(tmp_path: Path, format: str) -> None:
    first = {
        "mooncake": MOONCAKE,
        "trie": TRIE,
        "agentic-mooncake": AGENTIC,
        "weka": WEKA,
        "alipes": {"format": "alipes", "version": 1},
    }[format]
    path = lines(tmp_path, first, "{\n")
    with pytest.raises(TraceError, match="line 2: not valid JSON"):
        load([path], format)


@pytest.mark.parametrize(
    ("row", "field"),
    [
        ("2023-11-16 18:17:05,300\n", "2 cells"),
        ("2023-11-16 18:17:05,-3,1\n", "ContextTokens"),
        ("2023-11-16 18:17:05,0,1\n", "ContextTokens"),
        ("2023-11-16 18:17:05,3,1e3\n", "GeneratedTokens"),
        ("2023-11-36 18:17:05,3,1\n", "TIMESTAMP"),
        ("2023-11-16 18:17:05.1x,3,1\n", "TIMESTAMP"),
    ],
)
def test_azure_faults_name_the_line(tmp_path: Path, row: str, field: str) -> None:
    path = lines(tmp_path, AZURE, row, name="a.csv")
    with pytest.raises(TraceError, match=f"line 3: .*{field}"):
        load([path])


A, B, C = (agentic(name, 5, [1]) for name in "abc")


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([A, {**B, "wait_for": ["c"]}, {**C, "wait_for": ["b"]}], "wait for each other"),
        ([A, B, {**C, "wait_for": ["a", "b"]}], "'b' belongs to another session"),
        ([A, A], "line 2: request_id: 'a' is there twice"),
        ([B, {**A, "branches": ["b"]}], "'a' lists it in branches"),
        (
            [
                {**A, "session_id": "s"},
                {**B, "session_id": "t", "wait_for": ["a"]},
                agentic("c", 200, [1], "b", session_id="t"),
                agentic("d", 200, [1], "a", "b", session_id="s"),
            ],
            "'b' is not the last request of its branch",
        ),
        (
            [
                {**A, "session_id": "s"},
                {**B, "session_id": "t", "wait_for": ["a"]},
                {**C, "session_id": "u", "wait_for": ["a", "b"]},
            ],
            "first call of a branch waits",
        ),
    ],
)
def test_agentic_faults_that_take_several_rows(
    tmp_path: Path, rows: list[Json], problem: str
) -> None:
    with pytest.raises(TraceError, match=problem):
        load([lines(tmp_path, *rows)])


def test_formats_are_told_by_name_or_content(tmp_path: Path) -> None:
    told = {
        "mooncake": lines(tmp_path, MOONCAKE),
        "agentic-mooncake": lines(tmp_path, AGENTIC, name="1"),
        "trie": lines(tmp_path, "\n", TRIE, name="2"),
        "weka": lines(tmp_path, WEKA, name="3"),
        "azure": lines(tmp_path, AZURE, name="4"),
        "claude-code": lines(tmp_path, {"type": "summary", "summary": "x"}, name="5"),
        "claude-code-sessions": lines(tmp_path, OURS, name="6"),
        "swe-agent": lines(tmp_path, '{\n"history": []}', name="7"),
        "mini-swe-agent": lines(tmp_path, '{\n"messages":\n []}', name="8"),
        "alipes": lines(tmp_path, {"format": "alipes", "version": 1}, name="9"),
        "bailian": lines(tmp_path, BAILIAN, name="10"),
    }
    # What the gateway records has tests of its own.
    assert set(told) == set(READERS) - {"gateway"}
    for format, path in told.items():
        assert format_of(Source(path)).format == format
    for content in ("", "hello\n", '{"strange": 1}\n', "3\n"):
        path = lines(tmp_path, content, name="unknown")
        with pytest.raises(TraceError, match="unknown: "):
            load([path])
    with pytest.raises(ValueError, match="mooncake"):
        load([told["trie"]], "moon")


def test_mooncake_rows_with_ids_of_requests_are_no_agentic_ones(tmp_path: Path) -> None:
    row = {"request_id": "a", "session_id": "s", "delay": 5, **MOONCAKE}
    session = one(load([lines(tmp_path, row, {**row, "request_id": 7, "delay": 250})]))
    (branch,) = session.branches
    assert (session.id, [call.gap for call in branch.calls]) == ("s", [0.005, 0.25])
    said = {"request_id": "a", "text_input": "wait_for", "output_length": 3}
    assert one(load([lines(tmp_path, said)])).branches[0].calls[0].turn is not None


def test_agentic_rows_are_known_by_any_of_them(tmp_path: Path) -> None:
    first = {name: value for name, value in AGENTIC.items() if name != "prefix_reset"}
    later = agentic("r2", 1536, [1, 2, 3], "r1", session_id="s", tool_wait_ms=5)
    assert len(one(load([lines(tmp_path, first, later)])).branches[0].calls) == 2
    bare = {name: value for name, value in first.items() if name != "input_length"}
    assert one(load([lines(tmp_path, bare)])).branches[0].calls[0].prompt == 1024


@pytest.mark.parametrize("format", sorted(set(READERS) - {"azure"}))
def test_what_is_nested_too_deep_is_told(tmp_path: Path, format: str) -> None:
    path = lines(tmp_path, '{"requests": ' + "[" * 100_000 + "\n")
    with pytest.raises(TraceError, match=r"t\.jsonl: "):
        load([path], format)
    with pytest.raises(TraceError, match="not of a format known here"):
        load([path])
