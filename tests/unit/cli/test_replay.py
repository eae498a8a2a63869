"""What ``alipes replay`` refuses before it asks the endpoint anything."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from alipes.cli.main import app
from alipes.replay.records import CallRecord
from alipes.replay.runs import Run, RunInfo, read_run, write_run
from alipes.replay.traces.form import MAIN, Branch, Call, Session, Span, Trace, Wait
from alipes.replay.traces.load import save

NOBODY = "http://127.0.0.1:9/v1"


def run(folder: Path, out: Path, *more: str) -> Result:
    trace = folder / "trace.jsonl"
    call = Call(4, 1, 0, (Span(-1, 0, 4),), wait=Wait.START)
    save(trace, Trace("t", (Session("s", (Branch(MAIN, (call,)),), "m"),)))
    command = ["replay", str(trace), "--base-url", NOBODY, "--out", str(out), *more]
    return CliRunner().invoke(app, command)


@pytest.fixture
def taken(tmp_path: Path) -> Path:
    call = CallRecord("s", "s.0", "m", 0, 0.0, 0.0, 0.0, 1.0, 1)
    write_run(tmp_path / "out", Run("out", RunInfo("replay of t", "out", "live"), (call,)))
    return tmp_path / "out"


def test_a_folder_with_a_run_is_left_alone(tmp_path: Path, taken: Path) -> None:
    before = read_run(taken)
    result = run(tmp_path, taken)
    assert result.exit_code == 2
    assert result.stderr == (
        f"--out: {taken} is not empty; go on with the run there by --resume, replace it by"
        " --overwrite, or name another folder\n"
    )
    assert read_run(taken) == before


@pytest.mark.parametrize("option", ["--resume", "--overwrite"])
def test_a_folder_may_be_taken_up_or_replaced(tmp_path: Path, taken: Path, option: str) -> None:
    """As far as the endpoint, which nobody is."""
    result = run(tmp_path, taken, option)
    assert "127.0.0.1:9" in result.stderr


def test_an_empty_folder_is_free(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    assert "127.0.0.1:9" in run(tmp_path, tmp_path / "out").stderr


def test_a_run_is_not_both_taken_up_and_replaced(tmp_path: Path, taken: Path) -> None:
    result = run(tmp_path, taken, "--resume", "--overwrite")
    assert result.exit_code == 2
    assert f"--resume goes on with the run in {taken}, --overwrite replaces it" in result.stderr
