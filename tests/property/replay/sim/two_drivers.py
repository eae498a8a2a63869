"""The same sessions and faults through both drivers of the call book.

*Live*: the gateway's ``Dispatcher`` on an event loop whose clock is virtual, and for every instance
an ``EngineLoop`` over the fake engine, in a thread that waits on that clock. *Simulated*:
``Cluster`` and ``Node``. Both write down every message that passes between gateway and instances,
and how calls end. What is so by design is left out or brought to one form:

- Tokens are told one by one live and in bulk in the simulator.
- Blocks that come and go in a decode run are told in stretches there: between two other messages
  of an instance the same ones must be told, in any order.
- States: an instance tells its own when the gateway looks, at most four times a second, in both.
- A profile learns of a stretch its mean alone: decode costs are known from the start.
- Copies to the host take no time.
"""

from __future__ import annotations

import asyncio
import itertools
import queue
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from alipes.gateway.calls.book import CallBook
from alipes.gateway.calls.events import CallFailure
from alipes.gateway.dispatch import Dispatcher
from alipes.gateway.inbox import Inbox, InboxEvent
from alipes.gateway.routing.decision import RouterSettings
from alipes.gateway.routing.router import Router
from alipes.gateway.routing.sessions import SessionTable
from alipes.instance.contract import (
    PROTOCOL,
    BlocksRemoved,
    BlocksStored,
    Cancel,
    Drawn,
    Failed,
    FakeCosts,
    Finished,
    FromInstance,
    Hello,
    InstanceSettings,
    ModelSettings,
    Ping,
    Pool,
    Snapshot,
    Submit,
    Targets,
    Tier,
    ToInstance,
    Tokens,
    Welcome,
)
from alipes.instance.engine.fake.engine import TOKEN_BYTES, FakeEngine
from alipes.instance.engine.protocol import BlockCopy, Staged, SwitchReport
from alipes.instance.loop import EngineLoop
from alipes.instance.scheduler.rounds import RoundScheduler
from alipes.instance.scheduler.work import Restore
from alipes.replay.pacing import Pacing, PacingSettings, Send
from alipes.replay.runs import SwitchRecord
from alipes.replay.sim.calls import SessionContent, SimulatedCall
from alipes.replay.sim.clock import Rank
from alipes.replay.sim.cluster import Cluster, claim_of
from alipes.replay.sim.devices import Memory
from alipes.replay.sim.instance import SNAPSHOT_NS, SimulatedInstance
from alipes.replay.sim.node import SILENCE_NS, Fault, FaultKind, Node
from alipes.replay.sim.timeline import Timeline
from alipes.replay.traces.content import Vocabulary
from alipes.replay.traces.form import Session

from .baton import Baton, Thread

VOCABULARY = Vocabulary()
BLOCK = 16
LOST = "lost"
Line = tuple[int, str, Any]
"""When (ns), between whom, and what."""
Block = tuple[Any, ...]


class KnownCost:
    """Stands for a ``LinearFit`` that has nothing to learn."""

    samples = 0

    def __init__(self, *coefficients: float) -> None:
        self.coefficients = coefficients

    def observe(self, features: Sequence[float], seconds: float, count: int = 1) -> None:
        pass


@dataclass(frozen=True)
class Costs:
    """Nanoseconds, of no common divisor, so that no two things happen at once by chance."""

    step: int = 20_000_003
    token: int = 1_000_037
    switch: int = 150_000_011
    restore: int = 50_021

    cold = 0

    def prefill(self, rows: Sequence[tuple[int, int]]) -> int:
        return self.step + self.token * sum(new for new, _ in rows if new > 1)

    def decode(self, calls: int, context: int, steps: int) -> int:
        return self.step * steps

    def copy(self, tokens: int) -> int:
        return self.restore * tokens

    def checkpoint(self, tokens: int) -> int:
        return 0

    @property
    def fake(self) -> FakeCosts:
        return FakeCosts(self.token / 1e9, self.step / 1e9, self.switch / 1e9)


