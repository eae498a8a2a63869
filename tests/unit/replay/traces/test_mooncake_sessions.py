"""Rows of a Mooncake session: what their lengths count, and what their times must be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from alipes.replay.traces.load import load, load_told
from alipes.replay.traces.model import TraceError
from alipes.replay.traces.turns import Prompts

Json = dict[str, object]


def row(time: float | None, length: int, output: int, ids: list[int] | None = None) -> Json:
    own: Json = {"input_length": length, "output_length": output}
    own |= {"hash_ids": ids} if ids else {}
    return own | ({"timestamp": time} if time is not None else {})


def session(name: str, *rows: Json) -> list[Json]:
    return [{"session_id": name, **row} for row in rows]


WHOLE = session("s", row(0, 1000, 600, [1, 2]), row(9000, 1300, 50, [1, 3, 4]))
WHOLE += session("s", row(12000, 1500, 50, [1, 3, 5]))
ADDED = session("a", row(0, 1000, 600, [1, 2]), row(9000, 1300, 50, [3, 4, 5]))
UNTOLD = session("u", row(0, 1000, 600), row(9000, 1300, 50), row(12000, 2500, 50))


def save(folder: Path, rows: list[Json], end: str = "\n") -> Path:
    path = folder / "m.jsonl"
    path.write_bytes("".join(json.dumps(row) + end for row in rows).encode())
    return path


def read(
    folder: Path, rows: list[Json], prompts: Prompts = Prompts.UNKNOWN, end: str = "\n"
) -> tuple[dict[str, list[tuple[int, int]]], tuple[str, ...]]:
    """((prompt, kept) of each call by session, warnings)"""
    trace, (taken,) = load_told([save(folder, rows, end)], prompts=prompts)
    calls = {
        one.id: [(call.prompt, call.kept) for call in one.branches[0].calls]
        for one in trace.sessions
    }
    return calls, taken.warnings


@pytest.mark.parametrize("end", ["\n", "\r\n", "\n\n"])
def test_rows_that_begin_alike_are_whole_prompts(tmp_path: Path, end: str) -> None:
    calls, warnings = read(tmp_path, WHOLE, end=end)
    assert calls == {"s": [(1000, 0), (1300, 512), (1500, 1024)]}
    assert warnings == ()


def test_rows_that_begin_differently_are_what_is_added(tmp_path: Path) -> None:
    assert read(tmp_path, ADDED) == ({"a": [(1000, 0), (2900, 1600)]}, ())
    falling = session("f", row(0, 100, 10), row(5, 30, 1), row(9, 40, 1))
    assert read(tmp_path, falling) == ({"f": [(100, 0), (140, 110), (181, 141)]}, ())


def test_what_rows_do_not_tell_is_a_warning_and_can_be_said(tmp_path: Path) -> None:
    calls, (warning,) = read(tmp_path, UNTOLD)
    assert calls == {"u": [(1000, 0), (2900, 1600), (5450, 2950)]}
    assert "1 sessions (the first begins in line 1) do not tell" in warning
    assert "--prompts whole" in warning
    whole = {"u": [(1000, 0), (1300, 1000), (2500, 1350)]}
    assert read(tmp_path, UNTOLD, Prompts.WHOLE) == (whole, ())
    assert read(tmp_path, UNTOLD, Prompts.ADDED) == (calls, ())
    # The ids of parts of blocks differ whatever the blocks begin with.
    small = session("p", row(0, 100, 6, [1]), row(9, 130, 5, [2]))
    assert len(read(tmp_path, small)[1]) == 1
    assert read(tmp_path, session("one", row(0, 100, 6)))[1] == ()


def test_other_sessions_of_the_file_tell_it(tmp_path: Path) -> None:
    calls, warnings = read(tmp_path, [*WHOLE, *UNTOLD])
    assert (calls["u"], warnings) == ([(1000, 0), (1300, 1000), (2500, 1350)], ())
    calls, warnings = read(tmp_path, [*ADDED, *UNTOLD])
    assert (calls["u"], warnings) == ([(1000, 0), (2900, 1600), (5450, 2950)], ())
    assert len(read(tmp_path, [*ADDED, *WHOLE, *UNTOLD])[1]) == 1
    many = [one for i in range(10) for one in session(f"u{i}", row(0, 10, 6), row(5, 13, 5))]
    assert len(read(tmp_path, [*ADDED, *many])[1]) == 1


def test_gaps_and_starts_come_from_the_times(tmp_path: Path) -> None:
    (one,) = load([save(tmp_path, WHOLE)]).sessions
    assert (one.start, [call.gap for call in one.branches[0].calls]) == (0.0, [0.0, 9.0, 3.0])


EPOCH = 1_700_000_000_000


def test_times_since_1970_count_from_the_first(tmp_path: Path) -> None:
    rows = [row(EPOCH + 2000, 9, 1), row(EPOCH, 9, 1)]
    trace, (taken,) = load_told([save(tmp_path, rows)])
    assert [one.start for one in trace.sessions] == [2.0, 0.0]
    assert taken.warnings == ()
    for unit in (1000, 0.001):
        rows = [row(EPOCH / unit, 9, 1), row(EPOCH / unit + 1, 9, 1)]
        _, (taken,) = load_told([save(tmp_path, rows)])
        assert "counts neither from the recording's begin nor from 1970" in taken.warnings[0]


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        ([row(EPOCH, 100, 5, [1]), row(2000, 100, 5, [1])], 2),
        ([row(0, 9, 1), row(5, 9, 1), row(EPOCH, 9, 1)], 3),
        ([row(0, 9, 1), row(EPOCH // 1000, 9, 1)], 2),
        ([row(0, 9, 1), row(None, 9, 1)], 2),
        ([row(None, 9, 1), row(0, 9, 1)], 1),
        (session("s", row(0, 9, 1), row(None, 9, 1), row(5, 9, 1)), 2),
        (session("s", row(0, 9, 1), row(5, 9, 1), row(None, 9, 1)), 3),
        (session("s", row(None, 9, 1), row(5, 9, 1)), 1),
        (session("s", row(0, 9, 1), row(EPOCH, 9, 1)), 2),
        ([*WHOLE, *session("t", row(None, 9, 1))], 4),
        ([row(0, 9, 1), {**row(None, 9, 1), "timestamp": "2024-05-10T00:00:00Z"}], 2),
        ([row(0, 9, 1), row(10**18, 9, 1)], 2),
    ],
)
def test_times_that_do_not_go_together_are_named(
    tmp_path: Path, rows: list[Json], line: int
) -> None:
    with pytest.raises(TraceError, match=rf"m\.jsonl: line {line}: timestamp: "):
        load([save(tmp_path, rows)])


def test_times_are_needed_where_something_is_measured_from_them(tmp_path: Path) -> None:
    later = [{**row(None, 9, 1), "delay": 250.0}, {**row(7000, 9, 1), "delay": 5.0}]
    rows = [*session("s", row(0, 9, 1), *later), *session("t", row(None, 9, 1))[:0]]
    (one,) = load([save(tmp_path, rows)]).sessions
    assert [call.gap for call in one.branches[0].calls] == [0.0, 0.25, 0.005]
    without = load([save(tmp_path, [row(None, 9, 1), row(None, 9, 1)])]).sessions
    assert [one.start for one in without] == [None, None]


def test_agentic_rows_of_two_clocks_are_refused(tmp_path: Path) -> None:
    rows = [
        {"request_id": "a", "prefix_reset": True, **row(EPOCH, 9, 1)},
        {"request_id": "b", **row(2000, 9, 1)},
    ]
    with pytest.raises(TraceError, match="line 2: timestamp: 2000 is of another clock"):
        load([save(tmp_path, rows)])
