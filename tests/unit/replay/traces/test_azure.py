"""Azure's CSV as it is published and as others write it."""

from __future__ import annotations

import gzip
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from alipes.replay.traces.load import load, load_told
from alipes.replay.traces.model import TraceError
from alipes.replay.traces.statistics import statistics

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
WEEK = HEADER + "2024-05-10 00:00:00.009930+00:00,2162,5\n2024-05-10 00:00:00.017335+00:00,2399,6\n"


def csv(folder: Path, text: str, name: str = "t.csv") -> Path:
    path = folder / name
    path.write_bytes(text.encode())
    return path


def rows(path: Path) -> list[tuple[str, float | None, int, int]]:
    """(id, start, prompt, output) of each session."""
    found = []
    for session in load([path]).sessions:
        (call,) = session.branches[0].calls
        found.append((session.id, session.start, call.prompt, call.output))
    return found


def test_stamps_have_fractions_and_zones(tmp_path: Path) -> None:
    assert rows(csv(tmp_path, WEEK)) == [("t-2", 0.0, 2162, 5), ("t-3", 0.007405, 2399, 6)]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("2024-05-10 00:00:00.0099300", "2024-05-10 00:00:00.0173350"),
        ("2024-05-10T00:00:00.009930Z", "2024-05-10T00:00:00.017335+00:00"),
        ("2024-05-10 00:00:00.009930 UTC", "2024-05-10 00:00:00.017335+0000"),
        ("2024-05-10 00:00:00.009930123-07", "2024-05-10 00:00:00.017335123-07:00"),
        (" 2024-05-09 23:59:59.999 ", "2024-05-10 00:00:00.006405"),
        ("2023-12-31 23:59:59.999", "2024-01-01 00:00:00.006405"),
        ("0001-01-01 00:00:00", "0001-01-01 00:00:00.007405"),
    ],
)
def test_a_time_is_the_same_however_it_is_written(tmp_path: Path, first: str, second: str) -> None:
    path = csv(tmp_path, f"{HEADER}{first},1,1\n{second},1,1\n")
    assert [row[1] for row in rows(path)] == [0.0, 0.007405]


def test_cells_may_be_quoted_and_rows_out_of_order(tmp_path: Path) -> None:
    text = '"2023-11-16 18:17:05.0","2162","5"\n"2023-11-16 18:17:03","2399","6"\n'
    expected = [("t-3", 0.0, 2399, 6), ("t-2", 2.0, 2162, 5)]
    for number, whole in enumerate(
        (
            HEADER + text,
            "\ufeff" + HEADER + text,
            HEADER.lower() + text.replace("\n", "\r\n"),
            (HEADER + text).replace("\n", "\r"),
            '"TIMESTAMP", "ContextTokens","GeneratedTokens"\n' + text,
        )
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert rows(csv(folder, whole)) == expected
        assert rows(csv(folder, whole, "t")) == expected
    packed = tmp_path / "t.csv.gz"
    packed.write_bytes(gzip.compress((HEADER + text).encode()))
    assert rows(packed) == expected


def test_columns_are_told_by_name_and_blank_lines_are_none(tmp_path: Path) -> None:
    text = "GeneratedTokens,NumImages,TIMESTAMP,ContextTokens\n\n5,2,2024-05-10 00:00:01,70\n  \n"
    assert rows(csv(tmp_path, text)) == [("t-3", 0.0, 70, 5)]


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("2023-05-10 00:00:00+00:00,1,1", "line 4: TIMESTAMP: its year is another"),
        ("2025-05-10 00:00:00+00:00,1,1", "line 4: TIMESTAMP: its year is another"),
        ("9999-05-10 00:00:00+00:00,1,1", "line 4: TIMESTAMP: .* a century away"),
        ("2024-05-10 00:00:01,1,1", "line 4: TIMESTAMP: .* another zone"),
        ("2024-05-10 00:00:01+02:00,1,1", "line 4: TIMESTAMP: .* another zone"),
        ("2024-05-10 00:00:01-00:30,1,1", "line 4: TIMESTAMP: .* another zone"),
        ("2024-05-10 00:00:01+00:00x,1,1", "line 4: TIMESTAMP: .* not a time"),
        ("2024-05-10,1,1", "line 4: TIMESTAMP: .* not a time"),
        ("1715299200,1,1", "line 4: TIMESTAMP: .* not a time"),
        ("2024-05-10 24:00:00+00:00,1,1", "line 4: TIMESTAMP: .* not a time"),
        (",1,1", "line 4: TIMESTAMP: .* not a time"),
        ("2024-05-10 00:00:01+00:00,99999999999,1", "line 4: ContextTokens"),
        ("2024-05-10 00:00:01+00:00,1,-1", "line 4: GeneratedTokens"),
        ("2024-05-10 00:00:01+00:00,1", "line 4: 2 cells"),
        ('"2024-05-10 00:00:01+00:00,1,1\n', "line 4: 1 cells"),
    ],
)
def test_what_cannot_be_is_named_by_its_line(tmp_path: Path, row: str, problem: str) -> None:
    with pytest.raises(TraceError, match=problem):
        load([csv(tmp_path, WEEK + row + "\n")])


