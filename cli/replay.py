"""``alipes replay``: recorded agent runs against a live endpoint."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from alipes.cli.output import FAILURE, USAGE, complain, say
from alipes.replay.endpoint import Endpoint, EndpointError
from alipes.replay.live import SUMMARY_FILE, describe, record, take_up
from alipes.replay.pacing import PacingSettings
from alipes.replay.plan import Assignment, PlanError, assign
from alipes.replay.prepare import Sending, prepare
from alipes.replay.progress import SessionError
from alipes.replay.records import CallRecord
from alipes.replay.runner import Replay
from alipes.replay.runs import CALLS_FILE, RunError, RunInfo
from alipes.replay.stats import Summary
from alipes.replay.tables import call_tables, model_table, remarks, session_table
from alipes.replay.tokens import vocabulary
from alipes.replay.traces.content import Vocabulary
from alipes.replay.traces.load import load
from alipes.replay.traces.model import TraceError

VOCABULARY: Final = Vocabulary().high


SHOWN_CALLS, SHOWN_TABLES, SHOWN_SESSIONS = 60, 4, 20
"""More calls, sessions with a table of their calls each, or sessions are in files alone."""


def replay(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE", help="Traces of any format that Alipes reads")
    ],
    base_url: Annotated[str, typer.Option(help="The endpoint, such as http://127.0.0.1:8000/v1")],
    models: Annotated[
        str, typer.Option(help="Models for sessions that name none, separated by commas")
    ] = "",
    model_map: Annotated[
        str, typer.Option(help="Other names for the models of a trace: old=new,...")
    ] = "",
    sessions: Annotated[
        int, typer.Option(min=0, help="Sessions on each model; 0 is all of the trace once")
    ] = 0,
    concurrency: Annotated[
        int, typer.Option(min=0, help="Sessions at a time, a finished one replaced; 0 is all")
    ] = 0,
    rate: Annotated[
        float, typer.Option(min=0, help="Sessions that arrive a second, as a Poisson process")
    ] = 0.0,
    recorded: Annotated[
        bool, typer.Option("--recorded", help="Sessions arrive when they were recorded to")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the arrivals")] = 1,
    gap_cap: Annotated[float, typer.Option(min=0, help="Longest gap kept, seconds")] = 10.0,
    warmup: Annotated[
        int, typer.Option(min=0, help="The first sessions, which count in no figure")
    ] = 0,
    forced: Annotated[
        bool,
        typer.Option("--forced", help="Make calls draw the recorded tokens, where it is allowed"),
    ] = False,
    vocab: Annotated[
        int, typer.Option(min=16, help="Content without text is of token ids below this")
    ] = VOCABULARY,
    plain: Annotated[
        bool, typer.Option("--plain", help="Send fields of the OpenAI API only")
    ] = False,
    out: Annotated[Path, typer.Option(help="Folder for the run")] = Path("replay-out"),
    resume: Annotated[
        bool, typer.Option("--resume", help="Send only the sessions that --out has not complete")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the run that --out holds")
    ] = False,
    name: Annotated[
        str, typer.Option(help="What reports call this run; by default the name of --out")
    ] = "",
    api_key: Annotated[str, typer.Option(envvar="ALIPES_API_KEY", help="Key of the endpoint")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON")] = False,
) -> None:
    """Replay recorded sessions against a live endpoint; report session completion time and TTFT."""
    try:
        _check_out(out, resume, overwrite)
        pacing = _pacing(concurrency, rate, recorded, seed, gap_cap)
        sending = Sending(forced, plain, vocabulary(vocab), warmup)
        chosen, renamed = _names(models), _renamed(model_map)
        plan = assign(load(files).sessions, chosen, sessions, renamed)
        info = describe(files, name or out.resolve().name, chosen, renamed, pacing, sending)
        job = Job(plan, Endpoint(base_url, api_key), pacing, sending, info, out, resume)
        replaying = job.run()
    except (TraceError, EndpointError, PlanError, RunError, SessionError, OSError) as error:
        complain(str(error))
        raise typer.Exit(USAGE) from None
    if not replaying.sessions:
        complain(f"interrupted before the first call; {out} is as it was")
        raise typer.Exit(130)
    summary = replaying.summary()
    _show(summary, replaying.records, out, as_json)
    if not summary.complete:
        raise typer.Exit(130)
    if summary.failed:
        raise typer.Exit(FAILURE)


def _check_out(out: Path, resume: bool, overwrite: bool) -> None:
    """Raises ``RunError`` where a run would be lost that nobody said is to go."""
    if resume and overwrite:
        raise RunError(f"--resume goes on with the run in {out}, --overwrite replaces it; choose")
    if not (resume or overwrite) and out.is_dir() and any(out.iterdir()):
        raise RunError(
            f"--out: {out} is not empty; go on with the run there by --resume, replace it by"
            " --overwrite, or name another folder"
        )


def _pacing(
    concurrency: int, rate: float, recorded: bool, seed: int, gap_cap: float
) -> PacingSettings:
    if recorded and rate:
        raise PlanError("--recorded and --rate say two things of when sessions arrive")
    try:
        return PacingSettings(concurrency, rate, recorded, seed, gap_cap)
    except ValueError as error:
        raise PlanError(str(error)) from None


def _names(models: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(filter(None, (name.strip() for name in models.split(",")))))


def _renamed(pairs: str) -> dict[str, str]:
    renamed = {}
    for pair in filter(None, (pair.strip() for pair in pairs.split(","))):
        old, equals, new = pair.partition("=")
        if not (old and equals and new):
            raise PlanError(f"--model-map: {pair!r} is not old=new")
        renamed[old.strip()] = new.strip()
    return renamed


@dataclass(frozen=True, slots=True)
class Job:
    """One replay. ``out`` is touched only once everything is ready to be sent."""

    plan: tuple[Assignment, ...]
    endpoint: Endpoint
    pacing: PacingSettings
    sending: Sending
    info: RunInfo
    out: Path
    resume: bool

    def run(self) -> Replay:
        """Under a progress bar; an interruption ends it early, not badly."""
        replaying = Replay(self.endpoint, time.monotonic_ns)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as progress:
            bar = progress.add_task("counting tokens", total=None)
            try:
                asyncio.run(self._whole(replaying, progress, bar))
            except KeyboardInterrupt:
                progress.update(bar, description="interrupted")
            except Exception:
                progress.remove_task(bar)
                raise
        return replaying

    async def _whole(self, replaying: Replay, progress: Progress, bar: TaskID) -> None:
        try:
            sessions = await prepare(self.endpoint, self.plan, self.sending)
            replaying.sessions = sessions
            if self.resume:
                take_up(self.out, self.info, replaying)
            total = sum(session.recorded.calls for session in sessions)
            done = len(replaying.records)
            progress.update(bar, description="replaying calls", total=total, completed=done)
            await record(
                replaying, self.out, self.info, self.pacing, lambda _: progress.advance(bar)
            )
        finally:
            await self.endpoint.close()


def _show(summary: Summary, records: list[CallRecord], out: Path, as_json: bool) -> None:
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(summary)).decode())
        return
    console = Console()
    if 0 < len(records) <= SHOWN_CALLS and len(summary.sessions) <= SHOWN_TABLES:
        console.print(*call_tables(records))
    if len(summary.sessions) <= SHOWN_SESSIONS:
        console.print(session_table(summary.sessions))
    else:
        say(f"{len(summary.sessions)} sessions; each is a row of {out / SUMMARY_FILE}")
    console.print(model_table(summary.models))
    for line in remarks(summary):
        say(line)
    if warmup := len({record.session for record in records if record.warmup}):
        say(f"The first {warmup} sessions were warm-up and count in no figure.")
    say(f"{len(records)} calls in {summary.seconds:.1f} s; each is a line of {out / CALLS_FILE}")
