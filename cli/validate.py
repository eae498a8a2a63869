"""``alipes simulate --validate``: the simulator beside the stack that it stands for."""

from __future__ import annotations

import os
import platform
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import typer
from msgspec.structs import replace

from alipes.cli.cluster import load, prepare_models
from alipes.cli.machine import cpu_name
from alipes.cli.output import FAILURE, print_table, progress_bars, reported, say
from alipes.cli.profile import fit_all, time_instance
from alipes.cli.simulated import number
from alipes.cli.stack import end_in_order, play, serving
from alipes.cli.timed_calls import planned
from alipes.gateway.config import Cluster
from alipes.gateway.routing.decision import Policy
from alipes.instance.checkpoints.folder import SourceError
from alipes.replay.records import CallRecord
from alipes.replay.runs import Run, RunInfo, write_run
from alipes.replay.sim.hardware import Hardware
from alipes.replay.sim.outcome import Outcome
from alipes.replay.sim.scenario import Case, InstanceSpec, Load, Scenario, Setup, TraceSpec
from alipes.replay.sim.simulate import Workload, simulate
from alipes.replay.sim.validate import (
    CONFIGURATIONS,
    NAME,
    Comparison,
    Shape,
    claims,
    rows,
    small_trace,
)
from alipes.replay.tokens import vocabulary
from alipes.replay.traces.content import Vocabulary
from alipes.replay.traces.form import Session

FILE: Final = Path(__file__).parent / "validation.yaml"
MEASURES: Final = {
    "sct_p50": "SCT p50",
    "sct_p95": "p95",
    "ttft_p50": "TTFT p50",
    "cached_share": "cached",
    "seconds": "whole",
}
ERRORS: Final = {"error_p50": "error p50", "error_p90": "p90"}
SEED: Final = 1
REPEATS: Final = 3
LARGE: Final = Shape(2, 4, (500, 700), (40, 120), (8, 24))
SMALL: Final = Shape(3, 7, (1400, 2000), (60, 220), (20, 60))
QUICK: Final = Shape(2, 3, (700, 1200), (60, 160), (10, 30))


@dataclass(frozen=True, slots=True)
class Plan:
    """``sessions`` on one instance of ``cluster``, ``repeats`` live runs of each configuration."""

    cluster: Cluster
    instance: str
    sessions: tuple[Session, ...]
    repeats: int
    configurations: tuple[str, ...] = tuple(CONFIGURATIONS)

    def ablated(self, configuration: str) -> Cluster:
        ablations = replace(self.cluster.ablations, **CONFIGURATIONS[configuration])
        return replace(self.cluster, ablations=ablations)


def validate(quick: bool, json_file: Path | None, out: Path | None) -> None:
    """Run everything, print it, and exit with 1 where a claim does not hold."""
    end_in_order()
    with reported(SourceError, OSError):
        plan = packaged(quick)
        with tempfile.TemporaryDirectory(prefix="alipes-validate-") as work:
            compared = compare(plan, Path(work))
        found = Outcome(NAME, _environment(plan, quick), rows(compared), claims(compared))
        for run in _runs(compared) if out is not None else ():
            assert out is not None
            write_run(out / run.folder, run)
        if json_file is not None:
            json_file.write_bytes(msgspec.json.format(msgspec.json.encode(found)) + b"\n")
    _show(found, quick)
    if not found.holds and not quick:
        raise typer.Exit(FAILURE)


def packaged(quick: bool) -> Plan:
    """The packaged cluster; a quick one leaves out the slow model."""
    cluster = load(FILE)
    (name,) = cluster.instances
    large, *small = cluster.instances[name].models
    shapes = dict.fromkeys(small, QUICK if quick else SMALL)
    if quick:
        entry = replace(cluster.instances[name], models=tuple(small))
        cluster = replace(cluster, instances={name: entry})
    else:
        shapes = {large: LARGE} | shapes
    return Plan(cluster, name, small_trace(shapes, SEED), 1 if quick else REPEATS)


def compare(plan: Plan, work: Path) -> dict[str, Comparison]:
    """Live runs in turns, so that a drift of the machine falls on all configurations, and one
    simulated run of each, on the machine as it was before and after them."""
    live: dict[str, list[Run]] = defaultdict(list)
    with progress_bars() as progress:
        bar = progress.add_task("profile", total=plan.repeats * len(plan.configurations) + 2)
        measured = [time_instance(plan.cluster, plan.instance)]
        for repeat in range(1, plan.repeats + 1):
            for name in plan.configurations:
                progress.update(bar, advance=1, description=f"{name}, live {repeat}")
                live[name].append(run_live(plan, name, repeat, work / f"{name}-{repeat}"))
        if plan.repeats > 1:
            progress.update(bar, advance=1, description="profile")
            measured.append(time_instance(plan.cluster, plan.instance))
    hardware = fit_all(measured).hardware
    return {
        name: Comparison(tuple(live[name]), run_simulated(plan, name, hardware))
        for name in plan.configurations
    }


