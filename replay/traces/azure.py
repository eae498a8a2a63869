"""Azure's public LLM traces, CSV: ``TIMESTAMP,ContextTokens,GeneratedTokens``.

Each row is a session of one call with content of its own: the format knows no sharing.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from alipes.replay.traces.form import MAIN, Branch, Call, Session, Trace, Wait
from alipes.replay.traces.lines import line_error, stem
from alipes.replay.traces.model import TraceError
from alipes.replay.traces.spans import new_content, one

COLUMNS: Final = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
REMEDY: Final = f"expected Azure's CSV with the columns {','.join(COLUMNS)}"


def read(path: Path, data: bytes) -> Trace:
    """Raises ``TraceError``."""
    try:
        lines = data.decode().splitlines()
    except UnicodeDecodeError as error:
        raise TraceError(path, "", f"not text ({error})", REMEDY) from None
    if not lines or tuple(lines[0].split(",")) != COLUMNS:
        raise line_error(path, 1, "", "is not the header", REMEDY)
    numbered = [(number, line) for number, line in enumerate(lines[1:], 2) if line.strip()]
    rows = [(number, *_row(path, number, line)) for number, line in numbered]
    begin = min((when for _, when, _, _ in rows), default=0.0)
    stream = new_content(MAIN, 0)
    sessions = []
    for number, when, prompt, output in rows:
        call = Call(prompt, max(1, output), 0, one(stream, prompt), wait=Wait.START)
        # The stamps have seven digits of a second.
        start = round(when - begin, 7)
        sessions.append(Session(f"{stem(path)}-{number}", (Branch(MAIN, (call,)),), start=start))
    return Trace(path.name, tuple(sessions))


def _row(path: Path, number: int, line: str) -> tuple[float, int, int]:
    """(seconds, prompt tokens, output tokens)"""
    cells = line.split(",")
    if len(cells) != len(COLUMNS):
        raise line_error(path, number, "", f"{len(cells)} cells, not {len(COLUMNS)}", REMEDY)
    prompt, output = (_tokens(path, number, i, cells[i]) for i in (1, 2))
    if prompt < 1:
        raise line_error(path, number, COLUMNS[1], "is 0", "a call needs at least one token")
    return _seconds(path, number, cells[0]), prompt, output


def _seconds(path: Path, number: int, cell: str) -> float:
    stamp, _, fraction = cell.partition(".")
    try:
        if fraction and not (fraction.isascii() and fraction.isdigit()):
            raise ValueError("no fraction of a second")
        when = datetime.strptime(stamp, "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)
    except ValueError:
        problem = f"{cell!r} is not a time"
        raise line_error(path, number, COLUMNS[0], problem, REMEDY) from None
    return when.timestamp() + float(f"0.{fraction or 0}")


def _tokens(path: Path, number: int, column: int, cell: str) -> int:
    if not (cell.isascii() and cell.isdigit() and len(cell) < 10):
        problem = f"{cell!r} is not a number of tokens"
        raise line_error(path, number, COLUMNS[column], problem, REMEDY)
    return int(cell)
