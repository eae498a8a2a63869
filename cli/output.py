"""How every command speaks: tables or JSON to stdout; progress and one-line errors to stderr."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from alipes.gateway.config import ConfigError
from alipes.replay.tables import plain_table, titled

USAGE = 2
FAILURE = 1


class CommandError(Exception):
    """The command failed; the message is the one line that the user sees."""


def complain(message: str) -> None:
    """One red line on stderr."""
    line = " ".join(message.split())
    Console(stderr=True).print(line, style="red", markup=False, highlight=False, soft_wrap=True)


def remark(message: str) -> None:
    """One yellow line on stderr: it works, but look at it."""
    Console(stderr=True).print(
        f"warning: {message}", style="yellow", markup=False, highlight=False, soft_wrap=True
    )


def say(line: str) -> None:
    """One line on stdout, as it is."""
    Console().print(line, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def reported(*failures: type[Exception]) -> Iterator[None]:
    """Turn expected errors into one line and an exit code: 2 for the cluster file, 1 for
    ``CommandError`` and ``failures``."""
    try:
        yield
    except ConfigError as error:
        complain(str(error))
        raise typer.Exit(USAGE) from None
    except Exception as error:
        if not isinstance(error, (CommandError, *failures)):
            raise
        complain(str(error))
        raise typer.Exit(FAILURE) from None


def print_json(value: Any) -> None:
    typer.echo(msgspec.json.format(msgspec.json.encode(value)).decode())


def print_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], texts: Container[str]
) -> None:
    """The columns in ``texts`` are words, the others numbers."""
    table = plain_table(columns, texts)
    for row in rows:
        table.add_row(*map(escape, row))
    Console().print(titled(title, table))


def progress_bars() -> Progress:
    """Bars on a terminal; nothing elsewhere, where they would be noise."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
