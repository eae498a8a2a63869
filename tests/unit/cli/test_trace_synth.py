"""``alipes trace synth`` and ``alipes trace info``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from alipes.cli.main import app
from alipes.replay.traces.load import load


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["trace", *map(str, arguments)], env={"COLUMNS": "200"})


def test_a_made_file_is_what_the_library_makes(tmp_path: Path) -> None:
    out = tmp_path / "made.jsonl"
    made = run("synth", "swebench", "--out", out, "--sessions", 6, "--seed", 3, "--models", "a, b")
    assert made.exit_code == 0, made.output
    trace = load([out])
    assert [session.model for session in trace.sessions] == ["a", "b"] * 3
    assert made.stdout == (f"{out}: synthetic swebench, seed 3; 6 sessions, {trace.calls} calls\n")
    first = out.read_bytes()
    run("synth", "swebench", "--out", out, "--sessions", 6, "--seed", 3, "--models", "a,b")
    assert out.read_bytes() == first


def test_coding_is_drawn_from_a_file(tmp_path: Path) -> None:
    source, out = tmp_path / "source.jsonl", tmp_path / "made.jsonl"
    run("synth", "osworld-like", "--out", source, "--sessions", 3)
    made = run("synth", "coding", "--out", out, "--recorded", source, "--sessions", 9)
    assert made.exit_code == 0, made.output
    assert len(load([out]).sessions) == 9


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("synth", "nothing", "--out", "x"), "no workload 'nothing'; use one of swebench"),
        (("synth", "coding", "--out", "x"), "name their file, --recorded"),
        (("synth", "coding", "--out", "x", "--recorded", "missing"), "missing: "),
        (("synth", "swebench", "--out", "no/such/folder/x", "--sessions", 1), "no/such/folder/x: "),
        (("info", "missing.jsonl"), "missing.jsonl: "),
    ],
)
def test_a_mistake_is_one_line(
    arguments: tuple[object, ...], problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(*arguments)
    assert result.exit_code == 2
    [line] = result.stderr.splitlines()
    assert problem in line
    assert not list(tmp_path.iterdir())


def test_info_prints_the_figures(tmp_path: Path) -> None:
    out = tmp_path / "made.jsonl"
    run("synth", "astropy-30", "--out", out)
    shown = run("info", out)
    assert shown.exit_code == 0, shown.output
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in shown.stdout.splitlines()]
    assert ["calls of glm5-nvfp4", "320"] in rows
    assert ["gaps after tool above 10 s", "2.2%"] in rows
    assert ["calls a session", "30", "32.0", "20", "101", "101", "101"] in rows
    figures = json.loads(run("info", out, "--json", "--gap-cap", 0.001).stdout)
    assert figures["calls"] == 960
    assert figures["gaps"]["tool"]["above_cap"] == 1.0
    assert figures["source"] == "synthetic astropy-30, seed 1"
