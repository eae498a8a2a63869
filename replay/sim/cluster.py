"""A whole cluster on a virtual clock: clients, the gateway's router and sessions, instances.

Router, session table, pacing and schedulers are the live classes. Messages take no time but
``gateway_ns`` for the gateway's share of a call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from alipes.gateway.routing.decision import Completion, Placement, Reject, Wait
from alipes.gateway.routing.identity import Claim, Source
from alipes.gateway.routing.router import Router
from alipes.gateway.routing.sessions import SessionTable
from alipes.instance.contract import (
    BlocksRemoved,
    BlocksStored,
    Failed,
    Finished,
    FromInstance,
    Hello,
    Snapshot,
    Started,
)
from alipes.replay.pacing import Pacing, Send
from alipes.replay.records import CallRecord
from alipes.replay.sim.clock import Clock, Rank, SimulationError
from alipes.replay.sim.instance import SNAPSHOT_NS, SimulatedInstance
from alipes.replay.sim.live import TENANT, LiveCall, SessionContent
from alipes.replay.traces.content import Vocabulary
from alipes.replay.traces.form import Branch, Session

LEVELS: Final = ("live_calls", "leases_live")
"""What counters tell of the present; all others are totals."""


class Cluster:
    """Runs sessions to their end."""

    def __init__(
        self,
        sessions: Sequence[Session],
        pacing: Pacing,
        router: Router,
        table: SessionTable,
        vocabulary: Vocabulary,
        gateway_ns: int,
        warmup: int,
    ) -> None:
        self.records: list[CallRecord] = []
        self.router = router
        self._sessions = sessions
        self._pacing = pacing
        self._table = table
        self._vocabulary = vocabulary
        self._gateway_ns = gateway_ns
        self._warmup = self._warming = warmup
        self._before: dict[str, float] = {}
        self._instances: dict[str, SimulatedInstance] = {}
        self._formats: dict[tuple[str, str], str] = {}
        self._contents: dict[int, SessionContent] = {}
        self._live: dict[bytes, LiveCall] = {}
        self._last_id = 0
        # In the order in which they came: that of a set is another in every process.
        self._queued: dict[bytes, None] = {}
        self._stirred = False
        self._looked = 0

    def start(self, hellos: Mapping[str, tuple[SimulatedInstance, Hello]]) -> None:
        """All instances connect and tell their state."""
        self._instances = {name: instance for name, (instance, _) in hellos.items()}
        gateway = _Part(self._wakeup_of_gateway, self._retry)
        clients = _Part(self._pacing.next_wakeup, self._send_due)
        actors = [(Rank.INSTANCE, instance) for instance in self._instances.values()]
        self.clock = Clock([*actors, (Rank.GATEWAY, gateway), (Rank.CLIENT, clients)])
        self._numbers = {name: place for place, name in enumerate(self._instances)}
        for name, (instance, hello) in hellos.items():
            self.router.connected(hello, 0)
            self._formats.update(((name, m.name), m.kv_format) for m in hello.models)
            instance.refresh(0)
            self.clock.moved(self._numbers[name])
        self._stir()

    def run(self, checked: bool = False) -> None:
        """Until the last session has ended. Raises ``SimulationError``. What must always hold is
        looked at after every event if it is to be ``checked``, which takes time."""
        try:
            while not self._pacing.done:
                if not self.clock.step():
                    raise SimulationError(f"{len(self._live)} calls wait and nothing will happen")
                if checked:
                    self._check()
            self._finish()
        except Exception as error:
            raise self.clock.error(str(error) or repr(error)) from error

    def _finish(self) -> None:
        """All sessions are over: nothing is left anywhere."""
        for instance in self._instances.values():
            instance.finish(self.clock.now)
        self._check()
        status = self.router.status(self.clock.now)
        placed = sum(instance.placed for instance in status.instances)
        if self._live or self._queued or placed or any(status.queued.values()):
            raise SimulationError(
                f"when all sessions were over, {len(self._live)} calls were not: {placed} placed,"
                f" {status.queued} queued"
            )

    def _check(self) -> None:
        """Every call is in one place, and what its instance holds adds up."""
        there = sum(instance.calls for instance in self._instances.values())
        if there + len(self._queued) != len(self._live):
            raise SimulationError(
                f"of {len(self._live)} calls {len(self._queued)} are queued and {there} placed"
            )
        for instance in self._instances.values():
            instance.check()

    @property
    def instances(self) -> tuple[SimulatedInstance, ...]:
        return tuple(self._instances.values())

    def counters(self) -> dict[str, float]:
        """Totals since the warm-up ended: what the router counted of placements and leases, and the
        instances' own."""
        before = self._before
        return {name: value - before.get(name, 0.0) for name, value in self._totals().items()}

    def _totals(self) -> dict[str, float]:
        status = self.router.status(self.clock.now)
        counts, leases = (
            msgspec.structs.asdict(status.counts),
            msgspec.structs.asdict(status.leases),
        )
        found = {name: float(value) for name, value in counts.items()}
        found |= {f"leases_{name}": float(value) for name, value in leases.items()}
        for instance in self._instances.values():
            for name, value in msgspec.structs.asdict(instance.scheduler.counters()).items():
                total = sum(value.values()) if isinstance(value, dict) else value
                found[name] = found.get(name, 0.0) + total
        return found | {"events": float(self.clock.events)}

    # --- clients ---------------------------------------------------------------------------------

    def _send_due(self, now: int) -> None:
        for send in self._pacing.due(now):
            self._send(send, now)
        self._stir()

    def _send(self, send: Send, now: int) -> None:
        session = self._sessions[send.session]
        branch = session.branches[send.branch]
        call = branch.calls[send.index]
        content = self._content(send, session)
        prompt = content.prompt(branch, send.index)
        claim = _claim(session, branch, send.last)
        model = branch.model or session.model
        begun = self._table.begin(TENANT, model, claim, prompt, len(prompt), now)
        self._last_id += 1
        live = LiveCall(
            send=send,
            session_id=session.id,
            branch=branch,
            call=call,
            model=model,
            prompt=prompt,
            reply=content.reply(branch, send.index),
            begun=begun,
            call_id=self._last_id.to_bytes(16, "big"),
            sent=now,
            returning=begun.continuation and send.index > 0,
            warmup=send.session < self._warmup,
        )
        self._live[live.call_id] = live
        self.clock.note("send", session.id, branch.name, send.index)
        for gone in self._table.gone(now):
            self.router.forget(gone)
        self._refresh(model, now)
        self._apply(live, self.router.place(live.shape(), now), now)

    def _content(self, send: Send, session: Session) -> SessionContent:
        if send.session not in self._contents:
            self._contents[send.session] = SessionContent(session, self._vocabulary)
        return self._contents[send.session]

    # --- the gateway -----------------------------------------------------------------------------

    def _wakeup_of_gateway(self) -> int | None:
        """After anything that may let a queued call go, and to hear of states while one waits."""
        now = self.clock.now
        if not self._queued:
            return None
        wakeup = now if self._stirred else self._looked + SNAPSHOT_NS
        due = self.router.next_wakeup(now)
        return max(now, wakeup if due is None else min(wakeup, due))

    def _retry(self, now: int) -> None:
        """Queued calls that can go, go."""
        self._stirred, self._looked = False, now
        for model in dict.fromkeys(self._live[call_id].model for call_id in self._queued):
            self._refresh(model, now)
        for outcome in self.router.retry(now):
            self._apply(self._live[outcome.call_id], outcome, now)
        self._stirred = False
        self._moved()

    def _refresh(self, model: str, now: int) -> None:
        """Instances are alive, and their state is as fresh as it is live."""
        for name, instance in self._instances.items():
            if (name, model) in self._formats:
                instance.refresh(now)
                self.router.beat(name, now)

    def _apply(self, live: LiveCall, outcome: Placement | Wait | Reject, now: int) -> None:
        if isinstance(outcome, Wait):
            self._queued[live.call_id] = None
            self._looked = now
            if outcome.probe:
                self.router.beat(outcome.probe, now)
                self._stir()
            return
        self._queued.pop(live.call_id, None)
        if isinstance(outcome, Reject):
            self._fail(live, outcome.reason, now)
            return
        live.placed, live.instance = now, outcome.instance
        live.placement = outcome.reason.value
        self.clock.note("place", live.call_id.hex()[-6:], live.instance, live.placement)
        self._instances[outcome.instance].deliver(
            live.submit(self._formats[live.instance, live.model]), now
        )
        self.clock.moved(self._numbers[outcome.instance])

    # --- what instances say ----------------------------------------------------------------------

    def message(self, name: str, body: FromInstance) -> None:
        """An instance says something, now."""
        now = self.clock.now
        match body:
            case BlocksStored():
                self.router.stored(name, body)
            case BlocksRemoved():
                self.router.removed(name, body)
            case Snapshot():
                self.router.beat(name, now)
                self.router.updated(name, body, now)
                self._stir()
            case Started():
                self.router.started(body.call_id, now)
            case Finished():
                self._finished(self._awaited(name, body.call_id), body, now)
            case Failed():
                live = self._awaited(name, body.call_id)
                self._instances[name].timeline.calls.pop(body.call_id, None)
                self._fail(live, body.reason, now)

    def _awaited(self, name: str, call_id: bytes) -> LiveCall:
        live = self._live.get(call_id)
        if live is None or live.instance != name:
            raise SimulationError(f"{name} tells of call {call_id.hex()[-6:]}, which is not there")
        return live

    def _finished(self, live: LiveCall, finished: Finished, now: int) -> None:
        self.clock.note("finished", live.call_id.hex()[-6:], live.instance)
        completion = Completion(finished.completion_tokens, finished.prefix, finished.prefix_tokens)
        self.router.complete(live.call_id, now, completion)
        self._table.finished(
            live.begun,
            live.instance,
            live.reply,
            finished.cached_tokens,
            finished.prefix_tokens,
            now,
        )
        self._contents[live.send.session].remember(live.branch, live.send.index, live.context())
        times = self._instances[live.instance].timeline.ended(live.call_id)
        record = live.finished(finished, times, now, self._gateway_ns)
        live.check(record)
        self.records.append(record)
        self._end(live, True, now + self._gateway_ns)

    def _fail(self, live: LiveCall, reason: str, now: int) -> None:
        self.router.released(live.call_id, now)
        self._table.failed(live.begun, now)
        self.records.append(live.failed(reason, now))
        self._end(live, False, now)

    def _end(self, live: LiveCall, succeeded: bool, now: int) -> None:
        del self._live[live.call_id]
        self._pacing.ended(live.send, succeeded, now)
        if not self._pacing.running(live.send.session):
            self._contents.pop(live.send.session, None)
            self._warming -= live.warmup
            if live.warmup and not self._warming:
                totals = self._totals()
                self._before = {name: totals[name] for name in totals if name not in LEVELS}
        self._stir()

    def _stir(self) -> None:
        """Gateway and clients may have another wake-up."""
        self._stirred = True
        self._moved()

    def _moved(self) -> None:
        count = len(self._instances)
        self.clock.moved(count)
        self.clock.moved(count + 1)


@dataclass(frozen=True, slots=True)
class _Part:
    """What of the cluster acts by itself: the gateway, or all clients."""

    due: Callable[[], int | None]
    act: Callable[[int], None]

    @property
    def wakeup(self) -> int | None:
        return self.due()


def _claim(session: Session, branch: Branch, last: bool) -> Claim:
    """What a client says of its session; the main branch has no name of its own there."""
    main = session.branches[0].name
    name = branch.name if branch.parent else ""
    return Claim(session.id, name, "" if branch.parent == main else branch.parent, last, Source.OWN)
