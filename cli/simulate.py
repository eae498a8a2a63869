"""``alipes simulate``: a scenario on a virtual clock."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from msgspec.structs import replace

from alipes.cli.output import FAILURE, USAGE, complain, progress_bars
from alipes.cli.simulated import show
from alipes.gateway.strict import FieldError
from alipes.replay.progress import SessionError
from alipes.replay.runs import Run, write_run
from alipes.replay.sim.hardware import HardwareError
from alipes.replay.sim.outcome import VariedRow, outcome, row_of, varied_row
from alipes.replay.sim.scenario import load_scenario
from alipes.replay.sim.study import Study, prepare
from alipes.replay.traces.model import TraceError

QUICK_SESSIONS = 12


def simulate(
    file: Annotated[
        Path | None, typer.Argument(metavar="SCENARIO", help="A scenario file, YAML")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write one run folder a case here, for `alipes report`")
    ] = None,
    only: Annotated[str, typer.Option(help="Configurations to run, separated by commas")] = "",
    seed: Annotated[
        int | None, typer.Option(min=0, help="Another seed than the scenario's")
    ] = None,
    sensitivity: Annotated[
        bool, typer.Option("--sensitivity", help="Also vary every number of the hardware profile")
    ] = False,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help=f"Only {QUICK_SESSIONS} sessions, of all models; judges no claim"
        ),
    ] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write environment, rows and claims here")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Configurations to run at once; one for each core")
    ] = None,
    validating: Annotated[
        bool,
        typer.Option(
            "--validate", help="Hold the simulator against this machine, without SCENARIO"
        ),
    ] = False,
) -> None:
    """Run every configuration of a scenario under every load, and say how each does."""
    if validating:
        from alipes.cli.validate import validate

        _only_validating(file, only, seed, sensitivity, jobs)
        validate(quick, json_file, out)
        return
    if file is None:
        complain("SCENARIO is missing; give a scenario file, or --validate")
        raise typer.Exit(USAGE)
    try:
        scenario = load_scenario(file)
        names = [name.strip() for name in only.split(",") if name.strip()]
        study = prepare(scenario, file.parent, names, seed, QUICK_SESSIONS if quick else None)
        study.processes = jobs or len(os.sched_getaffinity(0))
        if sensitivity:
            study.check_variants()
        runs, varied = _drive(study, out, sensitivity)
        found = outcome(study.scenario, runs, _environment(study, quick), study.whole)
        found = replace(found, sensitivity=varied)
        show(study, found)
        if json_file is not None:
            json_file.write_bytes(msgspec.json.format(msgspec.json.encode(found)) + b"\n")
    except (FieldError, HardwareError, SessionError, TraceError, OSError) as error:
        complain(str(error))
        raise typer.Exit(USAGE) from None
    if not found.holds:
        raise typer.Exit(FAILURE)


def _only_validating(
    file: Path | None, only: str, seed: int | None, sensitivity: bool, jobs: int | None
) -> None:
    given = {
        "SCENARIO": file is not None,
        "--only": only != "",
        "--seed": seed is not None,
        "--sensitivity": sensitivity,
        "--jobs": jobs is not None,
    }
    for name in (name for name, is_given in given.items() if is_given):
        complain(
            f"{name} says nothing to --validate, which has its own trace; leave one of them out"
        )
        raise typer.Exit(USAGE)


def _drive(
    study: Study, out: Path | None, sensitivity: bool
) -> tuple[list[Run], tuple[VariedRow, ...]]:
    """Every run, each on disk as soon as it is over."""
    runs: list[Run] = []
    with progress_bars() as progress:
        bar = progress.add_task("", total=len(study.cases))

        def waiting(label: str) -> None:
            progress.update(bar, description=label)

        for run in study.runs(waiting):
            runs.append(run)
            if out is not None:
                write_run(out / run.folder, run)
            progress.advance(bar)
        if not sensitivity:
            return runs, ()
        progress.update(bar, total=None)
        rows = [row_of(run) for run in runs]
        return runs, tuple(
            varied_row(variant, run, rows) for variant, run in study.variants(waiting)
        )


def _environment(study: Study, quick: bool) -> dict[str, str]:
    return {
        "hardware": study.hardware.name,
        "trace": study.workload.source,
        "sessions": str(len(study.workload.sessions)),
        "seed": str(study.scenario.seed),
        "quick": str(quick),
        "python": platform.python_version(),
    }