@dataclass(frozen=True)
class _SimulatedCosts:
    costs: Costs
    cold = 0

    def prefill(self, rows: Sequence[tuple[int, int]]) -> int:
        return self.costs.prefill(rows)

    def decode(self, calls: int, context: int, steps: int) -> int:
        return self.costs.decode(calls, context, steps)

    def restore(self, tokens: int) -> int:
        return self.costs.copy(tokens)

    def checkpoint(self, tokens: int) -> int:
        return self.costs.checkpoint(tokens)


@dataclass(frozen=True)
class World:
    """``instances`` by name, with what each serves; ``faults`` by name too."""

    sessions: tuple[Session, ...]
    pacing: PacingSettings
    instances: dict[str, tuple[str, ...]]
    faults: dict[str, tuple[Fault, ...]] = field(default_factory=dict)
    device_blocks: int = 40
    host_blocks: int = 100
    chunk: int = 64
    running: int = 4
    lease: float = 0.5
    patience: float = 1e6
    costs: Costs = Costs()

    def settings(self, name: str) -> InstanceSettings:
        models = self.instances[name]
        return InstanceSettings(
            name=name,
            pool=Pool.COLD if len(models) > 1 else Pool.HOT,
            models=tuple(ModelSettings(model, "") for model in models),
            targets=Targets(ttft=4.0, tpot=0.15, gamma=0.8),
            endpoint="",
            engine="fake",
            device_bytes=self.device_blocks * BLOCK * TOKEN_BYTES,
            host_bytes=self.host_blocks * BLOCK * TOKEN_BYTES,
            block_tokens=BLOCK,
            prefill_chunk=self.chunk,
            max_running=self.running,
            allow_forced_tokens=True,
            fake=self.costs.fake,
        )

    def scheduler(self, name: str, engine: FakeEngine) -> RoundScheduler:
        settings = self.settings(name)
        scheduler = RoundScheduler(settings, engine.reports, engine.host)
        for state in scheduler._calls.models.values():
            state.profile.decode = KnownCost(self.costs.step / 1e9, 0.0, 0.0)  # type: ignore[assignment]
        return scheduler

    def hello(self, name: str, engine: FakeEngine, incarnation: int) -> Hello:
        settings = self.settings(name)
        return Hello(
            protocol=PROTOCOL,
            name=name,
            incarnation=str(incarnation),
            pool=settings.pool,
            engine="fake",
            device="cpu",
            block_tokens=BLOCK,
            max_running=settings.max_running,
            max_waiting=settings.max_waiting,
            prefill_chunk=settings.prefill_chunk,
            targets=settings.targets,
            models=engine.reports,
            pid=0,
        )

    def router(self) -> Router:
        known: dict[str, set[str]] = {}
        for name, models in self.instances.items():
            for model in models:
                known.setdefault(model, set()).add(name)
        settings = RouterSettings(
            queue_depth=100_000, queue_timeout=self.patience, lease_seconds=self.lease
        )
        return Router({model: frozenset(names) for model, names in known.items()}, settings)

    def table(self) -> SessionTable:
        return SessionTable(100_000, 1e9, Random(1).randbytes, block_tokens=BLOCK)


@dataclass
class Log:
    """All that passed, and how calls ended."""

    lines: list[Line] = field(default_factory=list)
    ends: dict[str, bool] = field(default_factory=dict)
    """By call, whether it failed."""

    def sent(self, now: int, name: str, message: ToInstance) -> None:
        if isinstance(message, Submit | Cancel | Ping):
            self.lines.append((now, f"to {name}", message))

    def said(self, now: int, name: str, body: FromInstance) -> None:
        if not isinstance(body, Tokens | Snapshot):
            self.lines.append((now, f"from {name}", body))

    def lost(self, now: int, name: str) -> None:
        self.lines.append((now, f"from {name}", LOST))

    def comparable(self) -> dict[str, list[Any]]:
        """Messages of every direction, see ``_comparable``."""
        ways = dict.fromkeys(way for _, way, _ in self.lines)
        return {way: _comparable([line for line in self.lines if line[1] == way]) for way in ways}


