"""The file of a recording: private, bounded, whole lines, and never in the way."""

import json
import os
import stat
import threading
from pathlib import Path
from typing import Any

import pytest

from alipes.gateway.telemetry import recorder as module
from alipes.gateway.telemetry.recorder import CallRecorder, RecordError

from .test_recording import call

LARGE = 1 << 20


def recorded(recorder: CallRecorder, count: int) -> list[Any]:
    recorder.open(0)
    for number in range(count):
        recorder.take(call(number=number))
    recorder.close()
    return [json.loads(line) for line in recorder.path.read_bytes().splitlines()]


def test_calls_are_in_the_file_after_close_and_it_is_private(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    path.touch(0o644)
    header, *lines = recorded(CallRecorder(path, LARGE), 300)
    assert (header["kind"], header["version"], header["block_tokens"]) == ("recording", 1, 64)
    assert [line["number"] for line in lines] == list(range(300))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_second_recording_follows_the_first_even_after_half_a_line(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    recorded(CallRecorder(path, LARGE), 1)
    with path.open("ab") as file:
        file.write(b'{"kind": "ca')
    recorder = CallRecorder(path, LARGE)
    recorder.open(0)
    recorder.take(call())
    recorder.close()
    lines = path.read_bytes().splitlines()
    assert lines[2] == b'{"kind": "ca'
    assert [json.loads(line)["kind"] for line in lines[:2] + lines[3:]] == [
        "recording",
        "call",
        "recording",
        "call",
    ]
    first, second = (json.loads(lines[index])["session"] for index in (1, 4))
    assert first != second


def test_the_file_stays_within_its_bound(tmp_path: Path) -> None:
    recorder = CallRecorder(tmp_path / "calls.jsonl", 2_000)
    lines = recorded(recorder, 50)
    assert 1 < len(lines) < 50
    assert recorder.path.stat().st_size <= 2_000
    assert recorder.dropped == 50 - (len(lines) - 1)


def test_a_full_queue_drops_calls_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUEUE", 2)
    go = threading.Event()

    def decode(model: str, tokens: Any) -> str:
        go.wait(10)
        return ""

    recorder = CallRecorder(tmp_path / "calls.jsonl", LARGE, decode)
    recorder.open(0)
    for _ in range(10):
        recorder.take(call())
    assert recorder.dropped >= 7
    go.set()
    recorder.close()
    assert len(recorder.path.read_bytes().splitlines()) == 1 + 10 - recorder.dropped


def test_a_full_disk_ends_the_recording_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = CallRecorder(tmp_path / "calls.jsonl", LARGE)
    recorder.open(0)
    write = os.write

    def full(file: int, data: bytes) -> int:
        if len(data) > 10:
            return write(file, data[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    recorder.take(call())
    recorder.close()
    monkeypatch.undo()
    assert recorder.dropped == 1
    [header] = recorder.path.read_bytes().splitlines()
    assert json.loads(header)["kind"] == "recording"


def test_a_file_that_cannot_be_written_is_told_before_anything_starts(tmp_path: Path) -> None:
    recorder = CallRecorder(tmp_path / "none" / "calls.jsonl", LARGE)
    with pytest.raises(RecordError, match=r"gateway\.record\.file: .*No such file or directory"):
        recorder.open(0)
    recorder.close()
