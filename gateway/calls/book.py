"""The life of every call, sans-IO: events in, sends and updates out.

The book owns all calls that are queued or run. It asks the router where a leg goes, has it sent
there, and tells what comes of it. A call whose instance is lost or refuses it goes on elsewhere,
from its prompt and the tokens that its client has, and stays the same call of its session: seeds
and penalties count positions from the prompt's beginning, so that what follows is what would have
followed. The live gateway and the simulator drive this same class.

Every method takes ``now`` (ns, never falling) and returns what is to be done, in order. ``tick``
belongs after every event: it lets queued calls go, and costs nothing where none can. Between events
``next_wakeup`` says when: no call that has not ended is without an event that moves it.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from alipes.gateway.calls.call import Call, Leg, Stage
from alipes.gateway.calls.events import (
    CallEvent,
    CallFailure,
    FailureKind,
    Moved,
    Output,
    Satisfied,
    Send,
    Update,
    failure_of,
    refusal,
)
from alipes.gateway.calls.request import CallRequest
from alipes.gateway.routing.decision import Completion, Placement, Reject, RejectKind, Wait
from alipes.gateway.routing.router import Router
from alipes.gateway.routing.sessions import SessionTable
from alipes.instance.contract import (
    BlocksRemoved,
    BlocksStored,
    Cancel,
    Drain,
    Failed,
    FailureClass,
    Finished,
    FinishReason,
    FromInstance,
    Hello,
    Ping,
    Snapshot,
    Started,
    Submit,
    Tokens,
)

LEG_ID_BYTES: Final = 16
MAX_ATTEMPTS: Final = 6
MAX_LOSSES: Final = 3
"""Instances that die under a call which they have begun, without a token drawn in between: then it
may be the call that they die of."""
MAX_DEATHS: Final = 8
FORGIVEN_TOKENS: Final = 64
"""So many such deaths end a call too, where fewer tokens are drawn in between."""
MAX_REFUSALS: Final = 40
"""Attempts of a call that has drawn: its client has a part of the answer, so that full instances
are asked again for some two minutes."""
PAUSE_NS: Final = 50_000_000
"""Before the second attempt of a call that an instance refused; doubled for every further one."""

Outputs = list[Output]


class CallBook:
    """``entropy`` gives so many bytes, for the ids of legs: of a live gateway unguessable ones."""

    def __init__(
        self, router: Router, sessions: SessionTable, entropy: Callable[[int], bytes]
    ) -> None:
        self.router = router
        self.sessions = sessions
        self._entropy = entropy
        self._live: dict[Call, None] = {}
        self._waiting: dict[Call, None] = {}
        self._legs: dict[bytes, Leg] = {}
        self._formats: dict[tuple[str, str], str] = {}
        self._paused: list[tuple[int, int, Call]] = []
        self._serials = itertools.count()
        self._out: Outputs = []

    @property
    def live(self) -> tuple[Call, ...]:
        """All calls that have not ended, in the order in which they came."""
        return tuple(self._live)

    def __len__(self) -> int:
        return len(self._live)

    @property
    def waiting(self) -> Collection[Call]:
        """Those of them that no instance has, in the order in which they began to wait."""
        return self._waiting.keys()

    def on(self, instance: str) -> tuple[Leg, ...]:
        """The legs that are charged to an instance."""
        return tuple(leg for leg in self._legs.values() if leg.instance == instance)

    def leg(self, instance: str, leg_id: bytes) -> Leg | None:
        """One of them."""
        leg = self._legs.get(leg_id)
        return leg if leg is not None and leg.instance == instance else None

    # --- what clients do -------------------------------------------------------------------------

    def submit(self, request: CallRequest, now: int) -> tuple[Call, Outputs]:
        """Place a new call or queue it."""
        session = self.sessions.begin(
            request.tenant, request.model, request.claim, request.tokens, request.stem, now
        )
        call = Call(request, session, now)
        self._live[call] = None
        self.forget_sessions(now)
        self._place(call, now)
        return call, self._take()

    def cancel(self, call: Call, now: int) -> Outputs:
        """Forget the call and free what it holds anywhere; nothing if it has ended."""
        if not call.done:
            self._withdraw(call)
            self._end(call, None, now)
        return self._take()

    def satisfied(self, call: Call, now: int) -> Outputs:
        """As ``cancel``, for a call whose client has all it wants: it counts as finished."""
        if not call.done:
            self._withdraw(call)
            self._complete(call, self._present(call), now)
            self._end(call, Satisfied(), now)
        return self._take()

    def fail_all(self, failure: CallFailure, now: int) -> Outputs:
        """End every call, on its instance too: the gateway stops."""
        for call in self.live:
            self._withdraw(call)
            self._end(call, failure, now)
        return self._take()

    # --- what instances do -----------------------------------------------------------------------

    def connected(self, hello: Hello, now: int) -> Outputs:
        """A link is up; calls of an earlier one to the same name are lost."""
        self.router.connected(hello, now)
        for report in hello.models:
            self._formats[hello.name, report.name] = report.kv_format
        self._lose(hello.name, "it connected anew", now)
        return self._take()

    def beat(self, name: str, now: int) -> Outputs:
        self.router.beat(name, now)
        return self._take()

    def lost(self, name: str, reason: str, now: int) -> Outputs:
        """The link is gone, and with it whatever was sent there."""
        self.router.disconnected(name, now)
        self._lose(name, reason, now)
        return self._take()

    def unsent(self, send: Send, now: int) -> Outputs:
        """The message did not go."""
        message = send.message
        leg = self._legs.get(message.call_id) if isinstance(message, Submit) else None
        if leg is not None:
            reason = f"instance {send.instance} is not reachable"
            failure = CallFailure(FailureKind.UNAVAILABLE, reason)
            self._interrupt(leg.call, failure, now, at_once=False)
        return self._take()

    def drain(self, name: str, now: int) -> Outputs:
        """Let the instance finish what it has, and give it nothing more."""
        if self.router.drain(name, now):
            self._out.append(Send(name, Drain()))
        return self._take()

    def message(self, name: str, body: FromInstance, now: int) -> Outputs:
        """An instance says ``body``. What it says of a leg that is not (any more) there counts for
        nothing."""
        if isinstance(body, Tokens):
            for drawn in body.drawn:
                leg = self.leg(name, drawn.call_id)
                if leg is not None:
                    self._drew(leg, (drawn.token,))
                    self._tell(leg.call, drawn)
        elif isinstance(body, BlocksStored):
            self.router.stored(name, body)
        elif isinstance(body, BlocksRemoved):
            self.router.removed(name, body)
        elif isinstance(body, Snapshot):
            self.router.updated(name, body, now)
        elif isinstance(body, Started | Finished | Failed):
            leg = self.leg(name, body.call_id)
            if leg is not None:
                self._of_leg(leg, body, now)
        return self._take()

    def drew(self, name: str, leg_id: bytes, tokens: Sequence[int]) -> None:
        """An instance has drawn these, for drivers that hear of tokens in bulk."""
        leg = self.leg(name, leg_id)
        if leg is not None and tokens:
            self._drew(leg, tokens)

    # --- time ------------------------------------------------------------------------------------

    def tick(self, now: int) -> Outputs:
        """Let those go that can."""
        while self._paused and self._paused[0][0] <= now:
            call = heapq.heappop(self._paused)[2]
            if call.stage is Stage.PAUSED:
                self._place(call, now)
        for outcome in self.router.retry(now):
            leg = self._legs.get(outcome.call_id)
            if leg is not None:
                self._follow(leg, outcome, now)
        return self._take()

    def next_wakeup(self, now: int) -> int | None:
        """When ``tick`` has something to do if nothing happens until then."""
        while self._paused and self._paused[0][2].stage is not Stage.PAUSED:
            heapq.heappop(self._paused)
        due = self.router.next_wakeup(now)
        if not self._paused:
            return due
        paused = max(now, self._paused[0][0])
        return paused if due is None else min(due, paused)

    def forget_sessions(self, now: int) -> None:
        """Drop those that are over, idle for too long, or too many."""
        for branch in self.sessions.gone(now):
            self.router.forget(branch)

    # --- a leg and its instance ------------------------------------------------------------------

    def _of_leg(self, leg: Leg, body: Started | Finished | Failed, now: int) -> None:
        match body:
            case Started():
                self._started(leg, body, now)
            case Finished():
                self._finished(leg, body, now)
            case Failed(failure=FailureClass.OVERLOADED | FailureClass.GONE):
                self._interrupt(leg.call, failure_of(body), now, at_once=False)
            case Failed(failure=FailureClass.BROKEN):
                self._died(leg)
                self._interrupt(leg.call, failure_of(body), now, at_once=False)
            case Failed():
                self._end(leg.call, failure_of(body), now)

    def _drew(self, leg: Leg, tokens: Sequence[int]) -> None:
        call = leg.call
        leg.begun = True
        if call.stage is Stage.SENT:
            call.move(Stage.STREAMING)
            call.attempts, call.losses = 1, 0
        call.drawn += tokens
        if len(call.drawn) - call.lost_at >= FORGIVEN_TOKENS:
            call.deaths = 0

    @staticmethod
    def _died(leg: Leg) -> None:
        """The instance ended under the leg: of one that it had not begun with, it did not die."""
        if leg.begun:
            leg.call.losses += 1
            leg.call.deaths += 1
            leg.call.lost_at = len(leg.call.drawn)

    def _started(self, leg: Leg, started: Started, now: int) -> None:
        leg.begun = True
        self.router.started(leg.id, now)
        if not leg.carried:
            leg.call.cached_tokens, leg.call.begun = started.cached_tokens, now
            self._tell(leg.call, started)

    def _finished(self, leg: Leg, finished: Finished, now: int) -> None:
        if not leg.carried:
            leg.call.cached_tokens = finished.cached_tokens
        leg.begun = True
        completion = Completion(finished.completion_tokens, finished.prefix, finished.prefix_tokens)
        self._complete(leg.call, completion, now)
        self._end(leg.call, finished, now)

    def _lose(self, name: str, reason: str, now: int) -> None:
        failure = CallFailure(FailureKind.LOST, f"instance {name} was lost: {reason}")
        for leg in self.on(name):
            self._died(leg)
            self._interrupt(leg.call, failure, now, at_once=True)

    def _interrupt(self, call: Call, failure: CallFailure, now: int, *, at_once: bool) -> None:
        """Its attempt has come to nothing: the call goes on from what it has. Where an instance is
        full, going or out of reach only after a while, as the router learns of that later."""
        self._tell(call, Moved(call.instance, len(call.drawn)))
        self._drop_legs(call, now)
        if call.complete:
            self._end_complete(call, now)
        elif self._hopeless(call):
            self._end(call, failure, now)
        elif at_once:
            self._place(call, now)
        else:
            call.move(Stage.PAUSED)
            self._waiting[call] = None
            due = now + (PAUSE_NS << min(call.attempts - 1, MAX_ATTEMPTS))
            heapq.heappush(self._paused, (due, next(self._serials), call))

    @staticmethod
    def _hopeless(call: Call) -> bool:
        tries = MAX_REFUSALS if call.drawn else MAX_ATTEMPTS
        return call.attempts >= tries or call.losses >= MAX_LOSSES or call.deaths >= MAX_DEATHS

    # --- placement -------------------------------------------------------------------------------

    def _place(self, call: Call, now: int) -> None:
        """Begin an attempt."""
        if call.stage is not Stage.QUEUED:
            call.move(Stage.QUEUED)
        leg = Leg(call, self._entropy(LEG_ID_BYTES), call.path(), len(call.drawn))
        call.legs = (leg,)
        self._legs[leg.id] = leg
        self._waiting.setdefault(call)
        self._follow(leg, self.router.place(leg.shape(), now), now)

    def _follow(self, leg: Leg, outcome: Placement | Wait | Reject, now: int) -> None:
        call = leg.call
        if isinstance(outcome, Reject):
            if outcome.kind is not RejectKind.TOO_LARGE or not self._shortened(call, now):
                self._end(call, refusal(outcome), now)
        elif isinstance(outcome, Placement):
            leg.instance = outcome.instance
            leg.kv_format = call.kv_format = self._formats[leg.instance, call.request.model]
            call.attempts += 1
            call.move(Stage.SENT)
            del self._waiting[call]
            self._out.append(Send(leg.instance, leg.message()))
            self._tell(call, outcome)
        elif outcome.probe:
            self._out.append(Send(outcome.probe, Ping()))

    def _shortened(self, call: Call, now: int) -> bool:
        """Place it anew with as many tokens as there is room for, as it would have been had its
        instances told their room before it came."""
        request = call.request
        room = self.router.longest_call(request.model, len(request.tokens))
        most = (room or 0) - len(request.tokens)
        if not request.shortens or not len(call.drawn) < most < request.max_tokens:
            return False
        call.request = replace(request, max_tokens=most)
        self._drop_legs(call, now)
        self._place(call, now)
        return True

    # --- ends ------------------------------------------------------------------------------------

    def _withdraw(self, call: Call) -> None:
        """Have its instances let go of it."""
        self._out += [Send(leg.instance, Cancel(leg.id)) for leg in call.legs if leg.instance]

    @staticmethod
    def _held(call: Call) -> bool:
        """Whether the instance that the call is on has computed something of it."""
        return any(leg.begun for leg in call.legs)

    @staticmethod
    def _present(call: Call) -> Completion:
        """A call that ends with what has been drawn."""
        path, drawn = call.session.path, len(call.drawn)
        keys = path.keys(call.kv_format) if CallBook._held(call) else ()
        return Completion(drawn, keys[-1] if keys else b"", len(keys) * path.block_tokens)

    def _complete(self, call: Call, completion: Completion, now: int) -> None:
        """The call has what it was for: its session goes on from here."""
        for leg in call.legs:
            if leg.begun:
                self.router.complete(leg.id, now, completion)
        self.sessions.finished(
            call.session,
            call.instance if self._held(call) else "",
            np.array(call.drawn, np.int32),
            call.cached_tokens,
            completion.prefix_tokens,
            now,
        )

    def _end_complete(self, call: Call, now: int) -> None:
        """All was drawn, but the instance was lost before it said so."""
        completion = self._present(call)
        self._complete(call, completion, now)
        finished = Finished(
            call_id=b"",
            reason=FinishReason.LENGTH if call.stop_id is None else FinishReason.STOP,
            stop_id=call.stop_id,
            prompt_tokens=len(call.request.tokens),
            cached_tokens=call.cached_tokens,
            completion_tokens=len(call.drawn),
            queued=0.0,
            prefill=0.0,
            decode=0.0,
        )
        self._end(call, finished, now)

    def _end(self, call: Call, event: CallEvent | None, now: int) -> None:
        """The call is over; without ``_complete`` before, it has come to nothing."""
        for leg in call.legs:
            del self._legs[leg.id]
            self.router.released(leg.id, now)
        self.sessions.failed(call.session, now)
        self.forget_sessions(now)
        call.move(Stage.ENDED)
        del self._live[call]
        self._waiting.pop(call, None)
        if event is not None:
            self._tell(call, event)

    def _drop_legs(self, call: Call, now: int) -> None:
        for leg in call.legs:
            del self._legs[leg.id]
            self.router.released(leg.id, now)
        call.legs = ()

    def _tell(self, call: Call, event: CallEvent) -> None:
        self._out.append(Update(call, event))

    def _take(self) -> Outputs:
        out, self._out = self._out, []
        return out
