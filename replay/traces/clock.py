"""Recorded times as numbers: whether all of a file are there, and of one clock."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from alipes.replay.traces.lines import line_error

SILENCE: Final = 7 * 86_400
"""Seconds without any request after which times are of another clock."""
YEAR: Final = 366 * 86_400
EPOCH: Final = 10**9
"""Numbers from here on count from 1970, in whatever unit."""
ONE_CLOCK: Final = "give the requests of one recording, or make their times count from one moment"

_CHUNK: Final = 1 << 20
Row = tuple[int, float | None, float | None]
"""Line, time, and the delay after the row before."""


def silences(ordered: NDArray[Any], limit: float) -> Iterator[tuple[Any, Any]]:
    """(before, after) of each step above ``limit`` between rising values, which are looked at a
    part at a time."""
    for first in range(0, len(ordered), _CHUNK):
        part = ordered[first : first + _CHUNK + 1]
        for place in np.flatnonzero(np.diff(part) > limit):
            yield part[place], part[place + 1]


def across(values: NDArray[Any], starts: Sequence[Any]) -> int | None:
    """The place of the first of ``values`` that one of ``starts`` parts from the first value."""
    if not starts:
        return None
    sides = np.searchsorted(np.asarray(starts), values, "right")
    return int(np.argmax(sides != sides[0]))


def check_clock(
    path: Path, stamps: Sequence[tuple[int, float]], unit: float, silence: float = SILENCE
) -> None:
    """Raises ``TraceError`` at the first line whose time is of another clock than the first: more
    than ``silence`` seconds away, with no request between. ``stamps`` are (line, time in units of
    ``unit`` seconds)."""
    values = np.array([time for _, time in stamps])
    starts = [at for _, at in silences(np.sort(values), silence / unit)]
    if (place := across(values, starts)) is not None:
        (line, first), (other, time) = stamps[0], stamps[place]
        problem = f"{time:.15g} is of another clock than {first:.15g} in line {line}"
        raise line_error(path, other, "timestamp", problem, ONE_CLOCK)


def check_stamped(path: Path, sessions: Iterable[Sequence[Row]]) -> None:
    """Raises ``TraceError`` at the first row without a time that has to have one: what begins a
    session where others have times, and what a gap is measured from or to."""
    groups = list(sessions)
    stamped = [line for rows in groups for line, time, _ in rows if time is not None]
    for rows in groups if stamped else ():
        measured = any(time is not None and delay is None for _, time, delay in rows[1:])
        for place, (line, time, delay) in enumerate(rows):
            after = rows[place + 1][2] if place + 1 < len(rows) else 0.0
            needed = not place or (measured and (delay is None or after is None))
            if time is None and needed:
                problem = f"is missing, while line {stamped[0]} has one"
                raise line_error(path, line, "timestamp", problem, "give it, or leave all out")


def unit_doubt(first: float, unit: float) -> str:
    """What is odd about the earliest time of a file in units of ``unit`` seconds; empty if nothing
    is."""
    if first < EPOCH or EPOCH <= first * unit < 5 * EPOCH:
        return ""
    return (
        f"the earliest timestamp, {first:.15g}, counts neither from the recording's begin nor from"
        f" 1970 if it is in {'seconds' if unit == 1 else 'milliseconds'}, as which it is read;"
        " convert it if it is not"
    )


def begin_of(times: Iterable[float]) -> float:
    """What to take off the times of a file so that they count from its begin: nothing, unless they
    count from 1970."""
    first = min(times, default=0.0)
    return first if first >= EPOCH else 0.0
