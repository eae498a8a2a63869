"""Azure's public LLM traces, CSV with the columns TIMESTAMP, ContextTokens and GeneratedTokens.

Columns are told by their names, in any order and case; others are passed over. Each row is a
session of one call with content of its own: the format knows no sharing. Rows are read one by one
and kept as columns, in order of time: a week's trace has 44 million.
"""

from __future__ import annotations

import csv
import io
from array import array
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

import numpy as np

from alipes.replay.traces.columns import Requests
from alipes.replay.traces.dates import Stamps
from alipes.replay.traces.form import Trace
from alipes.replay.traces.lines import line_error, stem
from alipes.replay.traces.source import Source

COLUMNS: Final = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
REMEDY: Final = f"expected Azure's CSV with the columns {','.join(COLUMNS)}"
BATCH: Final = 512
"""Rows looked at together."""
Row = tuple[int, list[str]]


def is_header(cells: Sequence[str]) -> bool:
    """Whether these are the names of the columns."""
    return {name.casefold() for name in COLUMNS} <= {cell.strip().casefold() for cell in cells}


def read(source: Source) -> Trace:
    """Raises ``TraceError``."""
    path = source.path
    lines, prompts, outputs = array("i"), array("i"), array("i")
    stamps = Stamps(path, COLUMNS[0])
    with source.stream() as file:
        numbered = _rows(path, io.TextIOWrapper(file, "utf-8-sig", newline=""))
        places = _places(path, numbered)
        width = max(places) + 1
        while batch := list(islice(numbered, BATCH)):
            for number, cells in batch:
                if len(cells) < width:
                    problem = f"{len(cells)} cells, not {width} or more"
                    raise line_error(path, number, "", problem, REMEDY)
            numbers = [number for number, _ in batch]
            when, prompt, output = ([cells[place] for _, cells in batch] for place in places)
            stamps.add_all(numbers, when)
            lines.extend(numbers)
            prompts.extend(_tokens(path, numbers, COLUMNS[1], prompt, 1))
            outputs.extend(max(1, drawn) for drawn in _tokens(path, numbers, COLUMNS[2], output, 0))
    starts, order = stamps.starts(lines)
    columns = [np.frombuffer(column, np.int32) for column in (lines, prompts, outputs)]
    if order is not None:
        columns = [column[order] for column in columns]
    return Trace(path.name, Requests(stem(path), starts, *columns))


def _rows(path: Path, text: io.TextIOWrapper) -> Iterator[Row]:
    """(line number from 1, cells) of every line that is not blank."""
    reader = csv.reader(text, skipinitialspace=True)
    line = 1
    try:
        for cells in reader:
            if len(cells) > 1 or (cells and cells[0].strip()):
                yield line, cells
            line = reader.line_num + 1
    except UnicodeDecodeError as error:
        raise line_error(path, line, "", f"not text ({error})", REMEDY) from None
    except csv.Error as error:
        raise line_error(path, line, "", f"not CSV ({error})", REMEDY) from None


def _places(path: Path, numbered: Iterator[Row]) -> tuple[int, int, int]:
    """Where the columns stand by the header."""
    number, cells = next(numbered, (1, []))
    if not is_header(cells):
        raise line_error(path, number, "", "is not the header", REMEDY)
    names = [cell.strip().casefold() for cell in cells]
    when, prompt, output = (names.index(column.casefold()) for column in COLUMNS)
    return when, prompt, output


def _tokens(
    path: Path, numbers: Sequence[int], column: str, cells: Sequence[str], least: int
) -> list[int]:
    text = "".join(cells)
    if text.isascii() and text.isdigit() and 0 < min(map(len, cells)) <= max(map(len, cells)) < 10:
        tokens = list(map(int, cells))
        if min(tokens) >= least:
            return tokens
    tokens = []
    for number, cell in zip(numbers, cells, strict=True):
        digits = cell.strip()
        if not (digits.isascii() and digits.isdigit() and len(digits) < 10):
            problem = f"{cell!r} is not a number of tokens"
            raise line_error(path, number, column, problem, REMEDY)
        tokens.append(int(digits))
        if tokens[-1] < least:
            raise line_error(path, number, column, f"is {digits}", f"a call has {least} or more")
    return tokens
