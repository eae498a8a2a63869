"""An instance's side of its link to the gateway, as a state machine without sockets.

A call belongs to the connection that submitted it. A connection ends when the gateway is silent
for too long or asks for a resync; the next one begins with Hello and numbers from 1 again.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from alipes.instance.contract import (
    PROTOCOL,
    Beat,
    Envelope,
    FromInstance,
    Hello,
    InstanceSettings,
    Ping,
    Refused,
    Resync,
    Snapshot,
    ToInstance,
    Welcome,
)

SILENT_BEATS: Final = 10


class Phase(StrEnum):
    GREETING = "greeting"
    UP = "up"


class Do(StrEnum):
    """What the owner of the socket must do next. After ``RECONNECT`` it cancels the calls of the
    old connection, opens a new one and calls ``opened``."""

    NOTHING = "nothing"
    RECONNECT = "reconnect"
    EXIT_ORPHANED = "exit orphaned"
    EXIT_REFUSED = "exit refused"


@dataclass(frozen=True, slots=True)
class Step:
    """An action with its reason, and messages to send on the present connection."""

    do: Do = Do.NOTHING
    reason: str = ""
    send: tuple[Envelope, ...] = ()


class Uplink:
    """All times in nanoseconds. While greeting, only Hello is sent: the last snapshot follows
    the Welcome, and other messages have no reader."""

    def __init__(self, hello: Hello, settings: InstanceSettings, now: int) -> None:
        self._hello = hello
        self._beat = round(settings.beat_seconds * 1e9)
        self._orphan = round(settings.orphan_seconds * 1e9)
        self._silence = SILENT_BEATS * self._beat
        self._snapshot: Snapshot | None = None
        self._phase = Phase.GREETING
        self._sequence = 0
        self._alone_since = now
        self._heard = now
        self._beaten = now
        self._answered = -1

    def opened(self, now: int) -> Step:
        """A new connection is open: it begins with Hello."""
        if self._phase is Phase.UP:
            self._alone_since = now
        self._phase = Phase.GREETING
        self._sequence = 0
        self._heard = now
        return Step(send=(self._number(self._hello),))

    def received(self, message: ToInstance, now: int) -> Step:
        """A message came on the present connection; only those about the link matter here."""
        self._heard = now
        match message:
            case Welcome(protocol=protocol) if protocol != PROTOCOL:
                reason = f"the gateway speaks protocol {protocol}, this instance {PROTOCOL}"
                return Step(Do.EXIT_REFUSED, reason)
            case Welcome():
                return self._welcomed(now)
            case Refused(reason=reason):
                return Step(Do.EXIT_REFUSED, reason)
            case Resync(reason=reason):
                return Step(Do.RECONNECT, f"the gateway asks for it: {reason}")
            case Ping() if self._phase is Phase.UP and self._answered != now:
                # One beat answers all that were read at once, however many had piled up.
                self._answered = now
                return self._beat_now(now)
            case _:
                return Step()

    def outgoing(self, body: FromInstance) -> Step:
        """The instance says ``body``."""
        if isinstance(body, Snapshot):
            self._snapshot = body
        if self._phase is Phase.GREETING:
            return Step()
        return Step(send=(self._number(body),))

    def passed(self, now: int) -> Step:
        """Time passed: beats, silence and orphanage."""
        if self._phase is Phase.GREETING and now - self._alone_since >= self._orphan:
            seconds = (now - self._alone_since) / 1e9
            return Step(Do.EXIT_ORPHANED, f"no gateway for {seconds:.0f} s")
        if now - self._heard >= self._silence:
            return Step(Do.RECONNECT, f"no word from the gateway for {self._silence / 1e9:.1f} s")
        if self._phase is Phase.UP and now - self._beaten >= self._beat:
            return self._beat_now(now)
        return Step()

    def wakeup(self) -> int:
        """When ``passed`` has something to do if nothing else happens."""
        due = [self._heard + self._silence]
        if self._phase is Phase.UP:
            due.append(self._beaten + self._beat)
        else:
            due.append(self._alone_since + self._orphan)
        return min(due)

    def _welcomed(self, now: int) -> Step:
        self._phase = Phase.UP
        self._beaten = now
        if self._snapshot is None:
            return Step()
        return Step(send=(self._number(self._snapshot),))

    def _beat_now(self, now: int) -> Step:
        self._beaten = now
        version = self._snapshot.version if self._snapshot else 0
        return Step(send=(self._number(Beat(last_version=version)),))

    def _number(self, body: FromInstance) -> Envelope:
        self._sequence += 1
        return Envelope(self._sequence, body)
