"""Alipes' own format: a header line, then a session of the internal form a line.

It holds all that the form does, text included, so that what is read back is what was written.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from alipes.replay.traces.check import check, check_sessions
from alipes.replay.traces.form import Session, Trace
from alipes.replay.traces.lines import line_error, rows
from alipes.replay.traces.model import TraceError

NAME: Final = "alipes"
VERSION: Final = 1
REMEDY: Final = "expected a trace that alipes wrote (a header line, then a session a line)"


class Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``sessions`` is their number, None where it was not known when the file was begun."""

    format: str
    version: int
    source: str = ""
    sessions: int | None = None


HEADER = msgspec.json.Decoder(Header)
SESSION = msgspec.json.Decoder(Session)


def read(path: Path, data: bytes) -> Trace:
    """Raises ``TraceError``, also where sessions are missing at the end."""
    first, _, rest = data.partition(b"\n")
    header = next((row for _, row in rows(path, first, HEADER, REMEDY)), None)
    if header is None or header.format != NAME or header.version != VERSION:
        wanted = f'{{"format": "{NAME}", "version": {VERSION}}}'
        raise line_error(path, 1, "", f"is not the header {wanted}", REMEDY)
    # The header's line stays, empty, so that lines keep their numbers.
    numbered = list(rows(path, b"\n" + rest, SESSION, REMEDY))
    sessions = tuple(session for _, session in numbered)
    check_sessions(sessions, path, {session.id: number for number, session in numbered})
    if header.sessions is not None and header.sessions != len(sessions):
        problem = f"{len(sessions)} sessions, but the header says {header.sessions}"
        raise TraceError(path, "line 1: sessions", problem, "give the whole file")
    return Trace(header.source, sessions)


def write(path: Path, trace: Trace) -> Iterator[bytes]:
    """The lines of a file for ``path``. Raises ``TraceError`` before the first one."""
    check(trace, path)
    encode = msgspec.json.Encoder().encode
    yield encode(Header(NAME, VERSION, trace.source, len(trace.sessions)))
    for session in trace.sessions:
        yield encode(session)
