"""``alipes replay`` against a small real server: what is sent, and what is reported."""

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from alipes.cli.replay import replay
from alipes.replay.runs import read_run

SHIPPED = Path(__file__).parents[3] / "replay" / "data" / "marshmallow-1867-xml.traj"
# A shell's background job ignores SIGINT, and hands that down.
SCRIPT = """
import signal, typer
from alipes.cli.replay import replay
signal.signal(signal.SIGINT, signal.default_int_handler)
typer.run(replay)
"""


def run(url: str, out: Path, *more: str, files: tuple[Path, ...] = (SHIPPED,)) -> Result:
    app = typer.Typer()
    app.command()(replay)
    arguments = [*map(str, files), "--base-url", url, "--models", "small,large"]
    return CliRunner().invoke(app, [*arguments, "--out", str(out), "--overwrite", *more])


def lines(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "calls.jsonl").read_text().splitlines()]


def two_calls(folder: Path, gap: float = 0.0) -> Path:
    task = {"role": "user", "content": "go"}
    history = [task, {"role": "assistant", "content": "one two"}, task]
    history.append({"role": "assistant", "content": "three"})
    path = folder / "two.traj"
    steps = [{"response": "one two", "execution_time": gap}, {"response": "three"}]
    path.write_text(json.dumps({"history": history, "trajectory": steps}))
    return path


def test_two_replays_send_the_same_and_reuse_connections(tmp_path: Path, serve: Any) -> None:
    sent = []
    for number in range(2):
        with serve() as (url, seen):
            result = run(url, tmp_path / str(number))
        assert result.exit_code == 0, result.output
        assert len(seen.calls) == 22
        assert len(seen.counted) == len(set(seen.counted)) * 2
        assert seen.connections < 40
        names = ("x-session-id", "x-request-id", "content-type")
        kept = {
            headers["x-request-id"]: ([headers[n] for n in names], body)
            for headers, body in seen.calls
        }
        for session in {headers["x-session-id"] for headers, _ in seen.calls}:
            own = [h["x-request-id"] for h, _ in seen.calls if h["x-session-id"] == session]
            assert own == [f"{session}.{index}" for index in range(11)]
        sent.append(kept)
    assert sent[0] == sent[1]
    outputs = [
        sorted((line["request_id"], line["output"]) for line in lines(tmp_path / name))
        for name in ("0", "1")
    ]
    assert outputs[0] == outputs[1]


def test_the_report_has_sessions_calls_and_models(tmp_path: Path, serve: Any) -> None:
    with serve() as (url, _):
        table = run(url, tmp_path)
        printed = json.loads(run(url, tmp_path, "--json", "--sessions", "3").stdout)
    assert table.exit_code == 0
    assert "Sessions" in table.stdout
    assert "Calls" in table.stdout
    assert [row["model"] for row in printed["models"]] == ["small", "large", "all"]
    assert len(printed["sessions"]) == 6
    assert all(row["sct"] >= 0 and row["calls"] == 11 for row in printed["sessions"])
    assert printed == json.loads((tmp_path / "summary.json").read_text())
    for line in lines(tmp_path):
        assert line["completion_tokens"] == line["expected_tokens"]
        assert line["intended"] <= line["sent"] <= line["finished"]
        assert line["instance"] == "hot0"


def test_many_sessions_are_told_in_few_tables(tmp_path: Path, serve: Any) -> None:
    with serve() as (url, _):
        few, some, many = (
            run(url, tmp_path / f"of-{n}", "--sessions", str(n), files=(two_calls(tmp_path),))
            for n in (2, 3, 11)
        )
    assert few.stdout.count("Calls of ") == 4
    assert "Calls of " not in some.stdout
    assert "Sessions: seconds" in some.stdout
    assert "Sessions: seconds" not in many.stdout
    assert f"22 sessions; each is a row of {tmp_path}/of-11/summary.json\n" in many.stdout
    assert len(many.stdout.splitlines()) < 15
    for result, calls, folder in ((few, 8, "of-2"), (some, 12, "of-3"), (many, 44, "of-11")):
        assert result.exit_code == 0
        last = result.stdout.splitlines()[-1]
        assert last.startswith(f"{calls} calls in ")
        assert last.endswith(f"each is a line of {tmp_path}/{folder}/calls.jsonl")


def test_reports_call_a_run_by_its_folder_or_by_name(tmp_path: Path, serve: Any) -> None:
    files = (two_calls(tmp_path),)
    with serve() as (url, _):
        run(url, tmp_path / "leases-off", files=files)
        run(url, tmp_path / "again", "--name", "leases-on", files=files)
    names = [read_run(tmp_path / out).info.configuration for out in ("leases-off", "again")]
    assert names == ["leases-off", "leases-on"]


