"""``alipes replay``: recorded agent runs against a live endpoint."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

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
        typer.Argument(metavar="FILE...", help="SWE-agent .traj, mini-swe-agent .traj.json"),
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
    errors = Console(stderr=True)
    names = [name.strip() for name in models.split(",") if name.strip()]
    try:
        if not names:
            raise EndpointError("--models names no model; give one or more, separated by commas")
        trajectories = read_all(files)
        plan = assign(trajectories, tuple(dict.fromkeys(names)), sessions or len(trajectories))
        summary, records = _drive(plan, Endpoint(base_url, api_key), gap_cap, out, errors)
    except (TraceError, EndpointError, OSError) as error:
        errors.print(f"alipes replay: {error}", style="red", markup=False, soft_wrap=True)
        raise typer.Exit(2) from None
    (out / "summary.json").write_bytes(msgspec.json.encode(summary))
    _show(summary, records, out, as_json)
    if not summary.complete:
        raise typer.Exit(130)
    if summary.failed:
        raise typer.Exit(1)


def _drive(
    plan: tuple[Assignment, ...], endpoint: Endpoint, gap_cap: float, out: Path, errors: Console
) -> tuple[Summary, list[CallRecord]]:
    """Run the whole replay under a progress bar; an interruption ends it early, not badly."""
    out.mkdir(parents=True, exist_ok=True)
    recorder = Recorder(out / "calls.jsonl")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=errors) as progress:
        bar = progress.add_task("counting tokens", total=None)

        def on_call(record: CallRecord) -> None:
            progress.advance(bar)

        replaying = Replay(endpoint, recorder, time.monotonic_ns, on_call)

        async def whole() -> None:
            try:
                await replaying.prepare(plan, gap_cap)
                total = sum(len(session.calls) for session in replaying.sessions)
                progress.update(bar, description="replaying calls", total=total)
                await replaying.run()
            finally:
                await endpoint.close()

        try:
            asyncio.run(whole())
        except KeyboardInterrupt:
            progress.update(bar, description="interrupted")
        finally:
            recorder.close()
    return replaying.summary(), recorder.records


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
