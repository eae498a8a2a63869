"""``alipes trace synth``: workloads made from published distributions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from alipes.cli.output import USAGE, complain
from alipes.replay.traces.load import load, save
from alipes.replay.traces.model import TraceError
from alipes.replay.traces.synth.workloads import WORKLOADS, Wish, synthesise

_NAMES = "; ".join(f"{name}: {workload.summary}" for name, workload in WORKLOADS.items())


def synth(
    name: Annotated[str, typer.Argument(help=_NAMES)],
    out: Annotated[Path, typer.Option(help="The file to write, in Alipes' own format")],
    seed: Annotated[int, typer.Option(min=0, help="Another seed, another sample")] = 1,
    sessions: Annotated[
        int, typer.Option(min=0, help="How many; 0 is as many as were published")
    ] = 0,
    models: Annotated[
        str, typer.Option(help="Models that take the sessions in turn, separated by commas")
    ] = "",
    recorded: Annotated[
        list[Path] | None, typer.Option(help="The sessions that coding draws from")
    ] = None,
) -> None:
    """Make a workload with published statistics; the same seed makes the same file."""
    names = tuple(part.strip() for part in models.split(",") if part.strip())
    try:
        source = load(recorded) if recorded else None
        trace = synthesise(name, Wish(seed, sessions, names, source))
        save(out, trace)
    except (TraceError, ValueError) as error:
        complain(str(error))
        raise typer.Exit(USAGE) from None
    except OSError as error:
        complain(f"{out}: {error.strerror or error}; give a path that can be written")
        raise typer.Exit(USAGE) from None
    typer.echo(f"{out}: {trace.source}; {len(trace.sessions)} sessions, {trace.calls} calls")
