from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner, Result

from alipes.cli.main import app
from alipes.replay.records import CallRecord
from alipes.replay.runs import Run, RunInfo, write_run


def tiny(configuration: str, took: float, error: str = "") -> Run:
    """Six sessions of one call each."""
    calls = tuple(
        CallRecord(
            session=f"s{number}",
            request_id=f"s{number}.0",
            model="m",
            index=0,
            gap=0.0,
            intended=1.0,
            sent=1.0,
            finished=1.0 + took * (number + 1),
            expected_tokens=3,
            ttft=took / 2,
            error=error,
        )
        for number in range(6)
    )
    return Run("", RunInfo("tiny", configuration, "simulated"), calls)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for name, took in (("fast", 1.0), ("slow", 3.0)):
        write_run(tmp_path / "runs" / name, tiny(name, took))
    return tmp_path / "runs"


def call(*words: str | Path) -> Result:
    return CliRunner().invoke(app, ["report", *map(str, words)])


def test_a_folder_of_runs_becomes_a_report(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = call(runs, "--out", out, "--title", "A title", "--baseline", "slow")
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout == f"2 runs, 2 figures: {out}/report.html\n"
    text = (out / "report.md").read_text()
    assert text.startswith("# A title\n")
    assert "| fast | slow | 3.00 [3.00, 3.00] |" in text
    assert (out / "report.html").exists()
    assert msgspec.json.decode((out / "report.json").read_bytes())["title"] == "A title"


def test_the_first_folder_named_is_the_baseline(runs: Path, tmp_path: Path) -> None:
    done = call(runs / "slow", runs / "fast", runs, "--out", tmp_path / "out")
    assert done.stdout.startswith("2 runs,")
    assert "| fast | slow | 3.00" in (tmp_path / "out" / "report.md").read_text()


def test_warnings_go_to_stderr(runs: Path, tmp_path: Path) -> None:
    cut = tiny("cut", 1.0)
    write_run(runs / "cut", msgspec.structs.replace(cut, calls=cut.calls[:3]))
    done = call(runs, "--out", tmp_path / "out")
    assert done.exit_code == 0
    assert "warning: cut: only 3 sessions" in done.stderr


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("absent", None, "absent/run.json: No such file or directory; give a folder that"),
        ("empty", (), "empty: the run has no calls that count"),
        ("failed", tiny("failed", 1.0, "HTTP 503").calls, "failed: none of its 6 calls succeeded"),
    ],
)
def test_a_folder_without_a_usable_run_is_one_line(
    runs: Path, tmp_path: Path, name: str, content: tuple[CallRecord, ...] | None, told: str
) -> None:
    if content is not None:
        write_run(tmp_path / name, msgspec.structs.replace(tiny(name, 1.0), calls=content))
    done = call(runs, tmp_path / name, "--out", tmp_path / "out")
    assert done.exit_code == 2
    assert told in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_broken_line_is_named(runs: Path, tmp_path: Path) -> None:
    (runs / "fast" / "calls.jsonl").write_text('{"session": 1}\n')
    done = call(runs, "--out", tmp_path / "out")
    assert done.exit_code == 2
    assert "fast/calls.jsonl: " in done.stderr
    assert done.stderr.count("\n") == 1


def test_an_unknown_baseline_names_those_there_are(runs: Path, tmp_path: Path) -> None:
    done = call(runs, "--out", tmp_path / "out", "--baseline", "none")
    assert done.exit_code == 2
    assert "--baseline none: no run has this configuration; there are fast, slow" in done.stderr
