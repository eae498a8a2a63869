"""Rows that can be taken for something else, and what is made of them."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from alipes.replay.traces.columns import Columns
from alipes.replay.traces.load import load
from alipes.replay.traces.model import TraceError
from alipes.replay.traces.statistics import statistics


def written(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


# --- Bailian -------------------------------------------------------------------------------------


def chat(number: int, parent: int, stamp: float, length: int, ids: list[int]) -> dict[str, Any]:
    row = {"chat_id": number, "parent_chat_id": parent, "timestamp": stamp, "type": "text"}
    return {**row, "input_length": length, "output_length": 132, "turn": 1, "hash_ids": ids}


def test_chats_of_bailian_are_sessions(tmp_path: Path) -> None:
    first, common = list(range(1000, 1033)), list(range(1000, 1032))
    rows = [
        chat(159, -1, 61.114, 521, first),
        chat(160, 159, 75.5, 676, [*common, *range(2000, 2011)]),
        chat(161, 159, 80.0, 530, [*common, 7]),
        chat(162, 99, 81.0, 16, [5]),
    ]
    one, fork, lost = load([written(tmp_path / "t.jsonl", rows)]).sessions
    calls = one.branches[0].calls
    assert [(call.prompt, call.kept, call.gap) for call in calls] == [
        (521, 0, 0.0),
        (676, 512, 14.386),
    ]
    assert (one.start, fork.start, lost.start) == (61.114, 80.0, 81.0)
    # The same blocks are the same content in every session.
    assert fork.branches[0].calls[0].added[0] == calls[0].added[0]


def test_a_chat_is_there_once(tmp_path: Path) -> None:
    rows = [chat(1, -1, 0, 16, [1]), chat(1, -1, 1, 16, [1])]
    with pytest.raises(TraceError, match="line 2: chat_id: 1 is also the id of line 1"):
        load([written(tmp_path / "t.jsonl", rows)])


# --- Azure ---------------------------------------------------------------------------------------

HEAD = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def azure(tmp_path: Path, text: str) -> list[tuple[float | None, int, int]]:
    path = tmp_path / "t.csv"
    path.write_text(text)
    sessions = load([path]).sessions
    calls = [(one.start, one.branches[0].calls[0]) for one in sessions]
    return [(start, call.prompt, call.output) for start, call in calls]


@pytest.mark.parametrize(
    ("text", "starts"),
    [
        (
            HEAD + "2024-05-10 00:00:00.009930+00:00,2162,5\n"
            "2024-05-10 00:00:00.017335+00:00,2399,6\n",
            [0.0, 0.007405],
        ),
        (
            HEAD + '"2023-11-16 18:17:05.0","2162","5"\r\n"2023-11-16 18:17:03","2399","6"\r\n',
            [2.0, 0.0],
        ),
        (
            "\ufefftimestamp, contexttokens ,GENERATEDTOKENS\n"
            "2023-11-16T18:59:59.9999999Z,2162,5\n\n2023-11-16T19:00:00Z,2399,6\n",
            [0.0, 1e-7],
        ),
    ],
)
def test_stamps_of_azure(tmp_path: Path, text: str, starts: list[float]) -> None:
    assert azure(tmp_path, text) == [(starts[0], 2162, 5), (starts[1], 2399, 6)]


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("2023-11-16 18:17:05,1,1", "of another year"),
        ("2024-05-10 00:00:01,1,1", "of another time zone than the first row"),
        ("2024-05-10 00:00:01+02:00,1,1", "of another time zone"),
        ("2024-05-32 00:00:01+00:00,1,1", "is not a time"),
        ("2024-05-10 00:61:01+00:00,1,1", "is not a time"),
        ("yesterday,1,1", "is not a time"),
        ('"2024-05-10 00:00:01+00:00",1,"x"', "GeneratedTokens: 'x' is not a number"),
        ("2024-05-10 00:00:01+00:00,1", "2 cells, not 3"),
    ],
)
def test_rows_of_another_recording_are_refused_with_their_line(
    tmp_path: Path, row: str, problem: str
) -> None:
    text = f"{HEAD}2024-05-10 00:00:00+00:00,1,1\n{row}\n"
    with pytest.raises(TraceError, match=r"line 3: .*") as told:
        azure(tmp_path, text)
    assert problem in str(told.value)


ROWS = 400_000
READ = """
import resource, sys
from pathlib import Path
from alipes.replay.traces.load import load
from alipes.replay.traces.statistics import statistics
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
figures = statistics(load([Path(sys.argv[1])]))
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(figures.calls, figures.prompt_tokens, (after - before) * 1024)
"""


def test_a_long_file_takes_little_memory(tmp_path: Path) -> None:
    """Less than 160 bytes a row with the file itself, so 44 million rows fit in 7 GB."""
    path = tmp_path / "long.csv"
    with path.open("w") as file:
        file.write(HEAD)
        for i in range(ROWS):
            file.write(f"2024-05-10 {i // 36000:02}:{i // 600 % 60:02}:{i // 10 % 60:02}.")
            file.write(f"{i % 10}000000+00:00,{i % 4000 + 1},7\n")
    command = [sys.executable, "-P", "-c", READ, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    calls, tokens, peak = map(int, done.stdout.split())
    assert (calls, tokens) == (ROWS, sum(i % 4000 + 1 for i in range(ROWS)))
    assert peak < 160 * ROWS
    assert resource.getpagesize() > 0


def test_figures_of_columns_are_those_of_sessions(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(
        HEAD + "".join(f"2024-05-10 00:00:{i:02},{i * 7 % 11 + 1},{i % 5}\n" for i in range(30))
    )
    trace = load([path])
    assert isinstance(trace.sessions, Columns)
    made = type(trace)(trace.source, tuple(trace.sessions))
    assert statistics(trace) == statistics(made)
    assert [one.id for one in trace.sessions[:2]] == ["t-2", "t-3"]


# --- whole prompts or increments -----------------------------------------------------------------


def row(length: int, output: int, ids: list[int] | None = None, **more: Any) -> dict[str, Any]:
    made = {"session_id": "s", "input_length": length, "output_length": output}
    return {**made, **({"hash_ids": ids} if ids else {}), **more}


@pytest.mark.parametrize(
    ("rows", "calls", "unclear"),
    [
        (
            [row(1000, 600, [1, 2]), row(1300, 50, [1, 3, 4]), row(1500, 50, [1, 3, 5])],
            [(1000, 0), (1300, 512), (1500, 1024)],
            False,
        ),
        (
            [row(1024, 100, [1, 2]), row(1200, 50, [1, 2, 3]), row(1400, 9, [1, 2, 4])],
            [(1024, 0), (1200, 1124), (1400, 1250)],
            False,
        ),
        (
            [row(512, 8, [1]), row(300, 8, [2]), row(100, 8, [3])],
            [(512, 0), (820, 520), (928, 828)],
            False,
        ),
        ([row(512, 8), row(300, 8)], [(512, 0), (820, 520)], True),
        (
            [row(512, 8, [1]), row(600, 8, [2, 3]), row(700, 8, [4, 5])],
            [(512, 0), (1120, 520), (1828, 1128)],
            True,
        ),
    ],
)
def test_lengths_are_of_whole_prompts_where_ids_say_so(
    tmp_path: Path, rows: list[Any], calls: list[tuple[int, int]], unclear: bool
) -> None:
    trace = load([written(tmp_path / "t.jsonl", rows)])
    (session,) = trace.sessions
    assert [(call.prompt, call.kept) for call in session.branches[0].calls] == calls
    assert bool(trace.warnings) == unclear
    if unclear:
        assert "line 1: session 's': input_length may be of whole prompts" in trace.warnings[0]


# --- stamps --------------------------------------------------------------------------------------


def stamped(*stamps: float | None) -> list[dict[str, Any]]:
    rows = []
    for i, stamp in enumerate(stamps):
        made = {"input_length": 100, "output_length": 5, "hash_ids": [i]}
        rows.append(made if stamp is None else {**made, "timestamp": stamp})
    return rows


@pytest.mark.parametrize(
    ("stamps", "problem"),
    [
        ((1.7e12, 2000), "line 2: timestamp: 2 s is of another kind"),
        ((2000, 1.7e12), "line 2: timestamp: 1.7e.09 s is of another kind"),
        ((0, 1000, None), "line 3: timestamp: is missing"),
        ((None, 1000), "line 1: timestamp: is missing"),
    ],
)
def test_stamps_that_do_not_fit_are_refused_with_their_line(
    tmp_path: Path, stamps: tuple[float | None, ...], problem: str
) -> None:
    with pytest.raises(TraceError, match=problem):
        load([written(tmp_path / "t.jsonl", stamped(*stamps))])


def test_stamps_of_the_calendar_count_from_the_first(tmp_path: Path) -> None:
    path = written(tmp_path / "t.jsonl", stamped(1.7e12 + 500, 1.7e12))
    assert [one.start for one in load([path]).sessions] == [0.5, 0.0]
    bare = written(tmp_path / "u.jsonl", stamped(None, None))
    assert [one.start for one in load([bare]).sessions] == [None, None]


# --- Claude Code ---------------------------------------------------------------------------------


def line(
    kind: str, uuid: str, parent: str | None, second: int, session: str, **message: Any
) -> Any:
    stamp = f"2026-03-11T02:40:{second:02}.000Z"
    return {
        "type": kind,
        "uuid": uuid,
        "parentUuid": parent,
        "sessionId": session,
        "timestamp": stamp,
        "isSidechain": False,
        "message": {"role": kind, **message},
    }


def log(session: str, *, more: bool = False) -> list[Any]:
    usage = {"input_tokens": 3, "cache_read_input_tokens": 100, "output_tokens": 9}
    reply: dict[str, Any] = {"id": "m1", "model": "x", "usage": usage}
    tool = {"type": "tool_use", "id": "t1", "name": "Bash", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": "a"}
    rows = [
        line("user", "u1", None, 0, session, content="list"),
        line("assistant", "a1", "u1", 1, session, content=[{"type": "text", "text": "I"}], **reply),
        line("assistant", "a2", "a1", 2, session, content=[tool], **reply),
        line("user", "u2", "a2", 3, session, content=[result]),
        line("assistant", "a3", "u2", 5, session, content="Two.", **{**reply, "id": "m2"}),
    ]
    if more:
        rows += [
            line("user", "u3", "a3", 20, session, content="delete"),
            line("assistant", "a4", "u3", 24, session, content="Done.", **{**reply, "id": "m3"}),
        ]
    return rows


def test_lines_that_are_written_several_times_count_once(tmp_path: Path) -> None:
    once = log("s")
    twice = [row for row in once for _ in range(2)]
    again = [{**row, "uuid": row["uuid"] + "x"} if row["uuid"] == "a2" else row for row in once]
    copied = [*once[:3], again[2], *once[3:]]
    expected = load([written(tmp_path / "t.jsonl", once)])
    for rows in (twice, copied, once * 2):
        trace = load([written(tmp_path / "t.jsonl", rows)])
        assert trace.sessions == expected.sessions


@pytest.mark.parametrize("together", [True, False])
def test_a_session_taken_up_again_counts_once(tmp_path: Path, together: bool) -> None:
    one, two = log("s"), log("r", more=True)
    if together:
        paths = [written(tmp_path / "t.jsonl", one + two)]
    else:
        paths = [written(tmp_path / "a.jsonl", one), written(tmp_path / "b.jsonl", two)]
    trace = load(paths)
    assert [(session.id, session.calls) for session in trace.sessions] == [("r", 3)]
    assert load([*paths[::-1]]).calls == 3
