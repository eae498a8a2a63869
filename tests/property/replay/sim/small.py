"""Small clusters under stress, for Hypothesis: little memory, much load, targets of any kind."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
from hypothesis import strategies as st

from alipes.instance.contract import Pool
from alipes.replay.sim.build import Fleet, build
from alipes.replay.sim.cluster import Cluster
from alipes.replay.sim.hardware import NOTHING, Fixed, Hardware, ModelCosts, Quantity, Rates
from alipes.replay.sim.scenario import InstanceSpec, Load, Setup
from alipes.replay.traces.form import MAIN, Branch, Call, Session, Span, Wait, stream_id

BLOCK = 16
WEIGHTS = 1_000_000
TOKEN = 1_000
LONGEST = 24 * BLOCK
"""Tokens of the longest call: what the smallest device holds."""
NAMES = ("small", "medium", "large", "huge")


def given(value: float) -> Quantity:
    return Quantity(value, assumed="test")


def hardware_of(
    names: Sequence[str], blocks: int = 40, host_blocks: int = 100, **changes: Any
) -> Hardware:
    """Room for so many blocks of KV beside one model's weights; ``changes`` are fields."""
    models = {
        name: ModelCosts(
            weight_bytes=given(WEIGHTS),
            kv_token_bytes=given(TOKEN),
            prefill_base=given(0.01),
            prefill_token=given(1e-4),
            prefill_context=given(1e-7),
            decode_base=given(0.01 * (1 + number)),
            decode_call=given(1e-3),
            decode_context=given(3.3e-6),
            prefill_cold=given(0.02) if number == 1 else NOTHING,
            # Two models share the KV of all ranks on the host.
            kv_host_token_bytes=given(TOKEN / 2) if number % 2 else NOTHING,
            context=LONGEST,
            layers=4,
        )
        for number, name in enumerate(names)
    }
    fields: dict[str, Any] = {
        "name": "small",
        "about": "",
        "device_bytes": given(WEIGHTS + blocks * BLOCK * TOKEN),
        "host_bytes": given(host_blocks * BLOCK * TOKEN),
        "runtime_bytes": NOTHING,
        "staging_share": given(0.5),
        "rates": Rates(given(1e7), given(1e7), given(1e9), given(1e7)),
        "fixed": Fixed(given(0.05), given(0.001), NOTHING),
        "models": models,
        "prefill_chunk": 64,
        "max_running": 4,
        "block_tokens": BLOCK,
        "staging_chunk": 50_000,
    }
    return Hardware(**(fields | changes))


@dataclass(frozen=True)
class Case:
    fleet: Fleet
    sessions: tuple[Session, ...]
    load: Load
    seed: int

    def cluster(self) -> Cluster:
        return build(self.fleet, self.sessions, self.load, self.seed, 0)


# --- sessions ----------------------------------------------------------------------------------

GAPS = st.sampled_from([0.0, 0.0, 0.01, 0.3, 4.0])


@st.composite
def calls(
    draw: st.DrawFn, name: str, most: int, context: int, shared: tuple[Span, ...]
) -> tuple[Call, ...]:
    """Of one branch that may keep up to ``context`` tokens of its parent's: most go on from where
    the one before ended, some compact."""
    made: list[Call] = []
    for index in range(draw(st.integers(1, most))):
        output = draw(st.integers(1, 40))
        kept = context if draw(st.integers(0, 5)) else draw(st.integers(0, context))
        new = draw(st.integers(1, 90))
        if kept + new + output > LONGEST - BLOCK:
            kept = draw(st.integers(0, 40))
        kept = min(kept, context)
        beginning = shared if kept == 0 else ()
        own = Span(stream_id("new", name, index, local=True), 0, new)
        added = (*beginning, own)
        prompt = kept + sum(span.length for span in added)
        made.append(Call(prompt, output, kept, added, draw(GAPS)))
        context = prompt + output
    return tuple(made)


@st.composite
def sessions(draw: st.DrawFn, number: int, models: Sequence[str]) -> Session:
    """With sub-agents, some of which are waited for, on any model; contexts that begin alike."""
    system = (Span(stream_id("system"), 0, draw(st.sampled_from([16, 40, 64]))),)
    main = draw(calls(MAIN, 5, 0, system))
    branches, joined = [], []
    for place in range(draw(st.integers(0, 2))):
        spawner = draw(st.integers(0, len(main) - 1))
        context = main[spawner].prompt + main[spawner].output
        name = f"sub{place}"
        model = draw(st.sampled_from(["", *models]))
        inherited = context if draw(st.booleans()) else 0
        agent = (Span(stream_id("sub-agents", local=True), 0, 30),)
        own = draw(calls(name, 3, inherited, agent))
        branches.append(Branch(name, own, MAIN, spawner, model))
        joined.append((draw(st.integers(spawner + 1, spawner + 3)), name))
    main = tuple(_join(call, [n for at, n in joined if at == i]) for i, call in enumerate(main))
    return Session(f"s{number}", (Branch(MAIN, main), *branches), draw(st.sampled_from(models)))