def test_bytes_that_are_no_text_are_named_by_their_line(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(WEEK.encode() + b"\xff\xfe\n")
    with pytest.raises(TraceError, match="not text"):
        load([path])
    for text in (HEADER, "ARRIVED,Tokens\n", ""):
        with pytest.raises(TraceError, match=r"holds no session|is not the header"):
            load([csv(tmp_path, text)])


def test_several_files_stay_apart_and_are_counted_together(tmp_path: Path) -> None:
    code, chat = csv(tmp_path, WEEK, "code.csv"), csv(tmp_path, WEEK, "chat.csv")
    own = tmp_path / "m.jsonl"
    own.write_text('{"input_length": 9, "output_length": 1, "timestamp": 5}\n')
    trace, taken = load_told([code, own, chat])
    assert [one.format for one in taken] == ["azure", "mooncake", "azure"]
    names = ["code-2", "code-3", "m-1", "chat-2", "chat-3"]
    assert [session.id for session in trace.sessions] == names
    assert [trace.sessions[i].id for i in range(-5, 5)] == names + names
    assert [one.id for one in trace.sessions[1:4]] == names[1:4]
    figures = statistics(trace)
    assert (figures.sessions, figures.calls, figures.prompt.max) == (5, 5, 2399)
    assert figures.prompt_tokens == 2 * (2162 + 2399) + 9
    assert (figures.active_branches_max, figures.active_branches_mean) == (1, 1.0)
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(TraceError, match="'code-2' is also in"):
        load([code, csv(other, WEEK, "code.csv")])
    own.write_text('{"session_id": "code-3", "input_length": 9, "output_length": 1}\n')
    with pytest.raises(TraceError, match="'code-3' is also in"):
        load([code, own])


def test_figures_are_those_of_the_same_sessions_as_objects(tmp_path: Path) -> None:
    trace = load([csv(tmp_path, WEEK)])
    objects = type(trace)(trace.source, tuple(trace.sessions))
    assert statistics(trace) == statistics(objects)
    assert trace == objects


MEASURED = """
    import sys, tracemalloc
    from pathlib import Path
    from alipes.replay.traces.load import load
    from alipes.replay.traces.sample import sample
    from alipes.replay.traces.statistics import statistics
    tracemalloc.start()
    trace = load([Path(sys.argv[1])])
    figures = statistics(trace)
    assert len(sample(trace, 10, 1).sessions) == 10
    print(figures.calls, tracemalloc.get_traced_memory()[1])
"""


@pytest.mark.parametrize("reverse", [False, True], ids=["in order", "out of order"])
def test_a_row_takes_a_few_bytes(tmp_path: Path, reverse: bool) -> None:
    """At 60 bytes a row, the 44 million of a week take 2.6 GB."""
    count = 100_000
    body = [
        f"2024-05-1{i // 50_000} 0{i // 10_000}:{i // 100 % 60:02}:{i % 60:02}.000001+00:00,9,3\n"
        for i in range(count)
    ]
    path = csv(tmp_path, HEADER + "".join(reversed(body) if reverse else body))
    command = [sys.executable, "-P", "-c", textwrap.dedent(MEASURED), str(path)]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    # What does not grow with the rows is at most 2 MB.
    assert int(said[0]) == count
    assert int(said[1]) < 60 * count + 2_000_000
