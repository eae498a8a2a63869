"""``alipes trace convert`` and ``sample``, file to file."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from alipes.cli.main import app
from alipes.replay.traces.load import load

ROWS = [
    {"timestamp": 1000 * i, "input_length": 16, "output_length": 2, "hash_ids": [0, i]}
    for i in range(1, 9)
]


def mooncake(folder: Path) -> Path:
    path = folder / "requests.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


def alipes(*arguments: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["trace", *map(str, arguments)])
    return result.exit_code, result.output


def test_convert_writes_what_it_read(tmp_path: Path) -> None:
    source, out = mooncake(tmp_path), tmp_path / "out.jsonl.gz"
    code, said = alipes("convert", source, "--to", "alipes", "--out", out, "--block", "8")
    assert code == 0, said
    assert f"8 sessions, 8 calls: {out}" in said.replace("\n", "")
    assert load([out]) == load([source], block=8)
    other = tmp_path / "agentic.jsonl"
    code, said = alipes("convert", out, "--to", "agentic-mooncake", "--out", other, "--block", "8")
    assert code == 0, said
    rows = [json.loads(line) for line in other.read_text().splitlines()]
    assert [row["hash_ids"] for row in rows] == [[0, i] for i in range(1, 9)]
    assert [row["timestamp"] for row in rows] == [row["timestamp"] for row in ROWS]


def test_sample_draws_whole_sessions_by_seed(tmp_path: Path) -> None:
    source = mooncake(tmp_path)
    outs = [tmp_path / f"{i}.jsonl" for i in range(3)]
    for out, seed in zip(outs, (7, 7, 8), strict=True):
        code, said = alipes(
            "sample", source, "--sessions", "3", "--seed", str(seed), "--out", out, "--block", "8"
        )
        assert code == 0, said
    assert outs[0].read_bytes() == outs[1].read_bytes() != outs[2].read_bytes()
    whole = load([source], block=8).sessions
    assert all(session in whole for session in load(outs[:1]).sessions)


def test_faults_are_one_line_and_write_nothing(tmp_path: Path) -> None:
    source, out = mooncake(tmp_path), tmp_path / "out.jsonl"
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"input_length": 0, "output_length": 1}\n')
    good = (source, "--to", "alipes", "--block", "8")
    for arguments, problem in [
        (("convert", source, "--to", "csv", "--out", out), "use one of alipes, agentic-mooncake"),
        (("convert", broken, "--to", "alipes", "--out", out), "line 1: input_length"),
        (("convert", tmp_path / "no", "--to", "alipes", "--out", out), "No such file"),
        (
            ("convert", *good, "--out", tmp_path / "no" / "x"),
            "no/x: No such file or directory",
        ),
        (("convert", source, "--to", "alipes", "--out", out), "2 ids for 16 tokens"),
        (("sample", source, "--sessions", "9", "--out", out, "--block", "8"), "there are 8"),
        (("sample", source, "--sessions", "1", "--out", out, "--format", "x"), "no format 'x'"),
    ]:
        code, said = alipes(*arguments)
        assert code == 2, said
        assert problem in " ".join(said.split())
    assert sorted(file.name for file in tmp_path.iterdir()) == ["broken.jsonl", "requests.jsonl"]


def test_info_says_what_a_file_was_taken_for_and_why(tmp_path: Path) -> None:
    source = mooncake(tmp_path)
    code, said = alipes("info", source, "--block", "8")
    assert code == 0, said
    assert f"{source}: mooncake: its first object has input_length, output_length" in said
    code, said = alipes("info", source, "--block", "8", "--format", "mooncake", "--json")
    assert code == 0, said
    found = json.loads(said)
    why = "--format says so"
    assert found["files"] == [
        {"file": str(source), "format": "mooncake", "why": why, "warnings": []}
    ]
    assert found["calls"] == 8
    csv = tmp_path / "t.csv"
    csv.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.1Z,5,1\n")
    assert f"{csv}: azure: its name ends in .csv" in alipes("info", csv)[1]


def test_info_warns_of_what_can_be_read_in_two_ways(tmp_path: Path) -> None:
    path = tmp_path / "u.jsonl"
    rows = [{"session_id": "s", "input_length": n, "output_length": 1} for n in (100, 150)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, said = alipes("info", path)
    assert code == 0, said
    assert f"warning: {path}: the rows of 1 sessions (the first begins in line 1)" in said
    code, said = alipes("info", path, "--prompts", "whole", "--json")
    assert json.loads(said)["prompt"]["max"] == 150
    out = tmp_path / "out.jsonl"
    code, said = alipes("convert", path, "--to", "alipes", "--out", out, "--prompts", "added")
    assert load([out]).sessions[0].branches[0].calls[1].prompt == 251
