"""The simulated instance tells what the live loop tells, and when.

``EngineLoop`` runs over an engine on a virtual clock, ``SimulatedInstance`` on the simulator's;
both have the same costs, and the same sessions come to them. All that is replaced of the loop is
its inbox, whose wait moves the clock. Of what they tell, every message must be the same and at the
same time, except for what is so by design:

- Tokens are not told one by one in the simulator, and device blocks of a decode run are told in
  stretches: between two other messages the same blocks must be told, in any order.
- States are told when somebody asks, and not compared.
- While nothing is to be done the live loop asks every 5 ms for copies that have ended; here its
  inbox wakes it when they end.
- A profile learns of a stretch its mean alone: decode costs are known from the start.
"""

from __future__ import annotations

import heapq
import queue
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from alipes.instance import loop
from alipes.instance.contract import (
    BlocksRemoved,
    BlocksStored,
    Cancel,
    Failed,
    Finished,
    FromInstance,
    ModelReport,
    Snapshot,
    Stop,
    Submit,
    Tier,
    Tokens,
)
from alipes.instance.engine.protocol import (
    BlockCopy,
    CopyEnd,
    HostSlabs,
    Row,
    Sampled,
    Staged,
    SwitchReport,
)
from alipes.instance.loop import EngineLoop
from alipes.instance.scheduler import phases
from alipes.instance.scheduler.rounds import RoundScheduler
from alipes.instance.scheduler.work import Restore, Run
from alipes.replay.runs import SwitchRecord
from alipes.replay.sim.clock import Clock, Rank
from alipes.replay.sim.copier import Copier
from alipes.replay.sim.devices import Memory
from alipes.replay.sim.instance import SimulatedInstance

from .simulated import BLOCK, SLAB
from .timed import KnownCost, Session, Step
from .worlds import World, worlds

Told = tuple[int, FromInstance]


