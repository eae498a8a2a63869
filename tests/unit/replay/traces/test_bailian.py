"""Bailian's chats: which request goes on from which."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from alipes.replay.traces.form import Wait
from alipes.replay.traces.load import load, load_told
from alipes.replay.traces.model import TraceError

Json = dict[str, object]


def row(chat: int, parent: int | None, time: float, length: int, ids: list[int]) -> Json:
    own: Json = {"chat_id": chat, "parent_chat_id": parent, "timestamp": time, "type": "text"}
    return {**own, "input_length": length, "output_length": 132, "turn": 1, "hash_ids": ids}


FIRST = row(159, -1, 61.114, 521, list(range(1000, 1033)))
SECOND = row(160, 159, 75.5, 676, [*range(1000, 1032), *range(2000, 2011)])


def save(folder: Path, *rows: Json, end: str = "\n") -> Path:
    path = folder / "b.jsonl"
    path.write_bytes("".join(json.dumps(row) + end for row in rows).encode())
    return path


@pytest.mark.parametrize("end", ["\n", "\r\n", "\n\n"])
@pytest.mark.parametrize("rows", [(FIRST, SECOND), (SECOND, FIRST)], ids=["in order", "turned"])
def test_turns_of_a_chat_are_one_session(tmp_path: Path, rows: tuple[Json, ...], end: str) -> None:
    trace, (taken,) = load_told([save(tmp_path, *rows, end=end)])
    (session,) = trace.sessions
    first, second = session.branches[0].calls
    assert (session.id, session.start) == ("b-159", 61.114)
    assert (first.prompt, first.kept, first.output, first.wait) == (521, 0, 132, Wait.START)
    assert (second.prompt, second.kept, second.gap, second.wait) == (676, 512, 14.386, Wait.USER)
    assert [span.length for span in first.added] == [16] * 32 + [9]
    assert (taken.format, taken.warnings) == ("bailian", ())
    assert "chat_id" in taken.why


def test_blocks_are_shared_by_id_between_chats(tmp_path: Path) -> None:
    other = row(7, None, 62.5, 521, list(range(1000, 1033)))
    sessions = load([save(tmp_path, FIRST, other)]).sessions
    one, another = (session.branches[0].calls[0].added for session in sessions)
    assert one == another
    assert [session.start for session in sessions] == [61.114, 62.5]


def test_a_second_answer_to_a_request_is_a_branch(tmp_path: Path) -> None:
    again = row(161, 159, 80, 676, [*range(1000, 1032), *range(3000, 3011)])
    after = row(162, 161, 90, 700, [*range(1000, 1032), *range(3000, 3010), 4000, 4001])
    (session,) = load([save(tmp_path, FIRST, SECOND, again, after)]).sessions
    main, branch = session.branches
    assert [call.kept for call in main.calls] == [0, 512]
    assert (branch.name, branch.parent, branch.spawned_by) == ("chat-161", "main", 0)
    assert [(call.kept, call.gap) for call in branch.calls] == [(512, 18.886), (672, 10.0)]


def test_a_request_whose_parent_is_cut_off_begins_a_session_with_a_warning(tmp_path: Path) -> None:
    trace, (taken,) = load_told([save(tmp_path, SECOND)])
    assert [(one.id, one.calls) for one in trace.sessions] == [("b-160", 1)]
    assert "(the first in line 1) go on from one that is not in the file" in taken.warnings[0]


def test_times_since_1970_count_from_the_first(tmp_path: Path) -> None:
    rows = [{**FIRST, "timestamp": 1.7e9 + 0.5}, {**SECOND, "timestamp": 1.7e9 + 2}]
    (session,) = load([save(tmp_path, *rows)]).sessions
    assert (session.start, session.branches[0].calls[1].gap) == (0.0, 1.5)
    rows = [{**FIRST, "timestamp": 1.7e12}, {**SECOND, "timestamp": 1.7e12 + 2}]
    _, (taken,) = load_told([save(tmp_path, *rows)])
    assert "counts neither from" in taken.warnings[0]


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([FIRST, FIRST], "line 2: chat_id: 159 is also that of line 1"),
        ([{**FIRST, "parent_chat_id": 159}], "line 1: parent_chat_id: 159 goes on from itself"),
        ([{**FIRST, "parent_chat_id": 160}, SECOND], "goes on from itself"),
        ([FIRST, {**SECOND, "timestamp": 1.7e9}], "line 2: timestamp: .* another clock"),
        ([FIRST, {**SECOND, "timestamp": "2024-05-10"}], "line 2: timestamp"),
        ([FIRST, {**SECOND, "timestamp": None}], "line 2: timestamp"),
        ([FIRST, {**SECOND, "hash_ids": [1] * 44}], "line 2: hash_ids: 44 ids"),
        ([FIRST, {**SECOND, "input_length": 10**12}], "line 2: input_length"),
    ],
)
def test_faults_name_the_line(tmp_path: Path, rows: list[Json], problem: str) -> None:
    with pytest.raises(TraceError, match=problem):
        load([save(tmp_path, *rows)])
