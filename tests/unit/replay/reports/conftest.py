"""Runs as a cold instance might leave them: drawn from a seed, in the shape of real ones."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
import pytest

from alipes.replay.records import CallRecord, Parts
from alipes.replay.runs import MemoryRecord, RoundRecord, Run, RunInfo, SwitchRecord

MODELS = ("qwen3-235b", "glm5-nvfp4", "qwen3.5-122b-a10b")
GIB = 1 << 30
PLACED = {"placed": 960.0, "opens": 33.0, "cancelled": 0.0}

# Seconds: mean wait for a slot, of a switch, and the shares of calls let in by SP and recomputed.
SHAPES = {
    "all-on": (2.0, 0.98, 0.5, 0.02),
    "no-sp": (9.0, 1.02, 0.0, 0.05),
    "no-hkvr": (5.0, 1.0, 0.5, 0.9),
    "h2d-only": (2.2, 1.5, 0.5, 0.02),
    "round-only": (14.0, 1.55, 0.0, 0.95),
}
PUBLISHED = {
    "all-on": {"sct_p50": 189.0, "sct_p95": 867.0, "ttft_p50": 0.55, "rounds": 200.0},
    "round-only": {"sct_p50": 1000.0, "sct_p95": 2296.0, "switch_share": 0.517},
}


def calls_of(
    rng: np.random.Generator, work: np.random.Generator, session: str, model: str, shape: str
) -> list[CallRecord]:
    """One session's calls; ``work`` draws what every configuration has in common."""
    slot, switch, mid, lost = SHAPES[shape]
    now, calls, context = float(work.uniform(0, 20)), [], 0
    for index in range(int(work.integers(4, 60))):
        gap = float(work.exponential(0.6)) if index else 0.0
        prompt, output = context + int(work.integers(300, 4000)), int(work.integers(20, 300))
        gone = rng.random() < lost
        cached = 0 if gone else context
        waits = 0.05 if rng.random() < mid else float(rng.exponential(slot))
        parts = Parts(
            admission=0.01,
            queue=0.02,
            slot=waits,
            switch=switch if waits > 1 else 0.0,
            restore=0.1 if cached and waits > 1 else 0.0,
            recompute=context * 8e-5 if gone else 0.0,
            prefill=0.3 + (prompt - context) * 8e-5,
            decode=output * 0.012,
        )
        took = sum(msgspec.structs.astuple(parts))
        now += gap
        calls.append(
            CallRecord(
                session=session,
                request_id=f"{session}.{index}",
                model=model,
                index=index,
                gap=gap,
                intended=now,
                sent=now + 0.01,
                finished=now + took,
                expected_tokens=output,
                ttft=took - parts.decode,
                tpot=0.012,
                prompt_tokens=prompt,
                cached_tokens=cached,
                completion_tokens=output,
                instance="cold-0",
                placement="lease" if index else "switch",
                returning=index > 0,
                parts=parts,
            )
        )
        now += took
        context = prompt + output
    return calls


def rounds_of(
    rng: np.random.Generator, shape: str, seconds: float
) -> tuple[list[RoundRecord], list[SwitchRecord], list[MemoryRecord]]:
    slot, switch, mid, _ = SHAPES[shape]
    rounds: list[RoundRecord] = []
    switches: list[SwitchRecord] = []
    memory: list[MemoryRecord] = []
    now = 0.0
    while now < seconds:
        begin, switched = now, 0.0
        for model in MODELS:
            path = "h2d" if switch > 1.2 else str(rng.choice(["d2d", "partial", "h2d"]))
            took = float({"d2d": 0.106, "partial": 1.0, "h2d": 1.6}[path] * rng.lognormal(0, 0.15))
            switches.append(SwitchRecord("cold-0", now, model, path, took, 10, 20))
            switched += took
            now += took
            kv, staged = int(rng.uniform(20, 45) * GIB), 0 if switch > 1.2 else 12 * GIB
            memory.append(
                MemoryRecord("cold-0", now, 118 * GIB, kv, staged, 4 * GIB, 183 * GIB, 900 * GIB)
            )
        prefill, decode = float(rng.exponential(1 + slot / 4)), float(rng.exponential(2.0))
        restore, idle = 0.2 if mid else 0.0, 0.4
        now = begin + prefill + decode + restore + idle + switched
        rounds.append(
            RoundRecord(
                "cold-0",
                len(rounds),
                begin,
                now - begin,
                prefill,
                decode,
                switched,
                restore,
                linger=0.0,
                idle=idle,
                sp_admitted=int(rng.integers(0, 4)) if mid else 0,
                sp_parked=int(rng.integers(0, 4)) if mid else 0,
            )
        )
    return rounds, switches, memory


def make_run(
    shape: str = "all-on",
    *,
    configuration: str = "",
    scenario: str = "fixed-replay",
    kind: str = "simulated",
    seed: int = 1,
    sessions: int = 30,
    settings: dict[str, str] | None = None,
    counters: dict[str, float] | None = None,
    slower: float = 1.0,
    instances: int = 1,
) -> Run:
    """A whole run of ``sessions`` sessions; those of one seed have the same work in every shape.
    Clocks go ``slower`` times as slow. Sessions are dealt to the ``instances``."""
    name = configuration or shape
    rng = np.random.default_rng([seed, sorted(SHAPES).index(shape), len(name)])
    calls: list[CallRecord] = []
    for number in range(sessions):
        work = np.random.default_rng([seed, number])
        model = MODELS[number % 3]
        name_of = f"astropy-{number}.{model}"
        calls += [
            msgspec.structs.replace(call, instance=f"cold-{number % instances}")
            for call in calls_of(rng, work, name_of, model, shape)
        ]
    calls = [
        msgspec.structs.replace(
            call,
            intended=call.intended * slower,
            finished=call.finished * slower,
            ttft=(call.ttft or 0.0) * slower,
        )
        for call in calls
    ]
    seconds = max((call.finished for call in calls), default=0.0)
    rounds, switches, memory = rounds_of(rng, shape, seconds / 4)
    names = dict.fromkeys(call.session for call in calls)
    planned = {name: sum(call.session == name for call in calls) for name in names}
    info = RunInfo(
        scenario=scenario,
        configuration=name,
        kind=kind,
        hardware="b200-tp8",
        trace="astropy-30",
        seed=seed,
        seconds=seconds,
        settings=settings or {},
        counters=PLACED if counters is None else counters,
        bound={
            name: sum(
                call.gap + call.parts.prefill + call.parts.decode
                for call in calls
                if call.session == name and call.parts
            )
            for name in names
        },
        planned=planned,
        published=PUBLISHED.get(shape, {}),
        published_source="Talaria, section 5.2" if shape in PUBLISHED else "",
    )
    return Run(f"runs/{name}", info, tuple(calls), tuple(switches), tuple(rounds), tuple(memory))


@pytest.fixture(scope="session")
def run_maker() -> Callable[..., Run]:
    return make_run


@pytest.fixture(scope="session")
def five_runs() -> list[Run]:
    """The five configurations of the paper's figures."""
    return [make_run(shape) for shape in SHAPES]