@dataclass(frozen=True)
class LinearCosts:
    """Nanoseconds."""

    cold: int
    base: int
    token: int
    step: int
    call: int
    position: int
    copy: int

    @classmethod
    def of(cls, world: World) -> LinearCosts:
        costs = world.costs
        seconds = (costs.base, costs.token, costs.step, costs.call, 1e-5, world.copying / BLOCK)
        return cls(3_000_000, *(round(value * 1e9) for value in seconds))

    def prefill(self, rows: Sequence[tuple[int, int]]) -> int:
        return self.base + self.token * sum(new for new, _ in rows)

    def decode(self, calls: int, context: int, steps: int) -> int:
        positions = steps * context + calls * (steps * (steps - 1) // 2)
        return steps * (self.step + calls * self.call) + positions * self.position

    def restore(self, tokens: int) -> int:
        return self.base + tokens * self.copy

    def checkpoint(self, tokens: int) -> int:
        return tokens * self.copy

    def known(self) -> KnownCost:
        return KnownCost(self.step / 1e9, self.call / 1e9, self.position / 1e9)


class Clients:
    """Sessions whose calls come as they did in the other world, as long as the answers do. No two
    calls come at the same time, nor when an instance is done with something that began with
    another call: who is first then is the total order of the simulator."""

    def __init__(self, sessions: Sequence[Session]) -> None:
        self._due: list[tuple[int, bytes, Submit | Cancel]] = []
        self._later: dict[bytes, tuple[Step, ...]] = {}
        self._count = 0
        for session in sessions:
            self._go_on(tuple(session), 0)

    @property
    def next(self) -> int | None:
        return self._due[0][0] if self._due else None

    def take(self) -> Submit | Cancel:
        return heapq.heappop(self._due)[2]

    def told(self, message: FromInstance, now: int) -> None:
        if isinstance(message, Finished | Failed):
            self._go_on(self._later.pop(message.call_id), now)

    def _go_on(self, steps: tuple[Step, ...], now: int) -> None:
        if not steps:
            return
        step, call_id = steps[0], steps[0].call.call_id
        self._later[call_id] = steps[1:]
        self._count += 1
        due = now + step.gap + 7 * self._count
        heapq.heappush(self._due, (due, call_id, step.call))
        if step.patience is not None:
            heapq.heappush(self._due, (due + step.patience + 3, call_id, Cancel(call_id)))


# --- the live loop -----------------------------------------------------------------------------


class VirtualEngine:
    """Takes its time from ``LinearCosts``; ``run`` and ``tokens`` are what the loop is about."""

    kind = "virtual"

    def __init__(self, reports: tuple[ModelReport, ...], host: HostSlabs, world: World) -> None:
        self.reports = reports
        self.host = host
        self.now = 0
        self.copier = Copier()
        self.run: Run | None = None
        self.tokens = 0
        self._costs = LinearCosts.of(world)
        self._switch = round(world.costs.switch * 1e9)
        self._cold: set[bytes] = set()

    def clock(self) -> int:
        return self.now

    def begin(self, run: Run) -> None:
        self.run = run
        self._cold |= {s.call_id for s in run.started if not s.cached_tokens}

    def activate(self, model: str) -> SwitchReport:
        del model
        self.now += self._switch
        return SwitchReport(self._switch / 1e9, h2d_bytes=1)

    def step(self, rows: Sequence[Row]) -> tuple[Sampled, ...]:
        assert self.run is not None
        if self.run.phase in phases.DECODE:
            context = sum(row.start + 1 for row in rows)
            self.now += self._costs.decode(len(rows), context, 1)
        else:
            cold = {row.call_id for row in rows} & self._cold
            self._cold -= cold
            new = [(len(row.tokens), row.start) for row in rows]
            self.now += self._costs.prefill(new) + (self._costs.cold if cold else 0)
        drawn = []
        for row in rows:
            if row.draw is not None:
                assert row.draw.forced is not None
                drawn.append(Sampled(row.call_id, row.draw.forced))
        return tuple(drawn)

    def stage(self, following: str | None, rows: int) -> Staged:
        return Staged()

    def copy_out(self, ticket: int, copies: Sequence[BlockCopy]) -> None:
        duration = self._costs.checkpoint(len(copies) * BLOCK)
        self.copier.begin(ticket, duration, self.now)

    def copied(self) -> tuple[CopyEnd, ...]:
        return self.copier.ended(self.now)

    def drain(self) -> tuple[CopyEnd, ...]:
        self.now = max(self.now, self.copier.drained())
        return self.copied()

    def copy_in(self, copies: Sequence[BlockCopy]) -> None:
        del copies
        self.now += self._costs.restore(self.tokens)

    def close(self) -> None:
        pass


class VirtualInbox(queue.SimpleQueue[Any]):
    """Has what its clients have sent by now; waiting for more moves the clock."""

    def __init__(self, clients: Clients, engine: VirtualEngine, scheduler: RoundScheduler) -> None:
        self._clients = clients
        self._engine = engine
        self._scheduler = scheduler

    def empty(self) -> bool:
        due = self._clients.next
        return due is None or due > self._engine.now

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        del block
        engine, due = self._engine, self._clients.next
        until = engine.now + (0 if timeout is None else round(timeout * 1e9))
        ends = engine.copier.next_end
        if ends is not None:
            until = max(engine.now, min(until, ends))
        if due is not None and due <= until:
            engine.now = max(engine.now, due)
            return self._clients.take()
        if due is None and ends is None and self._scheduler.idle:
            return Stop()
        engine.now = until
        raise queue.Empty


class VirtualLoop(EngineLoop):
    """Tells its engine what the work is about."""

    def __init__(self, engine: VirtualEngine, scheduler: RoundScheduler, clients: Clients) -> None:
        self.virtual = engine
        self.told: list[Told] = []
        self.clients = clients
        super().__init__(engine, scheduler, self._hear, engine.clock)
        self._inbox = VirtualInbox(clients, engine, scheduler)

    def _hear(self, message: FromInstance) -> None:
        self.told.append((self.virtual.now, message))
        self.clients.told(message, self.virtual.now)

    def _iterate(self, run: Run) -> None:
        self.virtual.begin(run)
        super()._iterate(run)

    def _restore(self, work: Restore) -> None:
        self.virtual.tokens = work.tokens
        super()._restore(work)


def live(world: World) -> list[Told]:
    scheduler, reports, host = scheduler_of(world)
    engine = VirtualEngine(reports, host, world)
    running = VirtualLoop(engine, scheduler, Clients(world.sessions))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "COPY_POLL_SECONDS", 1e9)
        running.run()
    return running.told


