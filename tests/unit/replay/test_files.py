"""Files stay whole where a write comes to a sudden end."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from alipes.replay.files import Lines, write_whole


@contextmanager
def no_file_above(size: int) -> Iterator[None]:
    """As on a disk that is full, a write stops in the middle."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_file_that_cannot_be_written_keeps_what_it_had(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    write_whole(file, b"before")
    with no_file_above(100), pytest.raises(OSError, match="large"):
        write_whole(file, b"x" * 1000)
    assert file.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [file]


def test_a_line_that_does_not_fit_is_not_there(tmp_path: Path) -> None:
    file = tmp_path / "calls.jsonl"
    file.write_bytes(b"first\n")
    lines = Lines(file)
    lines.add(b"second\n")
    with no_file_above(20), pytest.raises(OSError, match="large"):
        lines.add(b"third, and much longer\n")
    assert file.read_bytes() == b"first\nsecond\n"
    lines.add(b"fourth\n")
    lines.close()
    assert file.read_bytes() == b"first\nsecond\nfourth\n"
