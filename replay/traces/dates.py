"""Recorded times that are written as dates."""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from alipes.replay.traces.clock import ONE_CLOCK, SILENCE, across, silences
from alipes.replay.traces.lines import line_error
from alipes.replay.traces.model import TraceError

REMEDY: Final = "expected a time such as 2024-05-10 00:00:00.009930+00:00"
_DAY: Final = 86_400
_TIME: Final = re.compile(
    r"(\d{4}-\d\d-\d\d)[ T](\d\d):(\d\d):(\d\d)(?:[.,](\d+))?\s*(Z|UTC|[+-]\d\d(?::?\d\d)?)?",
    re.IGNORECASE | re.ASCII,
)
_DIGITS: Final = (0, 1, 2, 3, 5, 6, 8, 9, 11, 12, 14, 15, 17, 18)
"""Where a time has digits, but for those of a fraction, which begin at 20."""


class Stamps:
    """The times of a file, all of one zone or all of none; 8 bytes each."""

    def __init__(self, path: Path, field: str) -> None:
        self._path, self._field = path, field
        self._ns = array("q")
        self._base: datetime | None = None  # midnight before the first time
        self._day, self._midnight = "", 0
        self._zone: str | None = "unknown"
        self._offsets: set[int | None] = set()

    def add_all(self, lines: Sequence[int], cells: Sequence[str]) -> None:
        """The times of these lines. Raises ``TraceError`` for what is no time, or of another zone
        than the first."""
        times = _alike(cells)
        if times is None:
            for line, cell in zip(lines, cells, strict=True):
                self._add(line, cell)
            return
        zone, days, since_midnight = times
        self._check_zone(lines[0], cells[0], zone)
        midnights = np.array([self._midnight_of(lines[day], cells[day]) for day in days])
        counts = np.diff([*days, len(cells)])
        self._ns.frombytes((np.repeat(midnights, counts) + since_midnight).tobytes())

    def _add(self, line: int, cell: str) -> None:
        cell = cell.strip()
        found = _TIME.fullmatch(cell)
        hours, minutes, seconds = map(int, found.group(2, 3, 4)) if found else (24, 0, 0)
        if found is None or hours > 23 or minutes > 59 or seconds > 59:
            raise self._error(line, f"{cell!r} is not a time", REMEDY)
        midnight = self._midnight_of(line, cell)
        self._check_zone(line, cell, found[6])
        fraction = int(found[5][:9].ljust(9, "0")) if found[5] else 0
        self._ns.append(midnight + ((hours * 60 + minutes) * 60 + seconds) * 10**9 + fraction)

    def _midnight_of(self, line: int, cell: str) -> int:
        """ns from ``_base`` to the begin of a time's day."""
        if cell[:10] == self._day:
            return self._midnight
        try:
            day = datetime.fromisoformat(cell[:10])
        except ValueError:
            raise self._error(line, f"{cell!r} is not a time", REMEDY) from None
        self._base = self._base or day
        days = (day - self._base).days
        if abs(days) > 36_500:
            problem = f"{cell!r} is a century away from the first time"
            raise self._error(line, problem, ONE_CLOCK)
        self._day, self._midnight = cell[:10], days * _DAY * 10**9
        return self._midnight

    def _check_zone(self, line: int, cell: str, zone: str | None) -> None:
        if zone == self._zone:
            return
        self._offsets.add(_offset(zone))
        if len(self._offsets) > 1:
            problem = f"{cell!r} is of another zone than the times before it"
            raise self._error(line, problem, "write all times in one zone, or all without")
        self._zone = zone

    def starts(self, lines: Sequence[int]) -> tuple[NDArray[np.int64], NDArray[np.intp] | None]:
        """(ns since the earliest time, in order of time; the places that put the rows into that
        order, None if they are in it). ``lines`` has the line of each. Raises ``TraceError`` where
        times of different years are far apart. Nothing can be added after it."""
        ns = np.frombuffer(self._ns, np.int64)
        if not len(ns):
            return ns, None
        risen = not bool((ns[1:] < ns[:-1]).any())
        order = None if risen else np.argsort(ns, kind="stable")
        ordered = ns if order is None else ns[order]
        pairs = silences(ordered, SILENCE * 10**9)
        starts = [at for before, at in pairs if self._year(before) != self._year(at)]
        if (place := across(ns, starts)) is not None:
            problem = f"its year is another than that of line {lines[0]}, with no request between"
            raise self._error(lines[place], problem, ONE_CLOCK)
        ordered -= ordered[0].copy()
        return ordered, order

    def _year(self, ns: int) -> int:
        return ((self._base or datetime.min) + timedelta(microseconds=int(ns) // 1000)).year

    def _error(self, line: int, problem: str, remedy: str) -> TraceError:
        return line_error(self._path, line, self._field, problem, remedy)


def _alike(cells: Sequence[str]) -> tuple[str | None, list[int], NDArray[np.int64]] | None:
    """(zone, places at which another day begins, ns since midnight of each) of times that are
    written alike and differ in their digits alone; None if they are not."""
    text, width = "".join(cells), len(cells[0])
    found = _TIME.fullmatch(cells[0])
    if found is None or not text.isascii() or {len(cell) for cell in cells} != {width}:
        return None
    fraction = range(20, 20 + min(len(found[5] or ""), 9))
    letters = np.frombuffer(text.encode(), np.uint8).reshape(len(cells), width)
    digits = letters[:, [*_DIGITS, *fraction]] - ord("0")  # what is below it becomes large
    rest = [place for place in range(width) if place not in _DIGITS and place not in fraction]
    if (digits > 9).any() or (letters[:, rest] != letters[0, rest]).any():
        return None
    hours, minutes, seconds = (digits[:, i] * 10 + digits[:, i + 1] for i in (8, 10, 12))
    if (hours > 23).any() or (minutes > 59).any() or (seconds > 59).any():
        return None
    ns = ((hours * np.int64(60) + minutes) * 60 + seconds) * 10**9
    for place in range(len(fraction)):
        ns += digits[:, 14 + place] * np.int64(10 ** (8 - place))
    changes = (digits[1:, :8] != digits[:-1, :8]).any(axis=1)
    return found[6], [0, *(np.flatnonzero(changes) + 1).tolist()], ns


def _offset(zone: str | None) -> int | None:
    """Minutes east of UTC; None where no zone is written."""
    if zone is None:
        return None
    if zone.upper() in ("Z", "UTC"):
        return 0
    hours, minutes = int(zone[1:3]), int(zone[3:].removeprefix(":") or 0)
    return (hours * 60 + minutes) * (-1 if zone[0] == "-" else 1)