# --- the simulator -----------------------------------------------------------------------------


@dataclass(frozen=True)
class FixedSwitch:
    """Weights that take the same time whatever is staged."""

    duration: int
    staged = Staged()

    def serving(self, following: str | None, begin: int, end: int, rows: int) -> None:
        assert 0 <= begin <= end
        assert rows >= 0

    def switch(self, model: str, now: int) -> tuple[int, SwitchRecord]:
        seconds = self.duration / 1e9
        return self.duration, SwitchRecord("i", now / 1e9, model, "h2d", seconds, 1)


class Simulation:
    """Clients ask for the state before they send, as the gateway does."""

    def __init__(self, world: World) -> None:
        scheduler, reports, _ = scheduler_of(world)
        costs = LinearCosts.of(world)
        names = [report.name for report in reports]
        memory = Memory(1, 0, dict.fromkeys(names, 1), dict.fromkeys(names, 1))
        switch = FixedSwitch(round(world.costs.switch * 1e9))
        self.told: list[Told] = []
        self._clients = Clients(world.sessions)
        self._instance = SimulatedInstance(
            "i", scheduler, dict.fromkeys(names, costs), switch, memory, BLOCK, self._hear
        )
        self._clock = Clock([(Rank.INSTANCE, self._instance), (Rank.CLIENT, self)])

    def run(self) -> list[Told]:
        self._clock.moved(0)
        self._clock.moved(1)
        while self._clock.step():
            pass
        assert self._instance.scheduler.idle
        return self.told

    @property
    def wakeup(self) -> int | None:
        return self._clients.next

    def act(self, now: int) -> None:
        self._instance.refresh(now)
        self._instance.deliver(self._clients.take(), now)
        self._clock.moved(0)

    def _hear(self, name: str, message: FromInstance) -> None:
        del name
        self.told.append((self._clock.now, message))
        self._clients.told(message, self._clock.now)
        self._clock.moved(1)


def scheduler_of(world: World) -> tuple[RoundScheduler, tuple[ModelReport, ...], HostSlabs]:
    chosen, reports, _, _ = world.parts()
    host = HostSlabs(SLAB, chosen.host_bytes // SLAB)
    scheduler = RoundScheduler(chosen, reports, host)
    costs = LinearCosts.of(world)
    for state in scheduler._calls.models.values():
        state.profile.decode = costs.known()  # type: ignore[assignment]
        state.profile.restore = KnownCost(costs.base / 1e9, costs.copy / 1e9)  # type: ignore[assignment]
    return scheduler, reports, host


# --- what is compared --------------------------------------------------------------------------


def comparable(told: list[Told]) -> list[Any]:
    """Messages with their times, and between two of them the blocks told of: those that are new on
    the device, and all that are gone (which a stretch tells first)."""
    found: list[Any] = []
    blocks: Counter[tuple[bool, str, Tier, bytes]] = Counter()
    for now, message in told:
        if isinstance(message, Tokens | Snapshot):
            continue
        removed = isinstance(message, BlocksRemoved)
        if removed or (isinstance(message, BlocksStored) and message.tier is Tier.DEVICE):
            blocks.update((removed, message.model, message.tier, key) for key in message.keys)
            continue
        found += [(now, message), blocks]
        blocks = Counter()
    return [*found, blocks]


@settings(max_examples=70, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(world=worlds())
def test_the_simulated_instance_is_the_live_loop(world: World) -> None:
    expected = comparable(live(world))
    for one, other in zip(comparable(Simulation(world).run()), expected, strict=True):
        assert one == other
