"""From hardware and a setup to instances, a router and clients that are ready to run."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from msgspec.structs import replace

from alipes.gateway.routing.decision import RouterSettings
from alipes.gateway.routing.router import Router
from alipes.gateway.routing.sessions import SessionTable
from alipes.instance.contract import (
    PROTOCOL,
    Hello,
    InstanceSettings,
    ModelReport,
    ModelSettings,
    Pool,
    Targets,
)
from alipes.instance.engine.protocol import HostSlabs, SwitchReport
from alipes.instance.scheduler.profile import Trial
from alipes.instance.scheduler.rounds import RoundScheduler
from alipes.replay.pacing import Pacing
from alipes.replay.sim.cluster import Cluster
from alipes.replay.sim.costs import EngineCosts, engine_costs
from alipes.replay.sim.devices import Memory
from alipes.replay.sim.hardware import Hardware, HardwareError
from alipes.replay.sim.instance import SimulatedInstance
from alipes.replay.sim.node import Fault, Node, Start
from alipes.replay.sim.scenario import FaultSpec, InstanceSpec, Load, Setup, named
from alipes.replay.sim.staging import StagingModel
from alipes.replay.sim.timeline import Timeline
from alipes.replay.traces.content import Vocabulary
from alipes.replay.traces.form import Session

VOCABULARY: Final = Vocabulary()
SLABS_A_BLOCK: Final = 4
KEPT_BYTES: Final = 64 << 20
MAX_WAITING: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Fleet:
    """What a cluster is made of; the hardware is ``sized`` for the setup."""

    hardware: Hardware
    setup: Setup
    instances: Sequence[InstanceSpec]
    faults: Sequence[FaultSpec] = ()

    @property
    def targets(self) -> Targets:
        """The setup's, else the hardware profile's, else the defaults."""
        own, given = self.setup, self.hardware.targets
        usual = Targets()
        return Targets(
            ttft=own.ttft or (given.ttft.value if given else usual.ttft),
            tpot=own.tpot or (given.tpot.value if given else usual.tpot),
            gamma=own.gamma or (given.gamma.value if given else usual.gamma),
        )

    def names(self) -> list[tuple[str, InstanceSpec]]:
        """Every instance by name, with what it serves."""
        return list(named(self.instances).items())

    def faults_of(self, name: str) -> list[Fault]:
        """What befalls an instance, unless the setup leaves faults out. A process that is killed is
        back when it has loaded its weights."""
        usual = self.hardware.fixed.relaunch.value
        return [
            fault.planned(usual)
            for fault in self.faults
            if fault.instance == name and self.setup.faults
        ]


def sized(hardware: Hardware, setup: Setup) -> Hardware:
    """With what the setup says otherwise of it."""
    return replace(
        hardware,
        block_tokens=setup.block_tokens or hardware.block_tokens,
        exchange=hardware.exchange if setup.exchange is None else setup.exchange,
        prefill_chunk=setup.prefill_chunk or hardware.prefill_chunk,
        max_running=setup.max_running or hardware.max_running,
    )


def build(fleet: Fleet, sessions: Sequence[Session], load: Load, seed: int, warmup: int) -> Cluster:
    """A cluster in which every instance has connected. Raises ``HardwareError`` for a model that
    the hardware does not know or cannot hold, ``SessionError`` for sessions that never end."""
    pacing = Pacing(sessions, load.settings(seed), 0)
    generator = np.random.default_rng(seed)
    size = fleet.hardware.block_tokens
    table = SessionTable(1_000_000, 1e9, generator.bytes, KEPT_BYTES, size)
    per_call = fleet.setup.gateway_seconds or fleet.hardware.gateway_seconds.value
    gateway_ns = round(per_call * 1e9)
    router = router_of(fleet)
    cluster = Cluster(sessions, pacing, router, table, VOCABULARY, gateway_ns, warmup)
    cluster.start(
        {
            name: Node(name, _start(fleet, name, spec, cluster), fleet.faults_of(name), cluster)
            for name, spec in fleet.names()
        }
    )
    return cluster


def router_of(fleet: Fleet) -> Router:
    """The cluster's router, which knows no instance yet."""
    setup = fleet.setup
    known: dict[str, set[str]] = {}
    for name, spec in fleet.names():
        for model in spec.models:
            known.setdefault(model, set()).add(name)
    settings = RouterSettings(
        queue_depth=setup.queue_depth,
        queue_timeout=setup.queue_timeout,
        lease_seconds=setup.lease_seconds,
        policy=setup.policy,
        control_window=setup.control_window,
        replica_penalty=setup.replica_penalty,
        eviction_cost=setup.eviction_cost,
    )
    return Router({model: frozenset(names) for model, names in known.items()}, settings)


