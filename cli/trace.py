"""``alipes trace``: the group; each command is a function of its own module, added here with
``trace.command()(function)``."""

from __future__ import annotations

import typer

trace = typer.Typer(help="Read, convert, sample and make traces.", no_args_is_help=True)