def _join(call: Call, names: list[str]) -> Call:
    if not names:
        return call
    return Call(
        call.prompt, call.output, call.kept, call.added, call.gap, Wait.BRANCH, tuple(names)
    )


# --- clusters ----------------------------------------------------------------------------------

SETUPS = st.builds(
    Setup,
    ttft=st.sampled_from([0.001, 0.5, 5.0, 60.0]),
    tpot=st.sampled_from([0.0001, 0.02, 0.1, 2.0]),
    gamma=st.sampled_from([0.3, 0.8]),
    session_prefill=st.booleans(),
    host_kv=st.booleans(),
    staging=st.booleans(),
    prefill_turns=st.booleans(),
    policy=st.sampled_from(["residency", "least-pressure", "session-sticky", "cache-aware"]),
    lease_seconds=st.sampled_from([0.0, 0.3, 5.0]),
    replica_penalty=st.sampled_from([0.0, 0.1]),
    switch_share=st.sampled_from([0.05, 0.1, 1.0]),
    gateway_seconds=st.sampled_from([0.0, 0.003]),
)
LOADS = st.sampled_from(
    [
        Load(),
        Load(concurrency=1),
        Load(concurrency=3),
        Load(rate=200.0),
        Load(rate=2.0),
        Load(gap_cap=None),
    ]
)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    names = NAMES[: draw(st.integers(1, 4))]
    specs = [draw(specs_of(names)) for _ in range(draw(st.integers(1, 3)))]
    unserved = [n for n in names if all(n not in spec.models for spec in specs)]
    if unserved:
        specs.append(InstanceSpec(tuple(unserved)))
    hardware = hardware_of(
        names,
        blocks=draw(st.sampled_from([24, 30, 60, 400])),
        host_blocks=draw(st.sampled_from([0, 20, 60, 2_000])),
        prefill_chunk=draw(st.sampled_from([16, 64, 1024])),
        max_running=draw(st.sampled_from([1, 2, 4, 16])),
    )
    work = tuple(draw(sessions(number, names)) for number in range(draw(st.integers(1, 8))))
    return Case(Fleet(hardware, draw(SETUPS), specs), work, draw(LOADS), draw(st.integers(0, 3)))


@st.composite
def specs_of(draw: st.DrawFn, names: Sequence[str]) -> InstanceSpec:
    chosen = draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
    hot = len(chosen) == 1 and draw(st.booleans())
    return InstanceSpec(tuple(chosen), Pool.HOT if hot else Pool.COLD)


# --- one crowd, without Hypothesis -------------------------------------------------------------


def crowd(seed: int, count: int, models: Sequence[str], rate: float) -> Case:
    """``count`` sessions on two instances with little memory, at ``rate`` a second."""
    generator = np.random.default_rng(seed)
    work = tuple(_session(number, generator, models) for number in range(count))
    hardware = hardware_of(models, blocks=48, host_blocks=150)
    specs = [InstanceSpec(tuple(models)), InstanceSpec(tuple(models[:2]))]
    setup = Setup(ttft=4.0, tpot=0.15, gamma=0.8, lease_seconds=0.5)
    return Case(Fleet(hardware, setup, specs), work, Load(rate=rate), seed)


def _session(number: int, generator: np.random.Generator, models: Sequence[str]) -> Session:
    system = (Span(stream_id("system"), 0, 48),)
    made: dict[str, list[Call]] = {MAIN: [], "sub": []}
    for name, calls_of in made.items():
        context = 0
        for index in range(int(generator.integers(2, 8))):
            new, output = int(generator.integers(5, 60)), int(generator.integers(1, 30))
            kept = context if generator.random() < 0.9 else context // 2
            if kept + new + output > LONGEST - 2 * BLOCK:
                kept = 30
            added = () if kept else system
            added += (Span(stream_id("new", name, index, local=True), 0, new),)
            prompt = kept + sum(span.length for span in added)
            gap = float(generator.exponential(0.3))
            calls_of.append(Call(prompt, output, kept, added, gap))
            context = prompt + output
    made[MAIN][-1] = _join(made[MAIN][-1], ["sub"])
    branches = (Branch(MAIN, tuple(made[MAIN])), Branch("sub", tuple(made["sub"]), MAIN, 0))
    return Session(f"s{number}", branches, models[number % len(models)])


def written(cluster: Cluster) -> bytes:
    """All that a finished run leaves, as bytes."""
    lines: list[object] = [*cluster.records, cluster.counters()]
    for node in cluster.nodes:
        timeline = node.timeline
        lines += [*timeline.switches, *timeline.rounds, *timeline.memory]
    return msgspec.json.Encoder().encode_lines(lines)


def digest(policy: str) -> str:
    """Of a whole run in a crowd."""
    case = crowd(7, 25, NAMES[:3], 20.0)
    setup = msgspec.structs.replace(case.fleet.setup, policy=policy)
    fleet = replace(case.fleet, setup=setup)
    cluster = replace(case, fleet=fleet).cluster()
    cluster.run()
    return hashlib.blake2b(written(cluster)).hexdigest()
