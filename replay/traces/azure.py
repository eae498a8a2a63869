"""Azure's public LLM traces, CSV: ``TIMESTAMP,ContextTokens,GeneratedTokens``.

Each row is a session of one call with content of its own: the format knows no sharing. The files
of 2024 have 44 million rows, so rows are read one by one into columns.
"""

from __future__ import annotations

import csv
import re
from array import array
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from alipes.replay.traces.columns import Columns
from alipes.replay.traces.form import Trace
from alipes.replay.traces.lines import line_error, stem
from alipes.replay.traces.model import TraceError

COLUMNS: Final = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
REMEDY: Final = f"expected Azure's CSV with the columns {','.join(COLUMNS)}"
_STAMP: Final = re.compile(
    r"(?P<minute>\d{4}-\d\d-\d\d[ T]\d\d:\d\d):(?P<second>\d\d)(?P<part>\.\d+)?"
    r"(?P<zone>Z|[+-]\d\d:?\d\d)?",
    re.ASCII,
)


def is_header(line: bytes) -> bool:
    """Whether a file's first line is that of this format."""
    cells = line.decode("utf-8", "replace").strip().split(",")
    return _header(cells) == _header(COLUMNS)


def _header(cells: list[str] | tuple[str, ...]) -> list[str]:
    return [cell.strip().strip('"').strip().lower() for cell in cells]


def read(path: Path, data: bytes) -> Trace:
    """Raises ``TraceError``."""
    reader = _Reader(path)
    for number, cells in _rows(path, data):
        reader.read(number, cells)
    return Trace(path.name, reader.columns(), checked=True)


def _rows(path: Path, data: bytes) -> Iterator[tuple[int, list[str]]]:
    """(line number, cells) of all rows but the header and blank ones."""
    rows = csv.reader(_lines(path, data), strict=True)
    try:
        if _header(next(rows, [])) != _header(COLUMNS):
            raise line_error(path, 1, "", "is not the header", REMEDY)
        for cells in rows:
            if cells and (len(cells) > 1 or cells[0].strip()):
                yield rows.line_num, cells
    except csv.Error as error:
        raise line_error(path, rows.line_num, "", f"is not CSV ({error})", REMEDY) from None


def _lines(path: Path, data: bytes) -> Iterator[str]:
    start, number = 0, 0
    while start < len(data):
        end = data.find(b"\n", start)
        end = len(data) if end < 0 else end
        number += 1
        try:
            yield data[start:end].decode().removesuffix("\r")
        except UnicodeDecodeError as error:
            raise line_error(path, number, "", f"not text ({error})", REMEDY) from None
        start = end + 1


class _Reader:
    """Stamps are kept as whole and part seconds, so that none of their seven digits is lost."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._numbers = array("q")
        self._seconds = array("q")
        self._parts = array("d")
        self._prompts = array("i")
        self._outputs = array("i")
        self._minute, self._minute_seconds = "", 0
        self._first: tuple[str, str] | None = None

    def read(self, number: int, cells: list[str]) -> None:
        if len(cells) != len(COLUMNS):
            problem = f"{len(cells)} cells, not {len(COLUMNS)}"
            raise line_error(self._path, number, "", problem, REMEDY)
        prompt, output = (self._tokens(number, i, cells[i].strip()) for i in (1, 2))
        if prompt < 1:
            problem = "is 0"
            raise line_error(
                self._path, number, COLUMNS[1], problem, "a call needs at least one token"
            )
        whole, part = self._stamp(number, cells[0].strip())
        self._numbers.append(number)
        self._seconds.append(whole)
        self._parts.append(part)
        self._prompts.append(prompt)
        self._outputs.append(max(1, output))

    def columns(self) -> Columns:
        seconds = np.frombuffer(self._seconds, np.int64)
        parts = np.frombuffer(self._parts, np.float64)
        starts = parts
        if len(seconds):
            first = _earliest(seconds, parts)
            starts = np.round((seconds - seconds[first]) + (parts - parts[first]), 7)
        return Columns(
            stem(self._path),
            np.frombuffer(self._numbers, np.int64),
            starts,
            np.frombuffer(self._prompts, np.int32),
            np.frombuffer(self._outputs, np.int32),
        )

    def _stamp(self, number: int, cell: str) -> tuple[int, float]:
        """Whole seconds since 1970, and the part of one."""
        match = _STAMP.fullmatch(cell)
        if match is None:
            raise self._no_time(number, cell)
        zone = match["zone"] or ""
        zone = "+00:00" if zone == "Z" else zone
        self._same(number, cell, zone)
        minute = match["minute"]
        if minute + zone != self._minute:
            try:
                when = datetime.fromisoformat(f"{minute.replace('T', ' ')}:00{zone or '+00:00'}")
            except ValueError:
                raise self._no_time(number, cell) from None
            self._minute, self._minute_seconds = minute + zone, int(when.timestamp())
        second = int(match["second"])
        if second >= 60:
            raise self._no_time(number, cell)
        return self._minute_seconds + second, float(f"0{match['part'] or '.0'}")

    def _same(self, number: int, cell: str, zone: str) -> None:
        """A file is one recording: all of it has one zone, or none, and one year."""
        kind = (cell[:4], zone)
        if self._first is None:
            self._first = kind
        elif kind != self._first:
            year, first_zone = self._first
            problem = (
                f"{cell!r} is of another year than the first row, {year}"
                if kind[0] != year
                else f"{cell!r} is of another time zone than the first row, {first_zone or 'none'}"
            )
            raise line_error(self._path, number, COLUMNS[0], problem, "give recordings one by one")

    def _no_time(self, number: int, cell: str) -> TraceError:
        return line_error(self._path, number, COLUMNS[0], f"{cell!r} is not a time", REMEDY)

    def _tokens(self, number: int, column: int, cell: str) -> int:
        if not (cell.isascii() and cell.isdigit() and len(cell) < 10):
            problem = f"{cell!r} is not a number of tokens"
            raise line_error(self._path, number, COLUMNS[column], problem, REMEDY)
        return int(cell)


def _earliest(seconds: NDArray[np.int64], parts: NDArray[np.float64]) -> int:
    """The index of the first moment."""
    first = np.flatnonzero(seconds == seconds.min())
    return int(first[np.argmin(parts[first])])