def test_the_gap_is_kept_and_ttft_counts_from_the_intended_enqueue(
    tmp_path: Path, serve: Any
) -> None:
    with serve(before_first=lambda: time.sleep(0.1)) as (url, _):
        result = run(url, tmp_path, "--gap-cap", "0.3", files=(two_calls(tmp_path, gap=20.0),))
    assert result.exit_code == 0, result.output
    by_session: dict[str, list[dict[str, Any]]] = {}
    for line in lines(tmp_path):
        by_session.setdefault(line["session"], []).append(line)
    for first, second in by_session.values():
        assert second["gap"] == 0.3
        assert second["intended"] == pytest.approx(first["finished"] + 0.3, abs=1e-6)
        assert second["ttft"] >= 0.1 + second["sent"] - second["intended"]


def test_a_long_session_is_shortened_to_the_context(tmp_path: Path, serve: Any) -> None:
    with serve(context=2000) as (url, seen):
        result = run(url, tmp_path, "--json")
    assert result.exit_code == 0, result.output
    assert all(0 < row["shortened"] < 1 for row in json.loads(result.stdout)["sessions"])
    prompts: dict[str, list[Any]] = {}
    for headers, raw in seen.calls:
        body = json.loads(raw)
        words = sum(len(message["content"].split()) for message in body["messages"])
        assert words + body["max_tokens"] <= 2000
        prompts.setdefault(headers["x-session-id"], []).append(body["messages"])
    for session in prompts.values():
        for before, after in itertools.pairwise(session):
            assert after[: len(before)] == before
    with serve(context=300) as (url, _):
        result = run(url, tmp_path)
    assert result.exit_code == 2
    assert "longer context" in result.stderr


def test_failed_calls_are_counted_shown_and_end_their_session(tmp_path: Path, serve: Any) -> None:
    def fail(body: dict[str, Any]) -> tuple[int, str] | None:
        late = body["model"] == "large" and len(body["messages"]) > 6
        return (429, "the queue is full") if late else None

    with serve(fail=fail) as (url, _):
        result = run(url, tmp_path)
    assert result.exit_code == 1
    assert "1 failed: 429: the queue is full" in result.stdout
    summary = json.loads((tmp_path / "summary.json").read_text())
    small, large = summary["sessions"]
    assert (small["calls"], small["failed"]) == (11, 0)
    assert (large["calls"], large["failed"], large["sct"]) == (3, 1, None)


def test_a_cut_stream_is_a_failed_call(tmp_path: Path, serve: Any) -> None:
    with serve(cut=True) as (url, _):
        result = run(url, tmp_path)
    assert result.exit_code == 1
    assert "without [DONE]" in result.stdout


def test_without_tokenize_lengths_are_estimated_and_told(tmp_path: Path, serve: Any) -> None:
    with serve(tokenize=False) as (url, _):
        result = run(url, tmp_path, files=(two_calls(tmp_path),))
    assert result.exit_code == 0
    assert "no /tokenize" in result.stdout
    assert sorted(line["expected_tokens"] for line in lines(tmp_path)) == [2, 2, 3, 3]


@pytest.mark.parametrize(
    ("models", "url", "told"),
    [
        ("small", "http://127.0.0.1:9", "cannot reach http://127.0.0.1:9"),
        ("small", "127.0.0.1", "is not a URL"),
        ("tiny", "", "no model 'tiny'; it serves large, small"),
        (" , ", "", "--models names no model"),
    ],
)
def test_what_cannot_start_is_one_clear_line(
    tmp_path: Path, serve: Any, models: str, url: str, told: str
) -> None:
    earlier = tmp_path / "calls.jsonl"
    earlier.write_text("an earlier replay")
    with serve() as (served, seen):
        result = run(url or served, tmp_path, "--models", models)
    assert result.exit_code == 2
    [line] = filter(None, result.stderr.splitlines())
    assert told in line
    assert seen.calls == []
    assert earlier.read_text() == "an earlier replay"


def test_the_key_is_sent_and_asked_for(tmp_path: Path, serve: Any) -> None:
    with serve(key="secret") as (url, seen):
        refused = run(url, tmp_path)
        accepted = run(url, tmp_path, "--api-key", "secret", files=(two_calls(tmp_path),))
    assert refused.exit_code == 2
    assert "--api-key" in refused.stderr
    assert accepted.exit_code == 0
    assert seen.calls[0][0]["authorization"] == "Bearer secret"


def test_an_interrupt_leaves_a_valid_partial_result(tmp_path: Path, serve: Any) -> None:
    waiting, go = threading.Event(), threading.Event()
    answered = iter(range(10))

    def before_first() -> None:
        if next(answered) >= 3:
            waiting.set()
            go.wait(60)

    with serve(before_first=before_first) as (url, _):
        arguments = [str(SHIPPED), "--base-url", url, "--models", "small", "--out", str(tmp_path)]
        process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"COLUMNS": "120"},
        )
        try:
            assert waiting.wait(60)
            process.send_signal(signal.SIGINT)
            output, errors = process.communicate(timeout=60)
        finally:
            go.set()
            process.kill()
    assert process.returncode == 130
    assert "Interrupted" in output
    assert "Traceback" not in errors
    assert [line["index"] for line in lines(tmp_path)] == [0, 1, 2]
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["complete"] is False
    assert summary["sessions"][0]["calls"] == 3
