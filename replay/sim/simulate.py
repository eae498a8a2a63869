"""One case of a scenario, from its sessions to a run as reports read it."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from alipes.gateway.strict import FieldError
from alipes.replay.runs import Run, RunInfo
from alipes.replay.sim.bounds import Bounds, bounds
from alipes.replay.sim.build import Fleet, build, sized
from alipes.replay.sim.cluster import Cluster
from alipes.replay.sim.collecting import collecting_rarely
from alipes.replay.sim.costs import engine_costs
from alipes.replay.sim.hardware import Hardware
from alipes.replay.sim.scenario import Case, Scenario, Setup, TraceSpec
from alipes.replay.traces.form import Session, Trace
from alipes.replay.traces.load import load
from alipes.replay.traces.synth.workloads import Wish, synthesise

USUAL: Final = Setup()


@dataclass(frozen=True, slots=True)
class Workload:
    """The sessions of a scenario, each with its model."""

    source: str
    sessions: tuple[Session, ...]


def workload(scenario: Scenario, hardware: Hardware, folder: Path) -> Workload:
    """``folder`` is the scenario file's. Raises ``TraceError``, ``HardwareError`` and
    ``FieldError``, which is also for a session that no model can hold, or that goes by another's
    name."""
    spec = scenario.trace
    trace = _synthesised(spec, folder) if spec.synth else load([folder / spec.file])
    sessions = trace.sessions[: spec.sessions or None] if spec.file else trace.sessions
    served = tuple(dict.fromkeys(m for instance in scenario.instances for m in instance.models))
    room = {model: longest_call(hardware, model) for model in (*served, *spec.models)}
    models = itertools.cycle(spec.models or served)
    given = [
        session if session.model in served else _given(session, models, room)
        for session in sessions
    ]
    repeated = [
        session if again == 0 else replace(session, id=f"{session.id}.{again + 1}")
        for again in range(spec.repeat)
        for session in given
    ]
    _check_sessions(repeated, served)
    return Workload(trace.source, tuple(repeated))


def _check_sessions(sessions: Sequence[Session], served: Collection[str]) -> None:
    seen: set[str] = set()
    for session in sessions:
        if session.id in seen:
            problem = f"two sessions would be called {session.id}; rename one, or leave repeat out"
            raise FieldError("trace", problem)
        seen.add(session.id)
        for branch in session.branches:
            if branch.model and branch.model not in served:
                problem = f"branch {branch.name} of session {session.id} is of {branch.model}"
                raise FieldError("trace", f"{problem}, which no instance serves; add the model")


def _given(session: Session, models: Iterator[str], room: Mapping[str, int]) -> Session:
    """The session on the next model that can hold its longest call."""
    longest = max(call.prompt + call.output for branch in session.branches for call in branch.calls)
    for _ in room:
        model = next(models)
        if longest <= room[model]:
            branches = tuple(replace(branch, model="") for branch in session.branches)
            return replace(session, model=model, branches=branches)
    raise FieldError(
        "trace",
        f"session {session.id} has a call of {longest} tokens, more than any model can hold;"
        " leave it out, or name a model with a longer context",
    )


def longest_call(hardware: Hardware, model: str) -> int:
    """Tokens of prompt and output that an instance can hold. Raises ``HardwareError``."""
    blocks = engine_costs(hardware, model).kv_blocks
    return min(hardware.models[model].context, blocks * hardware.block_tokens)


def _synthesised(spec: TraceSpec, folder: Path) -> Trace:
    recorded = load([folder / spec.recorded]) if spec.recorded else None
    try:
        return synthesise(spec.synth, Wish(spec.seed, spec.sessions, spec.models, recorded))
    except ValueError as error:
        raise FieldError("trace", str(error)) from None


def simulate(scenario: Scenario, hardware: Hardware, sessions: Workload, case: Case) -> Run:
    """Run one case to its end. Raises ``HardwareError``, ``SessionError`` and, for what cannot be,
    ``SimulationError``."""
    hardware = sized(hardware, case.setup)
    fleet = Fleet(hardware, case.setup, scenario.instances, scenario.faults)
    cluster = build(fleet, sessions.sessions, case.pacing, scenario.seed, scenario.warmup)
    with collecting_rarely():
        cluster.run()
    least = bounds_of(fleet, sessions.sessions, case, scenario.warmup)
    info = _info(scenario, hardware, sessions, case, cluster, least)
    timelines = [node.timeline for node in cluster.nodes]
    return Run(
        folder=case.label,
        info=info,
        calls=tuple(cluster.records),
        switches=tuple(one for timeline in timelines for one in timeline.switches),
        rounds=tuple(one for timeline in timelines for one in timeline.rounds),
        memory=tuple(one for timeline in timelines for one in timeline.memory),
    )


def bounds_of(fleet: Fleet, sessions: Sequence[Session], case: Case, warmup: int = 0) -> Bounds:
    hardware = fleet.hardware
    models = {model for instance in fleet.instances for model in instance.models}
    pacing = case.pacing
    return bounds(
        sessions,
        {model: engine_costs(hardware, model) for model in sorted(models)},
        len(fleet.names()),
        hardware.prefill_chunk,
        hardware.max_running,
        pacing.gap_cap,
        together=not (pacing.concurrency or pacing.rate or pacing.recorded),
        warmup=warmup,
    )


def _info(
    scenario: Scenario,
    hardware: Hardware,
    sessions: Workload,
    case: Case,
    cluster: Cluster,
    least: Bounds,
) -> RunInfo:
    published = scenario.published
    counted = sessions.sessions[scenario.warmup :]
    settings = {
        key: str(value)
        for key, value in msgspec.to_builtins(case.setup).items()
        if key == "lease_seconds" or value != getattr(USUAL, key)
    }
    if len(scenario.loads) > 1:
        settings["load"] = case.load
    return RunInfo(
        scenario=scenario.name,
        configuration=case.configuration,
        kind="simulated",
        hardware=hardware.name,
        trace=sessions.source,
        seed=scenario.seed,
        seconds=cluster.clock.now / 1e9,
        settings=settings,
        counters=cluster.counters()
        | {"bound_p50": least.p50, "bound_p95": least.p95, "bound_seconds": least.makespan},
        bound={session.id: least.alone[session.id] for session in counted},
        planned={session.id: session.calls for session in counted},
        published=published.values.get(case.label, {}) if published else {},
        published_source=published.source if published else "",
    )
