"""When the sessions of a file arrived, from stamps that count from whenever."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from alipes.replay.traces.form import Session
from alipes.replay.traces.lines import line_error

_CALENDAR: Final = 1e8
"""Seconds; larger stamps count from 1970, smaller ones from the recording's begin."""
_REMEDY: Final = "give all rows stamps of one kind, or none"


def aligned(path: Path, made: Sequence[tuple[int, Session]]) -> tuple[Session, ...]:
    """The sessions of (line, session), in the lines' order, from stamps of the calendar brought to
    the first of them. Raises ``TraceError`` at a session without a stamp among others that have
    one, and at one whose stamp is of another kind than the first."""
    ordered = sorted(made, key=lambda one: one[0])
    stamped = [one.start for _, one in ordered if one.start is not None]
    if not stamped:
        return tuple(one for _, one in ordered)
    first = stamped[0]
    for line, session in ordered:
        if session.start is None:
            raise line_error(path, line, "timestamp", "is missing, others have one", _REMEDY)
        if (session.start >= _CALENDAR) != (first >= _CALENDAR):
            problem = f"{session.start:g} s is of another kind than the first, {first:g} s"
            raise line_error(path, line, "timestamp", problem, _REMEDY)
    begin = min(stamped) if first >= _CALENDAR else 0.0
    return tuple(replace(one, start=_since(one.start, begin)) for _, one in ordered)


def _since(start: float | None, begin: float) -> float | None:
    return None if start is None else round(start - begin, 6)
