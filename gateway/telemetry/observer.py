"""Whom the dispatcher tells what has happened: metrics, the log line of a call, recordings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from alipes.gateway.calls.call import Call
from alipes.gateway.calls.events import CallEvent
from alipes.instance.contract import Hello, Snapshot


@dataclass(frozen=True, slots=True)
class LinkLost:
    """The instance ``name`` has no link any more."""

    name: str


@dataclass(frozen=True, slots=True)
class StateTold:
    """The instance ``name`` told its state."""

    name: str
    snapshot: Snapshot


FleetEvent = Hello | LinkLost | StateTold


class Observer(Protocol):
    """Hears of calls, in the event loop, after what happened was acted upon; it may not raise. Of
    the tokens of a call only the first is told. ``now`` is ns of the gateway's clock."""

    def of_call(self, call: Call, event: CallEvent, now: int) -> None: ...


class FleetObserver(Protocol):
    """Hears of instances in the same way."""

    def of_fleet(self, event: FleetEvent, now: int) -> None: ...
