"""``alipes trace``: the group; each command is a function of a module of its own."""

from __future__ import annotations

import typer

from alipes.cli.trace_convert import convert, sample_trace
from alipes.cli.trace_info import info
from alipes.cli.trace_synth import synth

trace = typer.Typer(help="Read, convert, sample and make traces.", no_args_is_help=True)
trace.command()(info)
trace.command()(convert)
trace.command("sample")(sample_trace)
trace.command()(synth)
