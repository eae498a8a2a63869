"""``alipes init``: a first cluster file."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

from alipes.cli.cluster import DEFAULT_FILE
from alipes.cli.output import CommandError, reported


def init(
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file")] = False,
) -> None:
    """Write a commented alipes.yaml in the current folder."""
    with reported():
        write_default(DEFAULT_FILE, force)
    typer.echo(f"wrote {DEFAULT_FILE}; next: alipes serve -c {DEFAULT_FILE}")


def write_default(path: Path, force: bool) -> None:
    text = resources.files("alipes.cli").joinpath("default.yaml").read_text(encoding="utf-8")
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise CommandError(f"{path} exists already; --force overwrites it") from None
    except OSError as error:
        raise CommandError(f"{path} cannot be written: {error.strerror}") from None
