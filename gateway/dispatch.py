"""The live driver of the call book: asks it, sends what it wants sent, tells what has happened."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from alipes.gateway.calls.book import CallBook
from alipes.gateway.calls.call import Call
from alipes.gateway.calls.events import (
    CallEvent,
    CallFailure,
    Output,
    Satisfied,
    Update,
)
from alipes.gateway.calls.request import CallRequest
from alipes.gateway.inbox import Inbox
from alipes.gateway.routing.decision import Placement
from alipes.gateway.telemetry.observer import (
    FleetEvent,
    FleetObserver,
    LinkLost,
    Observer,
    StateTold,
)
from alipes.instance.contract import (
    BlocksRemoved,
    BlocksStored,
    Drawn,
    Finished,
    FromInstance,
    Hello,
    Snapshot,
    ToInstance,
    Tokens,
)

DECISIONS_KEPT: Final = 64


class SendMessage(Protocol):
    def __call__(self, instance: str, message: ToInstance) -> bool: ...


@dataclass(slots=True)
class _Listener:
    """Who hears of one call: its client's inbox, under ``index``, and an observer of its own."""

    inbox: Inbox
    index: int
    observer: Observer | None
    drawn: bool = False


class Dispatcher:
    """Implements the fleet's sink. Lives on the event loop; ``clock`` counts nanoseconds."""

    def __init__(
        self,
        book: CallBook,
        fleet_send: SendMessage,
        clock: Callable[[], int],
        observers: Iterable[Observer] = (),
        fleet_observers: Iterable[FleetObserver] = (),
    ) -> None:
        self.book = book
        self.decisions: deque[Placement] = deque(maxlen=DECISIONS_KEPT)
        self._send = fleet_send
        self._clock = clock
        self._observers = tuple(observers)
        self._fleet_observers = tuple(fleet_observers)
        self._listeners: dict[Call, _Listener] = {}
        self._hellos: dict[str, Hello] = {}
        self._snapshots: dict[str, Snapshot] = {}
        self._timer: asyncio.TimerHandle | None = None

    # --- what the API calls ---

    def now(self) -> int:
        return self._clock()

    def hello(self, instance: str) -> Hello | None:
        return self._hellos.get(instance)

    def snapshot(self, instance: str) -> Snapshot | None:
        return self._snapshots.get(instance)

    def submit(
        self, request: CallRequest, index: int, inbox: Inbox, observer: Observer | None = None
    ) -> Call:
        """Place the call or queue it; its events go to ``inbox`` under ``index``."""
        call, outputs = self.book.submit(request, self._clock())
        self._listeners[call] = _Listener(inbox, index, observer)
        self._follow(outputs)
        return call

    def cancel(self, call: Call) -> None:
        """Forget the call and free what it holds anywhere; nothing if it has ended."""
        self._follow(self.book.cancel(call, self._clock()))
        self._listeners.pop(call, None)

    def satisfied(self, call: Call) -> None:
        """As ``cancel``, for a call whose client has all it wants: it counts as finished."""
        self._follow(self.book.satisfied(call, self._clock()))

    def drain(self, instance: str) -> bool:
        """Let the instance finish what it has; False if it is not connected."""
        if instance not in self._hellos:
            return False
        self._follow(self.book.drain(instance, self._clock()))
        return True

    def forget_sessions(self) -> None:
        """Drop those that are over, idle for too long, or too many."""
        self.book.forget_sessions(self._clock())

    def fail_all(self, failure: CallFailure) -> None:
        """End every call, on its instance too: the gateway stops."""
        self._perform(self.book.fail_all(failure, self._clock()))

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- what the fleet calls ---

    def connected(self, hello: Hello) -> None:
        self._hellos[hello.name] = hello
        self._tell_fleet(hello)
        self._follow(self.book.connected(hello, self._clock()))

    def beat(self, name: str) -> None:
        self._follow(self.book.beat(name, self._clock()))

    def message(self, name: str, body: FromInstance) -> None:
        outputs = self.book.message(name, body, self._clock())
        if isinstance(body, Tokens | BlocksStored | BlocksRemoved):
            # None of these makes room: what waits goes on waiting.
            self._perform(outputs)
            return
        if isinstance(body, Snapshot):
            self._snapshots[name] = body
            self._tell_fleet(StateTold(name, body))
        self._follow(outputs)

    def lost(self, name: str, reason: str) -> None:
        self._hellos.pop(name, None)
        self._snapshots.pop(name, None)
        self._tell_fleet(LinkLost(name))
        self._follow(self.book.lost(name, reason, self._clock()))

    # --- what is to be done ---

    def tick(self) -> None:
        """Time has passed."""
        self._follow(())

    def _follow(self, outputs: Iterable[Output]) -> None:
        """Do this, then what can be done now that it is, and arrange to be woken for the rest."""
        self._perform(outputs)
        now = self._clock()
        self._perform(self.book.tick(now))
        self._wake_at(self.book.next_wakeup(now))

    def _wake_at(self, due: int | None) -> None:
        self.close()
        if due is not None:
            delay = max(0.0, (due - self._clock()) / 1e9)
            self._timer = asyncio.get_running_loop().call_later(delay, self.tick)

    def _perform(self, outputs: Iterable[Output]) -> None:
        waiting: deque[Output] = deque(outputs)
        while waiting:
            output = waiting.popleft()
            if isinstance(output, Update):
                self._deliver(output.call, output.event)
            elif not self._send(output.instance, output.message):
                waiting.extend(self.book.unsent(output, self._clock()))

    def _deliver(self, call: Call, event: CallEvent) -> None:
        listener = self._listeners[call]
        if isinstance(event, Drawn):
            if listener.drawn:
                listener.inbox.post(listener.index, event)
                return
            listener.drawn = True
        elif isinstance(event, Placement):
            self.decisions.append(event)
        listener.inbox.post(listener.index, event)
        now = self._clock()
        for observer in self._observers:
            observer.of_call(call, event, now)
        if listener.observer is not None:
            listener.observer.of_call(call, event, now)
        if isinstance(event, Finished | Satisfied | CallFailure):
            del self._listeners[call]

    def _tell_fleet(self, event: FleetEvent) -> None:
        now = self._clock()
        for observer in self._fleet_observers:
            observer.of_fleet(event, now)
