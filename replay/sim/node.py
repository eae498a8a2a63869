"""One configured instance over all its processes: what a scenario's faults do to it.

A process that is killed takes its KV and its calls with it, and is started anew; that it is gone is
known at once, as its launcher tells. One that hangs does nothing for a while: its beats stop, after
some time its link is given up, and when it goes on it drops the calls of that link, connects anew
and still has its KV.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from alipes.instance.contract import (
    BEAT_SECONDS,
    MISSED_BEATS,
    Cancel,
    Counters,
    Hello,
    Submit,
    Welcome,
)
from alipes.replay.sim.clock import SimulationError
from alipes.replay.sim.instance import SimulatedInstance
from alipes.replay.sim.timeline import Activity

SILENCE_NS: Final = int(MISSED_BEATS * BEAT_SECONDS * 1e9)


class FaultKind(StrEnum):
    KILL = "kill"
    HANG = "hang"


@dataclass(frozen=True, slots=True)
class Fault:
    """In ns: when, and for how long the instance is gone or hangs; None is for good."""

    at: int
    kind: FaultKind
    lasts: int | None


class Gateway(Protocol):
    """Whom a node tells of its link."""

    def connected(self, hello: Hello) -> None: ...

    def lost(self, name: str, reason: str) -> None: ...


Start = Callable[[int], tuple[SimulatedInstance, Hello]]
"""Make a process now, with its greeting."""


class Node:
    """An ``Actor``. ``process`` is there unless it was killed (``down``); while it hangs it is
    left alone. Without a link (``linked``) nobody hears what it says; ``relinked``: it has
    connected anew after it hung. A fault that meets a node which is down counts for nothing."""

    def __init__(self, name: str, start: Start, faults: Sequence[Fault], gateway: Gateway) -> None:
        self.name = name
        self.process, self.hello = start(0)
        self.down = self.relinked = False
        self.timeline = self.process.timeline
        self._start = start
        self._faults = sorted(faults, key=lambda fault: fault.at)
        self._gateway = gateway
        self._hung: int | None = None
        self._back: int | None = None
        self.linked = True
        self._unread: list[Submit | Cancel] = []
        self._ended: list[Counters] = []

    @property
    def wakeup(self) -> int | None:
        times = [fault.at for fault in self._faults[:1]]
        if self._back is not None:
            times.append(self._back)
        if self._hung is not None:
            if self.linked:
                times.append(self._hung + SILENCE_NS)
        elif not self.down and self.process.wakeup is not None:
            times.append(self.process.wakeup)
        return min(times, default=None)

    @property
    def responds(self) -> bool:
        """Whether there is a process that does anything."""
        return not self.down and self._hung is None

    @property
    def counters(self) -> list[Counters]:
        """Those of every process."""
        return [*self._ended, *([] if self.down else [self.process.scheduler.counters()])]

    def act(self, now: int) -> None:
        """What is due first; the rest comes at the same instant."""
        if self._faults and self._faults[0].at <= now:
            self._fail(self._faults.pop(0), now)
        elif self._back is not None and self._back <= now:
            self._return(now)
        elif self._hung is not None and self.linked and self._hung + SILENCE_NS <= now:
            self._lose_link(f"no beat for {SILENCE_NS / 1e9:g} s")
        else:
            self.process.act(now)

    def deliver(self, message: Submit | Cancel, now: int) -> None:
        if self._hung is not None:
            self._unread.append(message)
        elif not self.down:
            self.process.deliver(message, now)

    def finish(self, now: int) -> None:
        """Nothing more will come; what is under way is of calls that have gone elsewhere."""
        if not self.responds:
            self.timeline.add_rest(Activity.DOWN, now)
        if not self.responds or self.process.busy:
            self.process.die(now)
            self.down = True
        else:
            self.process.finish(now)

    def serves(self, model: str) -> bool:
        return any(report.name == model for report in self.hello.models)

    def check(self, expected: set[bytes]) -> None:
        """``expected`` are the calls that the gateway has here. Raises ``SimulationError`` for one
        that is nowhere."""
        there = set(self.timeline.calls)
        there.update(message.call_id for message in self._unread)
        if not expected <= there:
            raise SimulationError(f"{self.name} lacks {len(expected - there)} calls")
        if not self.down:
            self.process.check()

    # --- faults ----------------------------------------------------------------------------------

    def _fail(self, fault: Fault, now: int) -> None:
        if self.down:
            return
        back = None if fault.lasts is None else now + fault.lasts
        if fault.kind is FaultKind.KILL:
            self._kill(now)
            self._back = back
        elif self._hung is None:
            self.process.stop(now)
            self._hung, self._back = now, back

    def _kill(self, now: int) -> None:
        if self._hung is not None:
            self._go_on(now)
        else:
            self.process.stop(now)
        self._ended.append(self.process.scheduler.counters())
        self.down = True
        self._lose_link("it was killed")
        self.process.die(now)

    def _lose_link(self, reason: str) -> None:
        if self.linked:
            self.linked = False
            self._unread.clear()
            self._gateway.lost(self.name, reason)

    def _return(self, now: int) -> None:
        self._back = None
        if self.down:
            self.timeline.add_rest(Activity.DOWN, now)
            self.process, self.hello = self._start(now)
            self.down = False
        else:
            self._go_on(now)
            if self.linked:
                return
            self.relinked = True
            for call_id in tuple(self.timeline.calls):
                self.process.deliver(Cancel(call_id), now)
            self.process.deliver(Welcome(self.hello.protocol), now)
        self.linked = True
        self._gateway.connected(self.hello)

    def _go_on(self, now: int) -> None:
        """It does not hang any more."""
        assert self._hung is not None
        self.process.go_on(now - self._hung, now)
        self._hung = None
        unread, self._unread = self._unread, []
        for message in unread:
            self.process.deliver(message, now)
