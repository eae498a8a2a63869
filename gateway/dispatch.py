"""Live calls: from a placement to an instance and back.

The dispatcher owns every call that is queued or runs. It asks the router where a call goes,
sends it there, and hands what comes back to the inbox of the client request. A call whose
instance dies or turns out to be full before the first token is placed again, one whose answer is
to be whole even after it; the client never notices. It stays the same call of its session. Every
attempt has a call id of its own, so that a late message of an earlier attempt finds nobody.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

import numpy as np

from alipes.gateway.calls import (
    CallEvent,
    CallFailure,
    CallRequest,
    FailureKind,
    Inbox,
    Restarted,
)
from alipes.gateway.live import LiveCall, Stage, failure_of, refusal
from alipes.gateway.routing.decision import (
    Completion,
    Placement,
    Reject,
    Wait,
)
from alipes.gateway.routing.router import Router
from alipes.gateway.routing.sessions import SessionTable
from alipes.gateway.telemetry.metrics import Metrics
from alipes.gateway.telemetry.recording import RecordedCall
from alipes.instance.contract import (
    BlocksRemoved,
    BlocksStored,
    Cancel,
    Drain,
    Failed,
    FailureClass,
    Finished,
    FromInstance,
    Hello,
    Ping,
    Snapshot,
    Started,
    ToInstance,
    Tokens,
)

CALL_ID_BYTES: Final = 16
MAX_ATTEMPTS: Final = 6
RETRY_SECONDS: Final = 0.05
DECISIONS_KEPT: Final = 64


class Send(Protocol):
    def __call__(self, instance: str, message: ToInstance) -> bool: ...


class Dispatcher:
    """Implements the fleet's sink. Lives on the event loop; ``clock`` counts nanoseconds."""

    def __init__(
        self,
        router: Router,
        sessions: SessionTable,
        fleet_send: Send,
        clock: Callable[[], int],
        metrics: Metrics,
        record: Callable[[RecordedCall], None] | None = None,
    ) -> None:
        self.router = router
        self.sessions = sessions
        self.decisions: deque[Placement] = deque(maxlen=DECISIONS_KEPT)
        self._send = fleet_send
        self._clock = clock
        self._metrics = metrics
        self._record = record
        self._live: dict[bytes, LiveCall] = {}
        self._hellos: dict[str, Hello] = {}
        self._snapshots: dict[str, Snapshot] = {}
        self._timer: asyncio.TimerHandle | None = None

    # --- what the API calls ---

    def now(self) -> int:
        return self._clock()

    @property
    def live_calls(self) -> int:
        return len(self._live)

    def hello(self, instance: str) -> Hello | None:
        return self._hellos.get(instance)

    def snapshot(self, instance: str) -> Snapshot | None:
        return self._snapshots.get(instance)

    def submit(self, request: CallRequest, index: int, inbox: Inbox) -> LiveCall:
        """Place the call or queue it; its events go to ``inbox`` under ``index``."""
        now = self._clock()
        session = self.sessions.begin(
            request.tenant, request.model, request.claim, request.tokens, request.stem, now
        )
        call = LiveCall(request, index, inbox, session, now)
        self.forget_sessions()
        self._place(call)
        self.tick()
        return call

    def cancel(self, call: LiveCall) -> None:
        """Forget the call and free what it holds anywhere; nothing if it has ended."""
        if call.done:
            return
        if call.instance:
            self._send(call.instance, Cancel(call.call_id))
        self._end(call)
        self.tick()

    def satisfied(self, call: LiveCall) -> None:
        """As ``cancel``, for a call whose client has all it wants: it counts as finished."""
        if call.done or call.stage is not Stage.STREAMING:
            # What the client has is of an attempt whose instance is gone.
            self.cancel(call)
            return
        self._send(call.instance, Cancel(call.call_id))
        path = call.session.path
        keys = path.keys(self._kv_format(call))
        prefix = keys[-1] if keys else b""
        self._complete(call, Completion(len(call.drawn), prefix, len(keys) * path.block_tokens))
        self._end(call)
        self.tick()

    def drain(self, instance: str) -> bool:
        """Let the instance finish what it has; False if it is not connected."""
        if not self.router.drain(instance, self._clock()):
            return False
        sent = self._send(instance, Drain())
        self.tick()
        return sent

    def forget_sessions(self) -> None:
        """Drop those that are over, idle for too long, or too many."""
        for branch in self.sessions.gone(self._clock()):
            self.router.forget(branch)

    def fail_all(self, failure: CallFailure) -> None:
        """End every call, on its instance too: the gateway stops."""
        for call in list(self._live.values()):
            if call.instance:
                self._send(call.instance, Cancel(call.call_id))
            self._end(call, failure)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- what the fleet calls ---

    def connected(self, hello: Hello) -> None:
        self._hellos[hello.name] = hello
        self._metrics.instance_up(hello.name, True)
        self._metrics.described(hello)
        self.router.connected(hello, self._clock())
        self._lose_calls(hello.name, "it connected anew")
        self.tick()

    def beat(self, name: str) -> None:
        self.router.beat(name, self._clock())
        self.tick()

    def message(self, name: str, body: FromInstance) -> None:
        if isinstance(body, Tokens):
            self._tokens(body)
            return
        if isinstance(body, BlocksStored):
            self.router.stored(name, body)
            return
        if isinstance(body, BlocksRemoved):
            self.router.removed(name, body)
            return
        if isinstance(body, Snapshot):
            self._snapshots[name] = body
            self._metrics.snapshot(name, body)
            self.router.updated(name, body, self._clock())
        elif isinstance(body, Started):
            self._started(body)
        elif isinstance(body, Finished):
            self._finished(body)
        elif isinstance(body, Failed):
            self._failed(body)
        self.tick()

    def lost(self, name: str, reason: str) -> None:
        self._hellos.pop(name, None)
        self._snapshots.pop(name, None)
        self._metrics.instance_up(name, False)
        self.router.disconnected(name, self._clock())
        self._lose_calls(name, reason)
        self.tick()

    def _lose_calls(self, name: str, reason: str) -> None:
        failure = CallFailure(FailureKind.LOST, f"instance {name} was lost: {reason}")
        for call in [call for call in self._live.values() if call.instance == name]:
            self._retry_or_fail(call, failure)

    # --- events of one call ---

    def _tokens(self, tokens: Tokens) -> None:
        for drawn in tokens.drawn:
            call = self._live.get(drawn.call_id)
            if call is not None:
                call.stage = Stage.STREAMING
                call.drawn.append(drawn.token)
                call.inbox.post(call.index, drawn)

    def _started(self, started: Started) -> None:
        call = self._live.get(started.call_id)
        if call is not None:
            call.cached_tokens = started.cached_tokens
            call.begun = self._clock()
            self.router.started(call.call_id, call.begun)
            call.inbox.post(call.index, started)

    def _finished(self, finished: Finished) -> None:
        call = self._live.get(finished.call_id)
        if call is None:
            return
        call.cached_tokens = finished.cached_tokens
        self._complete(
            call, Completion(finished.completion_tokens, finished.prefix, finished.prefix_tokens)
        )
        self._end(call, finished)

    def _complete(self, call: LiveCall, completion: Completion) -> None:
        """The call has what it was for: its session goes on from here."""
        now = self._clock()
        self.router.complete(call.call_id, now, completion)
        reply = np.array(call.drawn, np.int32)
        self.sessions.finished(
            call.session, call.instance, reply, call.cached_tokens, completion.prefix_tokens, now
        )
        if self._record is not None:
            self._record(call.recorded(self._kv_format(call), now))

    def _failed(self, failed: Failed) -> None:
        call = self._live.get(failed.call_id)
        if call is None:
            return
        failure = failure_of(failed)
        if failed.failure in (FailureClass.OVERLOADED, FailureClass.GONE):
            self._retry_or_fail(call, failure)
        else:
            self._end(call, failure)

    def _retry_or_fail(self, call: LiveCall, failure: CallFailure) -> None:
        """Place the call again unless the client has seen of it; where an instance was full or
        out of reach, only after a while, as the router learns of that later."""
        begun = call.stage is Stage.STREAMING
        if (begun and not call.request.whole) or call.attempts >= MAX_ATTEMPTS:
            self._end(call, failure)
            return
        if begun:
            call.drawn.clear()
            call.inbox.post(call.index, Restarted())
        self._metrics.replaced(call.instance)
        call.stage, call.instance = Stage.QUEUED, ""
        self.router.released(call.call_id, self._clock())
        if failure.kind in (FailureKind.OVERLOADED, FailureKind.UNAVAILABLE):
            delay = RETRY_SECONDS * 2 ** (call.attempts - 1)
            asyncio.get_running_loop().call_later(delay, self._place_again, call)
        else:
            self._place(call)

    def _place_again(self, call: LiveCall) -> None:
        if not call.done:
            self._place(call)
            self.tick()

    # --- placement ---

    def _place(self, call: LiveCall) -> None:
        self._live.pop(call.call_id, None)
        call.call_id = os.urandom(CALL_ID_BYTES)
        self._live[call.call_id] = call
        self._metrics.live_calls(len(self._live))
        self._apply(call, self.router.place(call.shape(), self._clock()))

    def _apply(self, call: LiveCall, outcome: Placement | Wait | Reject) -> None:
        if isinstance(outcome, Reject):
            self._end(call, refusal(outcome))
        elif isinstance(outcome, Placement):
            self._submit_to(call, outcome)
        elif outcome.probe:
            self._send(outcome.probe, Ping())

    def _submit_to(self, call: LiveCall, placement: Placement) -> None:
        call.instance, call.stage = placement.instance, Stage.SENT
        call.attempts += 1
        self.decisions.append(placement)
        self._metrics.placed(placement.instance, placement.reason)
        if self._send(placement.instance, call.message(self._kv_format(call))):
            call.inbox.post(call.index, placement)
        else:
            self._retry_or_fail(
                call,
                CallFailure(FailureKind.UNAVAILABLE, f"instance {call.instance} is not reachable"),
            )

    def _kv_format(self, call: LiveCall) -> str:
        """That of the call's model on its instance."""
        model, reports = call.request.model, self._hellos[call.instance].models
        return next(report.kv_format for report in reports if report.name == model)

    # --- ends and wake-ups ---

    def _end(self, call: LiveCall, event: CallEvent | None = None) -> None:
        """The call is over; without ``_complete`` before, it has come to nothing."""
        self._live.pop(call.call_id, None)
        self.router.released(call.call_id, self._clock())
        self.sessions.failed(call.session, self._clock())
        self.forget_sessions()
        call.done = True
        self._metrics.live_calls(len(self._live))
        if event is not None:
            call.inbox.post(call.index, event)

    def tick(self) -> None:
        """Send what can go now and arrange to be woken for the rest."""
        for outcome in self.router.retry(self._clock()):
            call = self._live.get(outcome.call_id)
            if call is not None:
                self._apply(call, outcome)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        wakeup = self.router.next_wakeup(self._clock())
        if wakeup is not None:
            delay = max(0.0, (wakeup - self._clock()) / 1e9)
            self._timer = asyncio.get_running_loop().call_later(delay, self.tick)
