"""``alipes trace convert`` and ``alipes trace sample``: traces from file to file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from alipes.cli.output import USAGE, CommandError, complain
from alipes.replay.traces import own
from alipes.replay.traces.form import Trace
from alipes.replay.traces.formats import READERS
from alipes.replay.traces.hash_ids import BLOCK
from alipes.replay.traces.load import WRITERS, load, save
from alipes.replay.traces.model import TraceError
from alipes.replay.traces.sample import sample
from alipes.replay.traces.turns import Prompts

FilesArgument = Annotated[
    list[Path], typer.Argument(metavar="FILE", help="Trace files; names in .gz are packed")
]
FormatOption = Annotated[
    str, typer.Option("--format", help=f"Format of the files read: {', '.join(READERS)}")
]
BlockOption = Annotated[
    int, typer.Option("--block", min=1, help="Tokens of a hash id where the format does not say")
]
PromptsOption = Annotated[
    Prompts,
    typer.Option("--prompts", help="Lengths of Mooncake sessions: whole prompts, or what rows add"),
]
OutOption = Annotated[Path, typer.Option("--out", help="The file to write; .gz packs it")]


def convert(
    files: FilesArgument,
    to: Annotated[str, typer.Option("--to", help=f"One of {', '.join(WRITERS)}")],
    out: OutOption,
    format: FormatOption = "",
    block: BlockOption = BLOCK,
    prompts: PromptsOption = Prompts.UNKNOWN,
) -> None:
    """Write traces of any known format as one file."""
    try:
        if to not in WRITERS:
            raise ValueError(f"--to {to}: no such format; use one of {', '.join(WRITERS)}")
        _save(load(files, format or None, block=block, prompts=prompts), out, to, block)
    except (TraceError, ValueError, CommandError) as error:
        complain(str(error))
        raise typer.Exit(USAGE) from None


def sample_trace(
    files: FilesArgument,
    sessions: Annotated[int, typer.Option(min=1, help="How many sessions to draw")],
    out: OutOption,
    calls_at_most: Annotated[
        int | None, typer.Option(min=1, help="Draw only from sessions of so many calls")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="The same seed draws the same sessions")] = 1,
    format: FormatOption = "",
    block: BlockOption = BLOCK,
    prompts: PromptsOption = Prompts.UNKNOWN,
) -> None:
    """Draw whole sessions from traces, into a file of Alipes' own format."""
    try:
        whole = load(files, format or None, block=block, prompts=prompts)
        drawn = sample(whole, sessions, seed, calls_at_most)
        _save(drawn, out, own.NAME, block)
    except (TraceError, ValueError, CommandError) as error:
        complain(str(error))
        raise typer.Exit(USAGE) from None


def _save(trace: Trace, out: Path, format: str, block: int) -> None:
    try:
        save(out, trace, format, block)
    except OSError as error:
        raise CommandError(f"{out}: {error.strerror}; give a file that can be written") from None
    typer.echo(f"{len(trace.sessions)} sessions, {trace.calls} calls: {out}")