def _comparable(lines: list[Line]) -> list[Any]:
    """Messages with their times, and between two of them the blocks told of: those that are new on
    the device, and all that are gone (a stretch tells these first). A lost link ends what is known:
    what was not told by then, or goes without being known, is passed over."""
    found: list[Any] = []
    blocks: Counter[Block] = Counter()
    known: set[Block] = set()
    for now, _, message in lines:
        if isinstance(message, BlocksStored | BlocksRemoved):
            keys = {(message.model, message.tier, key) for key in message.keys}
            if isinstance(message, BlocksRemoved):
                blocks.update((*key, "gone") for key in keys & known)
                known -= keys
                continue
            known |= keys
            if message.tier is Tier.DEVICE:
                blocks.update((*key, "new") for key in keys)
                continue
        if message == LOST:
            known, blocks = set(), Counter()
        found += [(now, message), blocks]
        blocks = Counter()
    return [*found, blocks]


# --- live --------------------------------------------------------------------------------------


class VirtualFake(FakeEngine):
    """Takes its time from the baton; ``copying`` tokens are those of the restore under way."""

    thread: Thread
    copying = 0

    def __init__(self, world: World, name: str, baton: Baton) -> None:
        super().__init__(world.settings(name))
        self.baton, self.costs = baton, world.costs
        self._spend = lambda seconds: self._wait(round(seconds * 1e9))  # type: ignore[method-assign]

    def _wait(self, duration: int) -> None:
        if duration:
            self.thread.wait_until(self.baton.now + duration)

    def activate(self, model: str) -> SwitchReport:
        begin = self.baton.now
        report = super().activate(model)
        return SwitchReport((self.baton.now - begin) / 1e9, h2d_bytes=report.h2d_bytes or 1)

    def copy_in(self, copies: Sequence[BlockCopy]) -> None:
        self._wait(self.costs.copy(self.copying))
        super().copy_in(copies)


class VirtualInbox(queue.SimpleQueue[Any]):
    """Waiting for a message lets virtual time pass."""

    thread: Thread

    def __init__(self, baton: Baton) -> None:
        self.baton = baton

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if self.empty():
            until = self.baton.now + max(1, round((timeout or 1e6) * 1e9))
            self.thread.wait_until(until, idle=True)
        return super().get(block=False)


class VirtualLoop(EngineLoop):
    """Tells its state when it has nothing to do, and else when the gateway looks."""

    def __init__(
        self, engine: VirtualFake, scheduler: RoundScheduler, emit: Callable[[FromInstance], None]
    ) -> None:
        super().__init__(engine, scheduler, emit, lambda: engine.baton.now)
        self.virtual = engine
        self._inbox = VirtualInbox(engine.baton)

    def start(self) -> Thread:
        thread = Thread(self.virtual.baton, Rank.INSTANCE, self.run)
        self.virtual.thread = self._inbox.thread = thread
        return thread

    def _wait(self, seconds: float) -> None:
        self._emit(self._scheduler.snapshot(self._clock()))
        self._changed = False
        super()._wait(seconds)

    def _tell_snapshot(self, now: int) -> None:
        self._changed = False

    def _restore(self, work: Restore) -> None:
        self.virtual.copying = work.tokens
        super()._restore(work)