def _start(fleet: Fleet, name: str, spec: InstanceSpec, cluster: Cluster) -> Start:
    """Makes one process of the instance after another."""
    timeline, incarnations = Timeline(name), itertools.count(1)

    def start(now: int) -> tuple[SimulatedInstance, Hello]:
        process, hello = _process(fleet, name, spec, cluster, timeline, now)
        return process, replace(hello, incarnation=f"simulated-{next(incarnations)}")

    return start


def _process(
    fleet: Fleet, name: str, spec: InstanceSpec, cluster: Cluster, timeline: Timeline, now: int
) -> tuple[SimulatedInstance, Hello]:
    hardware, setup = fleet.hardware, fleet.setup
    settings = _settings(fleet, name, spec)
    costs = {model: engine_costs(hardware, model) for model in spec.models}
    reports = tuple(_report(hardware, costs[model]) for model in spec.models)
    host = _host(reports, settings.host_bytes)
    scheduler = RoundScheduler(settings, reports, host)
    staging = StagingModel(name, hardware, costs, setup.staging)
    for report in reports:
        scheduler.learn(_trial(report, costs[report.name], settings.prefill_chunk))
    memory = Memory(
        capacity=int(hardware.device_bytes.value),
        runtime=int(hardware.runtime_bytes.value),
        weights={report.name: report.weight_bytes for report in reports},
        block_bytes={model: cost.block_bytes for model, cost in costs.items()},
    )
    instance = SimulatedInstance(
        name,
        scheduler,
        costs,
        staging,
        memory,
        hardware.block_tokens,
        cluster.message,
        timeline,
        now,
    )
    hello = Hello(
        protocol=PROTOCOL,
        name=name,
        incarnation="",
        pool=spec.pool,
        engine="simulated",
        device=hardware.name,
        block_tokens=hardware.block_tokens,
        max_running=settings.max_running,
        max_waiting=settings.max_waiting,
        prefill_chunk=settings.prefill_chunk,
        targets=settings.targets,
        models=reports,
        pid=0,
    )
    return instance, hello


def _host(reports: Sequence[ModelReport], host_bytes: int) -> HostSlabs:
    """Slabs that divide every model's block, as live, unless those would be very many; then each
    block takes as many of the smallest as it needs and wastes a part of the last."""
    sizes = [report.block_bytes for report in reports]
    common, smallest = math.gcd(*sizes), min(sizes)
    slab = common if common * SLABS_A_BLOCK >= smallest else smallest
    return HostSlabs(slab, host_bytes // slab)


def _settings(fleet: Fleet, name: str, spec: InstanceSpec) -> InstanceSettings:
    hardware, setup = fleet.hardware, fleet.setup
    return InstanceSettings(
        name=name,
        pool=Pool(spec.pool),
        models=tuple(ModelSettings(model, "") for model in spec.models),
        targets=fleet.targets,
        endpoint="",
        engine="simulated",
        device="cuda",
        device_bytes=int(hardware.device_bytes.value),
        host_bytes=setup.host_bytes or int(hardware.host_bytes.value),
        block_tokens=hardware.block_tokens,
        prefill_chunk=hardware.prefill_chunk,
        max_running=hardware.max_running,
        max_waiting=MAX_WAITING,
        allow_forced_tokens=True,
        switch_share=setup.switch_share,
        session_prefill=setup.session_prefill,
        host_kv=setup.host_kv,
        prefill_turns=setup.prefill_turns,
    )


def _report(hardware: Hardware, costs: EngineCosts) -> ModelReport:
    if costs.kv_blocks < 1:
        raise HardwareError(
            f"{hardware.name}: {costs.model} leaves no room for a block of KV;"
            " give it a larger device_bytes"
        )
    return ModelReport(
        name=costs.model,
        kv_format=f"simulated:{costs.model}",
        context=hardware.models[costs.model].context,
        vocab_size=VOCABULARY.high,
        weight_bytes=costs.weight_bytes,
        # Ranks that all hold the same KV need one copy of it on the host, which this sizes.
        block_bytes=costs.host_block_bytes,
        kv_blocks=costs.kv_blocks,
    )


def _trial(report: ModelReport, costs: EngineCosts, chunk: int) -> Trial:
    """What a live instance measures before its first call."""
    most = min(chunk, report.context - 1)
    prompts = sorted({max(1, most // 4), most})
    return Trial(
        model=report.name,
        switch=SwitchReport(
            costs.switch(report.weight_bytes, 0) / 1e9, h2d_bytes=report.weight_bytes
        ),
        prefills=tuple((n, costs.prefill([(n, 0)]) / 1e9) for n in prompts),
        context=most + 1,
        decode=costs.decode(1, most + 1, 1) / 1e9,
        restores=tuple((n, costs.restore(n) / 1e9) for n in sorted({64, most})),
    )
