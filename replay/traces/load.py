"""Trace files of any known format in, one trace out; a trace out to a file."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from alipes.replay.traces import agentic_writer, own
from alipes.replay.traces.check import check
from alipes.replay.traces.form import Trace
from alipes.replay.traces.formats import READERS, Reading, format_of
from alipes.replay.traces.hash_ids import BLOCK
from alipes.replay.traces.lines import bytes_of
from alipes.replay.traces.model import TraceError
from alipes.replay.traces.text import Count, quarter

WRITERS: Final[Mapping[str, Callable[[Path, Trace, int], Iterator[bytes]]]] = {
    own.NAME: lambda path, trace, _: own.write(path, trace),
    "agentic-mooncake": agentic_writer.write,
}


def load(
    paths: Sequence[Path], format: str | None = None, count: Count = quarter, block: int = BLOCK
) -> Trace:
    """The sessions of all files, in order, each file read and checked whole. ``format`` is a
    name of ``READERS``, None to tell by name and content; ``count`` gives the tokens of a text
    (by default a quarter of its characters, an estimate), ``block`` those of a hash id where the
    format does not say. Raises ``TraceError`` for the first fault; ValueError for an unknown
    format."""
    if format is not None and format not in READERS:
        raise ValueError(f"no format {format!r}; use one of {', '.join(READERS)}")
    reading = Reading(count, block)
    sources: dict[str, Path] = {}
    traces = []
    for path in paths:
        trace = _read(path, format, reading)
        for session in trace.sessions:
            if session.id in sources:
                problem = f"session {session.id!r} is also in {sources[session.id]}"
                raise TraceError(path, "", problem, "give each file once, or rename a session")
            sources[session.id] = path
        traces.append(trace)
    sessions = tuple(session for trace in traces for session in trace.sessions)
    return Trace(", ".join(dict.fromkeys(trace.source for trace in traces)), sessions)


def _read(path: Path, format: str | None, reading: Reading) -> Trace:
    data = bytes_of(path)
    trace = READERS[format or format_of(path, data)](path, data, reading)
    if not trace.sessions:
        raise TraceError(path, "", "holds no session", "give a file with at least one")
    check(trace, path)
    return trace


def save(path: Path, trace: Trace, format: str = own.NAME, block: int = BLOCK) -> None:
    """Write a file of a format of ``WRITERS``, packed where its name ends in ``.gz``. It appears
    whole or not at all. Raises ``TraceError`` for a trace that does not hold together; OSError."""
    lines = WRITERS[format](path, trace, block)
    draft = path.with_name(f".{path.name}.part")
    try:
        with draft.open("wb") as raw:
            if path.suffix == ".gz":
                # Without a name and a time inside, the same trace is the same bytes.
                with gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as packed:
                    packed.writelines(line + b"\n" for line in lines)
            else:
                raw.writelines(line + b"\n" for line in lines)
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
