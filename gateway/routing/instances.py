"""What the router knows of one instance, and how old it is."""

from __future__ import annotations

from collections import Counter

from alipes.gateway.routing.decision import InstanceStatus, RouterSettings, Why
from alipes.gateway.routing.overlay import Charge, Overlay, without
from alipes.gateway.routing.pressure import RoundPressure
from alipes.instance.contract import Hello, Load, ModelReport, Snapshot

SECOND = 1_000_000_000


class InstanceState:
    """One configured instance: its greeting, latest state, liveness and the calls placed there.

    ``hello`` is kept when the link goes, so that what can ever fit there is still known.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.hello: Hello | None = None
        self.snapshot: Snapshot | None = None
        self.reports: dict[str, ModelReport] = {}
        self.placed: set[bytes] = set()
        self.overlay = Overlay()
        self.pressure = RoundPressure()
        self._ended: Counter[str] = Counter()
        self._up = False
        self._draining = False
        self._updated_at = 0
        self._heard_at = 0
        self._started: bytes | None = None
        self._unwell = False

    def connected(self, hello: Hello, now: int) -> None:
        self.hello = hello
        self.reports = {report.name: report for report in hello.models}
        self.snapshot = None
        self.pressure = RoundPressure()
        self._up = True
        self._draining = False
        self._unwell = False
        self._heard_at = now

    def beat(self, now: int) -> None:
        """A sign of life."""
        self._heard_at = max(self._heard_at, now)
        self._unwell = False

    def heard_since(self, then: int) -> bool:
        return self._heard_at >= then

    def unwell(self) -> None:
        """A health check failed: no lease is good here until something is heard."""
        self._unwell = True

    def updated(self, snapshot: Snapshot, now: int) -> bool:
        """Take a newer state; an older one, or one without a link, is ignored (False)."""
        if not self._up:
            return False
        self.beat(now)
        if self.snapshot is not None and snapshot.version < self.snapshot.version:
            return False
        self.snapshot = snapshot
        self.pressure.observe(snapshot.counters)
        self._ended.clear()
        self._updated_at = now
        for call_id in (snapshot.last_call, self._started):
            if call_id:
                self.overlay.shown(call_id)
        self._started = None
        return True

    def disconnected(self) -> tuple[bytes, ...]:
        """The link is gone and with it every call that was there; their ids are returned."""
        lost = tuple(sorted(self.placed))
        self.placed.clear()
        self.overlay = Overlay()
        self._ended.clear()
        self.snapshot = None
        self._started = None
        self._up = False
        return lost

    def drain(self) -> None:
        self._draining = True

    def place(self, call_id: bytes, charge: Charge) -> None:
        self.placed.add(call_id)
        self.overlay.add(call_id, charge)

    def started(self, call_id: bytes) -> None:
        """The instance works on the call: its next state shows it."""
        self._started = call_id

    def release(self, call_id: bytes, model: str) -> None:
        """The call is over. The stream of an instance is in order, so the state known now still
        shows it, and the next one will not."""
        self.placed.discard(call_id)
        if not self.overlay.release(call_id):
            self._ended[model] += 1

    @property
    def up(self) -> bool:
        """It has a link."""
        return self._up

    @property
    def healthy(self) -> bool:
        """It takes calls, as far as is known: what a lease needs. An old state or a missed beat
        keeps only unreserved calls away, unless a check fails (Talaria 4.1)."""
        return self._up and not self.drains and not self._unwell

    def has_active(self, model: str = "") -> bool:
        """Whether the model, or any when none is named, is active by the latest state."""
        active = self.snapshot.active_model if self.snapshot is not None else ""
        return active == model if model else bool(active)

    @property
    def drains(self) -> bool:
        """It takes no more calls, whether it was told so here or says so itself."""
        return self._draining or (self.snapshot is not None and self.snapshot.draining)

    def condition(self, settings: RouterSettings, now: int) -> Why:
        """``ok`` when new calls may go there, else what keeps them away."""
        if not self._up:
            return Why.DOWN
        if self.drains:
            return Why.DRAINING
        if now - self._heard_at > settings.silence_seconds * SECOND:
            return Why.SILENT
        if self.snapshot is None:
            return Why.NO_STATE
        if now - self._updated_at > settings.state_seconds * SECOND:
            return Why.STALE
        return Why.OK

    def loads(self) -> dict[str, Load]:
        """The reported loads, less what has ended since, with the overlay on them."""
        shown = dict(self.snapshot.loads) if self.snapshot else {}
        for model, calls in self._ended.items():
            if model in shown:
                shown[model] = without(shown[model], calls)
        return self.overlay.onto(shown)

    def status(self, settings: RouterSettings, now: int) -> InstanceStatus:
        shown = self.snapshot
        return InstanceStatus(
            name=self.name,
            why=self.condition(settings, now),
            age=(now - self._updated_at) / SECOND if shown else -1.0,
            active_model=shown.active_model if shown else "",
            phase=shown.phase if shown else "",
            placed=len(self.placed),
            unseen=len(self.overlay),
        )