class LiveInstance:
    """One process after another under one name."""

    def __init__(self, stack: LiveStack, name: str) -> None:
        self.stack = stack
        self.name = name
        self.linked = self.up = False
        self.hung: int | None = None
        self.told = 0
        self.process: object = None
        self._numbers = itertools.count(1)
        self._unread: list[Any] = []

    def start(self) -> None:
        world, baton = self.stack.world, self.stack.baton
        engine = VirtualFake(world, self.name, baton)
        self.scheduler = world.scheduler(self.name, engine)
        process = self.process = object()
        self.loop = VirtualLoop(engine, self.scheduler, lambda body: self._emit(process, body))
        self.hello = world.hello(self.name, engine, next(self._numbers))
        self.up = True
        self.calls: dict[bytes, None] = {}
        self.thread = self.loop.start()
        self.link()

    def link(self) -> None:
        self.linked = True
        self.stack.dispatcher.connected(self.hello)
        self.stack.look_at(self, force=True)
        self.stack.stir()

    def _emit(self, process: object, body: FromInstance) -> None:
        """In the thread: the gateway reads it when the thread has given way."""
        if isinstance(body, Finished | Failed):
            self.calls.pop(body.call_id, None)
        baton = self.stack.baton
        baton.at(baton.now, Rank.INSTANCE, lambda: self.stack.heard(self, process, body))

    def post(self, message: Any) -> None:
        if self.hung is not None:
            self._unread.append(message)
            return
        if isinstance(message, Submit):
            self.calls[message.call_id] = None
        elif isinstance(message, Cancel):
            self.calls.pop(message.call_id, None)
        self.loop.post(message)
        self.thread.wake()

    # --- faults ---

    def fail(self, fault: Fault) -> None:
        if not self.up:
            return
        now = self.stack.baton.now
        if fault.kind is FaultKind.KILL:
            self.hung = self.process = None
            self.up = False
            self.thread.kill()
            self.lose("it was killed")
            if fault.lasts is not None:
                self.stack.baton.at(now + fault.lasts, Rank.INSTANCE, self.start)
        elif self.hung is None:
            self.hung = now
            self.thread.freeze()
            self.stack.baton.at(now + SILENCE_NS, Rank.INSTANCE, lambda: self._silent(now))
            if fault.lasts is not None:
                self.stack.baton.at(now + fault.lasts, Rank.INSTANCE, lambda: self._go_on(now))

    def _silent(self, since: int) -> None:
        if self.hung == since:
            self.lose(f"no beat for {SILENCE_NS / 1e9:g} s")

    def lose(self, reason: str) -> None:
        if self.linked:
            self.linked = False
            self._unread.clear()
            self.stack.log.lost(self.stack.baton.now, self.name)
            self.stack.dispatcher.lost(self.name, reason)
            self.stack.stir()

    def _go_on(self, since: int) -> None:
        if self.hung != since:
            return
        self.hung = None
        self.thread.thaw(self.stack.baton.now - since)
        unread, self._unread = self._unread, []
        for message in unread:
            self.post(message)
        if not self.linked:
            for call_id in tuple(self.calls):
                self.post(Cancel(call_id))
            self.post(Welcome(PROTOCOL))
            self.link()


class Listening(Inbox):
    """Hands every event on at once."""

    def __init__(self, hear: Callable[[InboxEvent], None]) -> None:
        super().__init__()
        self._hear = hear

    def post(self, index: int, event: InboxEvent) -> None:
        self._hear(event)


class VirtualEventLoop(asyncio.SelectorEventLoop):
    """Its time is the baton's."""

    baton: Baton

    def time(self) -> float:
        return self.baton.now / 1e9