def run_live(plan: Plan, configuration: str, repeat: int, work: Path) -> Run:
    """On a stack of its own, started and ended here."""
    cluster = plan.ablated(configuration)
    folders = prepare_models(cluster, cluster.instances[plan.instance].models)
    known = vocabulary(Vocabulary().high)
    with serving(cluster, folders, work) as stack:
        records = play(stack.url, [planned(session, known) for session in plan.sessions]).records
        counters = stack.snapshot(plan.instance)["counters"]
    return Run(
        folder=f"{configuration}-live-{repeat}",
        info=RunInfo(
            scenario=NAME,
            configuration=configuration,
            kind="live",
            hardware=cpu_name(),
            trace=NAME,
            seed=repeat,
            seconds=max(record.finished for record in records),
            counters=_totals(counters),
            planned={session.id: session.calls for session in plan.sessions},
        ),
        calls=tuple(sorted(records, key=_place)),
    )


def run_simulated(plan: Plan, configuration: str, hardware: Hardware) -> Run:
    """The same sessions under the same settings, on the profile."""
    cluster = plan.ablated(configuration)
    entry = cluster.instances[plan.instance]
    scenario = Scenario(
        name=NAME,
        about="the live configurations",
        hardware=hardware.name,
        trace=TraceSpec(file=NAME),
        instances=(InstanceSpec(entry.models, entry.pool),),
        configurations={configuration: {}},
        setup=_setup(cluster, plan.instance),
    )
    case = Case(configuration, "", scenario.setup, Load(gap_cap=None))
    run = simulate(scenario, hardware, Workload(NAME, plan.sessions), case)
    return msgspec.structs.replace(run, folder=f"{configuration}-sim")


def _setup(cluster: Cluster, instance: str) -> Setup:
    """What a cluster file says, as a scenario says it; sizes and targets are the profile's."""
    routing, ablations = cluster.routing, cluster.ablations
    policy: Policy = "residency" if ablations.residency_routing else "least-pressure"
    return Setup(
        session_prefill=ablations.session_prefill,
        host_kv=ablations.host_kv,
        staging=ablations.staging,
        prefill_turns=ablations.prefill_turns,
        policy=policy,
        lease_seconds=routing.lease_seconds if ablations.leases else 0.0,
        replica_penalty=routing.replica_penalty,
        control_window=routing.control_window,
        eviction_cost=ablations.eviction_cost,
        switch_share=cluster.instances[instance].switch_share,
    )


def _runs(compared: Mapping[str, Comparison]) -> list[Run]:
    return [run for one in compared.values() for run in (*one.live, one.simulated)]


def _place(record: CallRecord) -> tuple[str, str, int]:
    return record.session, record.branch, record.index


def _totals(counters: Mapping[str, Any]) -> dict[str, float]:
    return {
        name: sum(value.values()) if isinstance(value, dict) else value
        for name, value in counters.items()
    }


def _environment(plan: Plan, quick: bool) -> dict[str, str]:
    return {
        "python": platform.python_version(),
        "cpu": cpu_name(),
        "cores": str(len(os.sched_getaffinity(0))),
        "load_1m": f"{os.getloadavg()[0]:.2f}",
        "sessions": str(len(plan.sessions)),
        "calls": str(sum(session.calls for session in plan.sessions)),
        "quick": str(quick),
    }


def _show(found: Outcome, quick: bool) -> None:
    table = [
        (
            row.case,
            *(number(name, row.measures.get(name)) for name in MEASURES),
            *(f"{row.measures[name]:.1%}" if name in row.measures else "" for name in ERRORS),
        )
        for row in found.rows
    ]
    columns = ("run", *MEASURES.values(), *ERRORS.values())
    title = "the same trace live and simulated, seconds; error of a session's SCT"
    print_table(title, columns, table, ("run",))
    for claim in found.claims:
        mark = "not judged" if quick else "holds" if claim.holds else "DOES NOT HOLD"
        say(f"{mark}: {claim.name}: {claim.value:.3g} {claim.unit} (target {claim.target})")
    if quick:
        say("quick: fewer sessions and a single live run, which is too little to judge by")
