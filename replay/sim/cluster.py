"""A whole cluster on a virtual clock: clients, the gateway's call book, instances.

Book, router, session table, pacing and schedulers are the live classes: what the live gateway's
dispatcher does with the book's sends and updates is done here on the virtual clock. Messages take
no time but ``gateway_ns`` for the gateway's share of a call. Tokens come in bulk, at a call's end
or when its instance is lost.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from alipes.gateway.calls.book import CallBook
from alipes.gateway.calls.call import Call, Leg
from alipes.gateway.calls.events import CallEvent, CallFailure, Moved, Output, Update
from alipes.gateway.routing.decision import Placement
from alipes.gateway.routing.identity import Claim, Source
from alipes.gateway.routing.router import Router
from alipes.gateway.routing.sessions import SessionTable
from alipes.instance.contract import (
    Cancel,
    Failed,
    Finished,
    FromInstance,
    Hello,
    Ping,
    Snapshot,
    Started,
    Submit,
    ToInstance,
)
from alipes.replay.pacing import Pacing, Send
from alipes.replay.records import CallRecord
from alipes.replay.sim.calls import SessionContent, SimulatedCall
from alipes.replay.sim.clock import Clock, Rank, SimulationError
from alipes.replay.sim.instance import SNAPSHOT_NS
from alipes.replay.sim.node import Node
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
        numbers = itertools.count(1)
        self.book = CallBook(router, table, lambda size: next(numbers).to_bytes(size, "big"))
        self._sessions = sessions
        self._pacing = pacing
        self._vocabulary = vocabulary
        self._gateway_ns = gateway_ns
        self._warmup = self._warming = warmup
        self._before: dict[str, float] = {}
        self._nodes: dict[str, Node] = {}
        self._contents: dict[int, SessionContent] = {}
        self._calls: dict[Call, SimulatedCall] = {}
        self._moved: Counter[str] = Counter()
        self._stirred = False
        self._looked = 0

    def start(self, nodes: Mapping[str, Node]) -> None:
        """All instances connect and tell their state."""
        self._nodes = dict(nodes)
        gateway = _Part(self._wakeup_of_gateway, self._retry)
        clients = _Part(self._pacing.next_wakeup, self._send_due)
        actors = [(Rank.INSTANCE, node) for node in self._nodes.values()]
        self.clock = Clock([*actors, (Rank.GATEWAY, gateway), (Rank.CLIENT, clients)])
        self._numbers = {name: place for place, name in enumerate(self._nodes)}
        for name, node in self._nodes.items():
            self.connected(node.hello)
            self.clock.moved(self._numbers[name])
        self._stir()

    def run(self, checked: bool = False) -> None:
        """Until the last session has ended. Raises ``SimulationError``. What must always hold is
        looked at after every event if it is to be ``checked``, which takes time."""
        try:
            while not self._pacing.done:
                if not self.clock.step():
                    raise SimulationError(f"{len(self.book)} calls wait and nothing will happen")
                if checked:
                    self._check()
            self._finish()
        except Exception as error:
            raise self.clock.error(str(error) or repr(error)) from error

    def _finish(self) -> None:
        """All sessions are over: nothing is left anywhere."""
        for node in self._nodes.values():
            node.finish(self.clock.now)
        self._check()
        status = self.book.router.status(self.clock.now)
        placed = sum(instance.placed for instance in status.instances)
        if len(self.book) or placed or any(status.queued.values()):
            raise SimulationError(
                f"when all sessions were over, {len(self.book)} calls were not: {placed} placed,"
                f" {status.queued} queued"
            )

    def _check(self) -> None:
        """Every call is in one place, and what its instance holds adds up."""
        placed = 0
        for name, node in self._nodes.items():
            legs = self.book.on(name)
            placed += len(legs)
            node.check({leg.id for leg in legs})
        waiting = len(self.book.waiting)
        if placed + waiting != len(self.book):
            raise SimulationError(
                f"of {len(self.book)} calls {waiting} are queued and {placed} placed"
            )

    @property
    def nodes(self) -> tuple[Node, ...]:
        return tuple(self._nodes.values())

    def counters(self) -> dict[str, float]:
        """Totals since the warm-up ended: what the router counted of placements and leases, calls
        that moved, and the instances' own."""
        before = self._before
        return {name: value - before.get(name, 0.0) for name, value in self._totals().items()}

    def _totals(self) -> dict[str, float]:
        status = self.book.router.status(self.clock.now)
        counts, leases = (
            msgspec.structs.asdict(status.counts),
            msgspec.structs.asdict(status.leases),
        )
        found = {name: float(value) for name, value in counts.items()}
        found |= {f"leases_{name}": float(value) for name, value in leases.items()}
        found |= {name: float(self._moved[name]) for name in ("moved", "resumed_streams")}
        for counters in (each for node in self._nodes.values() for each in node.counters):
            for name, value in msgspec.structs.asdict(counters).items():
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
        content = self._content(send, session)
        simulated = SimulatedCall(
            send=send,
            session_id=session.id,
            branch=branch,
            call=branch.calls[send.index],
            model=branch.model or session.model,
            prompt=content.prompt(branch, send.index),
            reply=content.reply(branch, send.index),
            sent=now,
            warmup=send.session < self._warmup,
        )
        self.clock.note("send", session.id, branch.name, send.index)
        self._refresh(simulated.model, now)
        request = simulated.request(claim_of(session, branch, send.last))
        call, outputs = self.book.submit(request, now)
        simulated.known_tokens = call.session.known_tokens
        simulated.returning = call.session.continuation and send.index > 0
        self._calls[call] = simulated
        self._perform(outputs)
        self._perform(self.book.tick(now))
        if call in self.book.waiting:
            self._looked = now

    def _content(self, send: Send, session: Session) -> SessionContent:
        if send.session not in self._contents:
            self._contents[send.session] = SessionContent(session, self._vocabulary)
        return self._contents[send.session]

    # --- the gateway -----------------------------------------------------------------------------

    def _wakeup_of_gateway(self) -> int | None:
        """After anything that may let a queued call go, and to hear of states while one waits."""
        now = self.clock.now
        if not self.book.waiting:
            return None
        wakeup = now if self._stirred else self._looked + SNAPSHOT_NS
        due = self.book.next_wakeup(now)
        return max(now, wakeup if due is None else min(wakeup, due))

    def _retry(self, now: int) -> None:
        """Queued calls that can go, go: by what is known, as the live gateway does not wait for a
        newer state, then by what instances tell within a moment."""
        self._stirred, self._looked = False, now
        self._perform(self.book.tick(now))
        for model in dict.fromkeys(call.request.model for call in self.book.waiting):
            self._refresh(model, now)
        self._perform(self.book.tick(now))
        self._stirred = False
        self._moved_on()

    def _refresh(self, model: str, now: int) -> None:
        """Instances are alive, and their state is as fresh as it is live."""
        for node in self._nodes.values():
            if node.responds and node.serves(model):
                node.process.refresh(now)
                self._perform(self.book.beat(node.name, now))

    def _perform(self, outputs: Iterable[Output]) -> None:
        for output in outputs:
            if isinstance(output, Update):
                self._told(output.call, output.event)
            else:
                self._deliver(output.instance, output.message)

    def _deliver(self, name: str, message: ToInstance) -> None:
        if isinstance(message, Submit | Cancel):
            self._nodes[name].deliver(message, self.clock.now)
            self.clock.moved(self._numbers[name])
        elif isinstance(message, Ping) and self._nodes[name].responds:
            self._perform(self.book.beat(name, self.clock.now))
            self._stir()

    def _told(self, call: Call, event: CallEvent) -> None:
        simulated = self._calls[call]
        match event:
            case Placement(instance=instance, reason=reason):
                simulated.placed, simulated.instance = self.clock.now, instance
                simulated.placement = reason.value
                self.clock.note("place", _short(call.legs[0].id), instance, reason.value)
            case Moved(drawn=drawn):
                self._moved["moved"] += 1
                self._moved["resumed_streams"] += drawn > 0
            case Finished():
                self._finished(call, simulated, event)
            case CallFailure(reason=reason):
                self.records.append(simulated.failed(reason, self.clock.now))
                self._end(call, False, self.clock.now)

    # --- what instances say ----------------------------------------------------------------------

    def message(self, name: str, body: FromInstance) -> None:
        """An instance says something, now."""
        now = self.clock.now
        if not self._nodes[name].linked:
            return
        if isinstance(body, Started | Finished | Failed):
            leg = self._awaited(name, body.call_id)
            if leg is not None and isinstance(body, Finished):
                self._tell_drawn(leg, body.completion_tokens)
            elif not isinstance(body, Started):
                self._nodes[name].timeline.calls.pop(body.call_id, None)
        self._perform(self.book.message(name, body, now))
        if isinstance(body, Snapshot | Finished | Failed):
            self._stir()

    def connected(self, hello: Hello) -> None:
        """A node has a link."""
        self.clock.note("connected", hello.name)
        self._perform(self.book.connected(hello, self.clock.now))
        self._nodes[hello.name].process.refresh(self.clock.now)
        self._stir()

    def lost(self, name: str, reason: str) -> None:
        """A node has a link no more; what it has drawn by now has been told."""
        self.clock.note("lost", name, reason)
        node = self._nodes[name]
        for leg in self.book.on(name):
            self._tell_drawn(leg, node.process.scheduler.drawn(leg.id))
            self._calls[leg.call].leaves(node.timeline.calls.get(leg.id))
        self._perform(self.book.lost(name, reason, self.clock.now))
        self._stir()

    def _awaited(self, name: str, leg_id: bytes) -> Leg | None:
        """None for a call of an earlier link, which an instance that hung goes on with until it is
        told otherwise."""
        leg = self.book.leg(name, leg_id)
        if leg is None and not self._nodes[name].relinked:
            raise SimulationError(f"{name} tells of call {_short(leg_id)}, which is not there")
        return leg

    def _tell_drawn(self, leg: Leg, count: int) -> None:
        """The leg's call has drawn ``count`` tokens in all."""
        drawn = self._calls[leg.call].drawn(len(leg.call.drawn), count)
        self.book.drew(leg.instance, leg.id, drawn)

    def _finished(self, call: Call, simulated: SimulatedCall, finished: Finished) -> None:
        now, (leg,) = self.clock.now, call.legs
        self.clock.note("finished", _short(leg.id), leg.instance)
        content = self._contents[simulated.send.session]
        content.remember(simulated.branch, simulated.send.index, simulated.context())
        times = self._nodes[leg.instance].timeline.ended(leg.id)
        record = simulated.finished(leg, finished, times, now, self._gateway_ns)
        simulated.check(record)
        self.records.append(record)
        self._end(call, True, now + self._gateway_ns)

    def _end(self, call: Call, succeeded: bool, now: int) -> None:
        simulated = self._calls.pop(call)
        self._pacing.ended(simulated.send, succeeded, now)
        if not self._pacing.running(simulated.send.session):
            self._contents.pop(simulated.send.session, None)
            self._warming -= simulated.warmup
            if simulated.warmup and not self._warming:
                totals = self._totals()
                self._before = {name: totals[name] for name in totals if name not in LEVELS}
        self._stir()

    def _stir(self) -> None:
        """Gateway and clients may have another wake-up."""
        self._stirred = True
        self._moved_on()

    def _moved_on(self) -> None:
        count = len(self._nodes)
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


def _short(leg_id: bytes) -> str:
    return leg_id.hex()[-6:]


def claim_of(session: Session, branch: Branch, last: bool) -> Claim:
    """What a client says of its session; the main branch has no name of its own there."""
    main = session.branches[0].name
    name = branch.name if branch.parent else ""
    return Claim(session.id, name, "" if branch.parent == main else branch.parent, last, Source.OWN)