class LiveStack:
    """The dispatcher and its instances, and clients that pace themselves as in the simulator."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.baton = Baton()
        self.log = Log()
        self.event_loop = VirtualEventLoop()
        self.event_loop.baton = self.baton
        numbers = itertools.count(1)
        book = CallBook(
            world.router(), world.table(), lambda size: next(numbers).to_bytes(size, "big")
        )
        self.dispatcher = Dispatcher(book, self._send, lambda: self.baton.now)
        self.pacing = Pacing(world.sessions, world.pacing, 0)
        self._contents: dict[int, SessionContent] = {}
        self._looked = 0
        self._look_due: int | None = None
        self._clients_due: int | None = None
        self.instances = {name: LiveInstance(self, name) for name in world.instances}

    def run(self) -> Log:
        """Timers of the loop are made, but it is the baton that calls when they are due."""
        asyncio._set_running_loop(self.event_loop)
        try:
            return self._run()
        finally:
            asyncio._set_running_loop(None)
            self.dispatcher.close()
            self.event_loop.close()

    def _run(self) -> Log:
        for instance in self.instances.values():
            instance.start()
        for name, faults in self.world.faults.items():
            instance = self.instances[name]
            for fault in faults:
                self.baton.at(fault.at, Rank.INSTANCE, lambda i=instance, f=fault: i.fail(f))
        self._plan_clients()
        while not self.pacing.done:
            assert self.baton.step(), "calls wait and nothing will happen"
        # What happens at the instant at which the last call ends.
        while self.baton.due == self.baton.now:
            self.baton.step()
        for instance in self.instances.values():
            if instance.up:
                instance.thread.kill()
        return self.log

    # --- clients ---

    def _plan_clients(self) -> None:
        due = self.pacing.next_wakeup()
        if due is not None and due != self._clients_due:
            self._clients_due = due
            self.baton.at(due, Rank.CLIENT, lambda: self._send_due(due))

    def _send_due(self, due: int) -> None:
        if due != self._clients_due:
            return
        self._clients_due = None
        for send in self.pacing.due(self.baton.now):
            self._send_call(send)
        self.stir()
        self._plan_clients()

    def _send_call(self, send: Send) -> None:
        session = self.world.sessions[send.session]
        branch = session.branches[send.branch]
        if send.session not in self._contents:
            self._contents[send.session] = SessionContent(session, VOCABULARY)
        content = self._contents[send.session]
        simulated = SimulatedCall(
            send=send,
            session_id=session.id,
            branch=branch,
            call=branch.calls[send.index],
            model=branch.model or session.model,
            prompt=content.prompt(branch, send.index),
            reply=content.reply(branch, send.index),
            sent=self.baton.now,
            warmup=False,
        )
        self._refresh(simulated.model)
        request = simulated.request(claim_of(session, branch, send.last))
        drawn: list[int] = []
        inbox = Listening(lambda event: self._client_hears(simulated, drawn, event))
        call = self.dispatcher.submit(request, 0, inbox)
        if call in self.dispatcher.book.waiting:
            self._looked = self.baton.now
            self.plan_look()

    def _client_hears(self, call: SimulatedCall, drawn: list[int], event: InboxEvent) -> None:
        if isinstance(event, Drawn):
            drawn.append(event.token)
        elif isinstance(event, Finished | CallFailure):
            finished = isinstance(event, Finished)
            name = f"{call.session_id}.{call.branch.name}.{call.send.index}"
            self.log.ends[name] = not finished
            if finished:
                assert drawn == call.reply.tolist()
                content = self._contents[call.send.session]
                content.remember(call.branch, call.send.index, call.context())
            self.pacing.ended(call.send, finished, self.baton.now)
            self.stir()
            self._plan_clients()

    # --- the gateway ---

    def _send(self, name: str, message: ToInstance) -> bool:
        instance = self.instances[name]
        if not instance.linked:
            return False
        self.log.sent(self.baton.now, name, message)
        if not isinstance(message, Ping):
            instance.post(message)
        elif instance.hung is None:
            self.dispatcher.book.beat(name, self.baton.now)
            self.stir()
        return True

    def heard(self, instance: LiveInstance, process: object, body: FromInstance) -> None:
        """The gateway reads what a process has said, unless its link is gone by now."""
        if process is not instance.process or not instance.linked:
            return
        if isinstance(body, Snapshot):
            instance.told = self.baton.now
        self.log.said(self.baton.now, instance.name, body)
        self.dispatcher.message(instance.name, body)
        if isinstance(body, Snapshot | Finished | Failed):
            self.stir()

    def stir(self) -> None:
        self.plan_look(self.baton.now)

    def plan_look(self, at: int | None = None) -> None:
        """The gateway hears of states within a moment of anything that may let a call go, and
        every quarter of a second while one waits."""
        if not self.dispatcher.book.waiting:
            return
        now = self.baton.now
        due = self._looked + SNAPSHOT_NS if at is None else at
        wakeup = self.dispatcher.book.next_wakeup(now)
        due = max(now, due if wakeup is None else min(due, wakeup))
        if self._look_due is None or due < self._look_due:
            self._look_due = due
            self.baton.at(due, Rank.GATEWAY, lambda: self._look(due))

    def _look(self, due: int) -> None:
        if due != self._look_due:
            return
        self._look_due, self._looked = None, self.baton.now
        self.dispatcher.tick()
        waiting = self.dispatcher.book.waiting
        for model in dict.fromkeys(call.request.model for call in waiting):
            self._refresh(model)
        self.dispatcher.tick()
        self.plan_look()

    def _refresh(self, model: str) -> None:
        for instance in self.instances.values():
            if model in self.world.instances[instance.name]:
                self.look_at(instance)

    def look_at(self, instance: LiveInstance, force: bool = False) -> None:
        if not instance.up or instance.hung is not None or not instance.linked:
            return
        now, name = self.baton.now, instance.name
        if force or now - instance.told >= SNAPSHOT_NS:
            instance.told = now
            snapshot = instance.scheduler.snapshot(now)
            self.dispatcher.book.message(name, snapshot, now)
        self.dispatcher.book.beat(name, now)


# --- simulated ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class FixedSwitch:
    """Weights that take the same time whatever is staged."""

    duration: int
    bytes: int

    staged = Staged()

    def serving(self, following: str | None, begin: int, end: int, rows: int) -> None:
        assert 0 <= begin <= end

    def switch(self, model: str, now: int) -> tuple[int, SwitchRecord]:
        record = SwitchRecord("i", now / 1e9, model, "h2d", self.duration / 1e9, self.bytes)
        return self.duration, record


class LoggedCluster(Cluster):
    """Writes down what passes."""

    log: Log

    def message(self, name: str, body: FromInstance) -> None:
        if self._nodes[name].linked:
            self.log.said(self.clock.now, name, body)
        super().message(name, body)

    def lost(self, name: str, reason: str) -> None:
        self.log.lost(self.clock.now, name)
        super().lost(name, reason)

    def _deliver(self, name: str, message: ToInstance) -> None:
        self.log.sent(self.clock.now, name, message)
        super()._deliver(name, message)


def simulate(world: World) -> Log:
    log = Log()
    pacing = Pacing(world.sessions, world.pacing, 0)
    cluster = LoggedCluster(world.sessions, pacing, world.router(), world.table(), VOCABULARY, 0, 0)
    cluster.log = log
    cluster.start(
        {
            name: Node(name, _starter(world, name, cluster), world.faults.get(name, ()), cluster)
            for name in world.instances
        }
    )
    cluster.run(checked=True)
    log.ends = {record.request_id: bool(record.error) for record in cluster.records}
    return log


def _starter(world: World, name: str, cluster: Cluster) -> Any:
    timeline, numbers = Timeline(name), itertools.count(1)

    def start(now: int) -> tuple[SimulatedInstance, Hello]:
        engine = FakeEngine(world.settings(name))
        scheduler = world.scheduler(name, engine)
        models = world.instances[name]
        costs = dict.fromkeys(models, _SimulatedCosts(world.costs))
        memory = Memory(1, 0, dict.fromkeys(models, 1), dict.fromkeys(models, 1))
        weights = FixedSwitch(world.costs.switch, engine.reports[0].weight_bytes)
        process = SimulatedInstance(
            name, scheduler, costs, weights, memory, BLOCK, cluster.message, timeline, now
        )
        return process, world.hello(name, engine, next(numbers))

    return start
