"""``alipes replay``: recorded agent runs against a live endpoint."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from alipes.cli.output import FAILURE, USAGE, complain
from alipes.replay.endpoint import Endpoint, EndpointError
from alipes.replay.plan import Assignment, assign
from alipes.replay.records import CallRecord, Recorder
from alipes.replay.runner import Replay
from alipes.replay.stats import Summary
from alipes.replay.tables import call_tables, model_table, remarks, session_table
from alipes.replay.traces.model import TraceError
from alipes.replay.traces.read import read_all

SHOWN_CALLS = 60


def replay(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE", help="SWE-agent .traj, mini-swe-agent .traj.json"),
    ],
    base_url: Annotated[str, typer.Option(help="The endpoint, such as http://127.0.0.1:8000/v1")],
    models: Annotated[str, typer.Option(help="Models to replay on, separated by commas")],
    sessions: Annotated[
        int, typer.Option(min=0, help="Sessions on each model; 0 is one for each file")
    ] = 0,
    gap_cap: Annotated[float, typer.Option(min=0, help="Longest tool gap kept, seconds")] = 10.0,
    out: Annotated[Path, typer.Option(help="Folder for calls.jsonl and summary.json")] = Path(
        "replay-out"
    ),
    api_key: Annotated[str, typer.Option(envvar="ALIPES_API_KEY", help="Key of the endpoint")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON")] = False,
) -> None:
    """Replay recorded agent runs, closed loop, and report session completion time and TTFT."""
    names = [name.strip() for name in models.split(",") if name.strip()]
    try:
        if not names:
            raise EndpointError("--models names no model; give one or more, separated by commas")
        trajectories = read_all(files)
        plan = assign(trajectories, tuple(dict.fromkeys(names)), sessions or len(trajectories))
        replaying = _drive(plan, Endpoint(base_url, api_key), gap_cap, out)
    except (TraceError, EndpointError, OSError) as error:
        complain(str(error))
        raise typer.Exit(USAGE) from None
    if not replaying.sessions:
        complain(f"interrupted before the first call; {out} is as it was")
        raise typer.Exit(130)
    summary = replaying.summary()
    (out / "summary.json").write_bytes(msgspec.json.encode(summary))
    _show(summary, replaying.records, out, as_json)
    if not summary.complete:
        raise typer.Exit(130)
    if summary.failed:
        raise typer.Exit(FAILURE)


def _drive(plan: tuple[Assignment, ...], endpoint: Endpoint, gap_cap: float, out: Path) -> Replay:
    """Run the whole replay under a progress bar; an interruption ends it early, not badly.
    ``out`` is touched only once everything is ready to be sent."""
    replaying = Replay(endpoint, time.monotonic_ns)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as progress:
        bar = progress.add_task("counting tokens", total=None)

        async def whole() -> None:
            try:
                await replaying.prepare(plan, gap_cap)
                total = sum(len(session.calls) for session in replaying.sessions)
                progress.update(bar, description="replaying calls", total=total)
                await _record(replaying, out, lambda: progress.advance(bar))
            finally:
                await endpoint.close()

        try:
            asyncio.run(whole())
        except KeyboardInterrupt:
            progress.update(bar, description="interrupted")
        except Exception:
            progress.remove_task(bar)
            raise
    return replaying


async def _record(replaying: Replay, out: Path, advance: Callable[[], None]) -> None:
    """Send every call; each is a line of ``calls.jsonl`` as it ends."""
    out.mkdir(parents=True, exist_ok=True)
    with closing(Recorder(out / "calls.jsonl")) as recorder:

        def on_call(record: CallRecord) -> None:
            recorder.add(record)
            advance()

        await replaying.run(on_call)


def _show(summary: Summary, records: list[CallRecord], out: Path, as_json: bool) -> None:
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(summary)).decode())
        return
    console = Console()
    if 0 < len(records) <= SHOWN_CALLS:
        console.print(*call_tables(records))
    console.print(session_table(summary.sessions))
    console.print(model_table(summary.models))
    for line in remarks(summary):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    console.print(
        f"{len(records)} calls in {summary.seconds:.1f} s; each is a line of {out}/calls.jsonl"
    )
