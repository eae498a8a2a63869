"""Trace files of any known format in, one trace out; a trace out to a file."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from alipes.replay.traces import agentic_writer, own
from alipes.replay.traces.check import check
from alipes.replay.traces.columns import Requests, joined, split
from alipes.replay.traces.form import Trace
from alipes.replay.traces.formats import READERS, TOGETHER, Reading, Taken, format_of
from alipes.replay.traces.hash_ids import BLOCK
from alipes.replay.traces.model import TraceError
from alipes.replay.traces.source import Source
from alipes.replay.traces.text import Count, quarter
from alipes.replay.traces.turns import Prompts

WRITERS: Final[Mapping[str, Callable[[Path, Trace, int], Iterator[bytes]]]] = {
    own.NAME: lambda path, trace, _: own.write(path, trace),
    "agentic-mooncake": agentic_writer.write,
}


class FileTaken(msgspec.Struct, frozen=True):
    """What a file was taken for and why, and in what other way it could be read."""

    file: str
    format: str
    why: str
    warnings: tuple[str, ...] = ()


def load(
    paths: Sequence[Path],
    format: str | None = None,
    count: Count = quarter,
    block: int = BLOCK,
    prompts: Prompts = Prompts.UNKNOWN,
) -> Trace:
    """The sessions of all files, in order, each file read and checked whole; files of a format
    whose sessions may be in several are read together. ``format`` is a name of ``READERS``, None
    to tell by name and content; ``count`` gives the tokens of a text (by default a quarter of its
    characters, an estimate), ``block`` those of a hash id where the format does not say,
    ``prompts`` what the lengths of a Mooncake session count. What can be read in two ways is logged
    as a warning. Raises ``TraceError`` for the first fault; ValueError for an unknown format."""
    return _load(paths, format, Reading(count, block, prompts))[0]


def load_told(
    paths: Sequence[Path],
    format: str | None = None,
    block: int = BLOCK,
    prompts: Prompts = Prompts.UNKNOWN,
) -> tuple[Trace, tuple[FileTaken, ...]]:
    """As ``load``, with what it took every file for in place of logged warnings."""
    warnings: dict[Path, list[str]] = {path: [] for path in paths}
    reading = Reading(quarter, block, prompts, lambda path, text: warnings[path].append(text))
    trace, taken = _load(paths, format, reading)
    files = zip(paths, taken, strict=True)
    told = (FileTaken(str(p), one.format, one.why, tuple(warnings[p])) for p, one in files)
    return trace, tuple(told)


def _load(
    paths: Sequence[Path], format: str | None, reading: Reading
) -> tuple[Trace, tuple[Taken, ...]]:
    if format is not None and format not in READERS:
        raise ValueError(f"no format {format!r}; use one of {', '.join(READERS)}")
    given = Taken(format, "--format says so") if format else None
    sources = [Source(path) for path in paths]
    taken = tuple(given or _told(source, keep=len(sources) == 1) for source in sources)
    formats = [one.format for one in taken]
    traces: list[tuple[Path, Trace]] = []
    for number, source in enumerate(sources):
        name = formats[number]
        if name not in TOGETHER:
            trace = READERS[name](source, reading)
        elif name in formats[:number]:
            continue
        else:
            together = [sources[i] for i, other in enumerate(formats) if other == name]
            trace = TOGETHER[name](together, reading)
        source.forget()
        if not trace.sessions:
            raise TraceError(source.path, "", "holds no session", "give a file with at least one")
        check(trace, source.path)
        traces.append((source.path, trace))
    _check_names(traces)
    origin = ", ".join(dict.fromkeys(trace.source for _, trace in traces))
    return Trace(origin, joined([trace.sessions for _, trace in traces])), taken


def _told(source: Source, keep: bool) -> Taken:
    taken = format_of(source)
    if not keep:
        source.forget()
    return taken


def _check_names(traces: Sequence[tuple[Path, Trace]]) -> None:
    """Raises ``TraceError`` where two files have a session of the same id."""
    seen: dict[str, Path] = {}
    columns: list[tuple[Path, Requests]] = []
    for path, trace in traces:
        sessions, requests = split(trace.sessions)
        for session in sessions:
            _check_name(session.id, path, seen.get(session.id))
            seen[session.id] = path
        for new in requests:
            for other, known in columns:
                if new.stem == known.stem and len(both := np.intersect1d(new.lines, known.lines)):
                    _check_name(f"{new.stem}-{both[0]}", path, other)
            columns.append((path, new))
    for path, new in columns:
        name = next((name for name in seen if new.holds(name)), "")
        _check_name(name, path, seen.get(name))


def _check_name(name: str, path: Path, other: Path | None) -> None:
    if other is not None:
        problem = f"session {name!r} is also in {other}"
        raise TraceError(path, "", problem, "give each file once, or rename a session")


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
