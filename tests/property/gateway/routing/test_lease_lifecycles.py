"""Every life that leases can have in a small world: all sequences of events up to a depth, over
two branches of one model and two cold instances, each against a table of expectations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product

import pytest

from alipes.gateway.routing.decision import (
    CallShape,
    Completion,
    Placement,
    Reason,
    RouterSettings,
)
from alipes.gateway.routing.leases import LeaseCounts
from alipes.gateway.routing.router import Router
from alipes.instance.contract import (
    BlocksRemoved,
    BlocksStored,
    Counters,
    Estimate,
    Hello,
    Load,
    ModelReport,
    Occupancy,
    Pool,
    Snapshot,
    Targets,
    Tier,
)

SECOND = 1_000_000_000
COST = Estimate(0.01, 0.001, 0.0, 0.02, 0.005, 0.0, 0.5, 0.001, 0.0001, 9)
REPORT = ModelReport("a", "kv", 8192, 100, 1 << 20, 1 << 16, 500)
EVENTS = ("call 0", "call 1", "finish 0", "finish 1", "restart x", "restart y", "evict", "wait")
DEPTH = 5
"""Every sequence of so many events; calls of a branch may overlap."""
BEGINNINGS = {"nothing": (), "two leases": ("call 0", "finish 0", "call 1", "finish 1")}


@dataclass(frozen=True)
class Path:
    listed: tuple[bytes, ...]

    def keys(self, kv_format: str) -> Sequence[bytes]:
        return self.listed


PATHS = {branch: Path(tuple(branch + bytes([n]) for n in range(4))) for branch in (b"0", b"1")}


@dataclass
class World:
    """The router, and what should be true of it: leases are (instance, expiry)."""

    router: Router = field(
        default_factory=lambda: Router(
            {"a": frozenset({"x", "y"})}, RouterSettings(lease_seconds=2.0)
        )
    )
    now: int = 0
    calls: int = 0
    runs: int = 0
    flying: dict[bytes, list[tuple[bytes, str]]] = field(
        default_factory=lambda: {b"0": [], b"1": []}
    )
    leases: dict[bytes, tuple[str, int, str]] = field(default_factory=dict)
    held: set[tuple[str, bytes]] = field(default_factory=set)
    incarnation: dict[str, str] = field(default_factory=dict)
    installed: int = 0
    consumed: int = 0
    expired: int = 0
    discarded: int = 0

    def apply(self, event: str) -> None:
        what, _, who = event.partition(" ")
        getattr(self, what)(who)

    def call(self, who: str) -> None:
        branch = who.encode()
        self.calls += 1
        call_id = self.calls.to_bytes(16, "big")
        lease = self.leases.pop(branch, None)
        good = lease is not None and (lease[0], branch) in self.held
        self.consumed += good
        self.discarded += lease is not None and not good
        shape = CallShape(call_id, "a", "t", 300, 20, branch, 256, False, PATHS[branch])
        answer = self.router.place(shape, self.now)
        assert isinstance(answer, Placement)
        assert (answer.reason is Reason.LEASE) is good
        assert not good or lease is None or answer.instance == lease[0]
        self.flying[branch].append((call_id, answer.instance))

    def finish(self, who: str) -> None:
        branch = who.encode()
        if not self.flying[branch]:
            return
        call_id, name = self.flying[branch].pop(0)
        keys = PATHS[branch].listed
        self.router.stored(name, BlocksStored("a", Tier.HOST, b"", keys))
        self.held.add((name, branch))
        self.router.complete(call_id, self.now, Completion(20, keys[-1], 256))
        self.discarded += branch in self.leases
        self.installed += 1
        self.leases[branch] = (name, self.now + 2 * SECOND, self.incarnation[name])

    def restart(self, name: str) -> None:
        """The process dies and another one takes its place."""
        self.runs += 1
        run = self.incarnation[name] = str(self.runs)
        hello = Hello(
            1, name, run, Pool.COLD, "fake", "cpu", 64, 4, 9, 512, Targets(), (REPORT,), 1
        )
        lost = self.router.connected(hello, self.now)
        self._show(name)
        for branch, calls in self.flying.items():
            gone = [call for call in calls if call[1] == name]
            assert all(call_id in lost for call_id, _ in gone)
            self.flying[branch] = [call for call in calls if call[1] != name]
        for branch in [b for b, lease in self.leases.items() if lease[0] == name]:
            del self.leases[branch]
            self.discarded += 1
        self.held = {pair for pair in self.held if pair[0] != name}

    def evict(self, who: str) -> None:
        """The first branch's last block goes, everywhere."""
        last = PATHS[b"0"].listed[-1:]
        for name in "xy":
            self.router.removed(name, BlocksRemoved("a", Tier.HOST, last))
            self.held.discard((name, b"0"))

    def wait(self, who: str) -> None:
        self.now += SECOND
        for branch in [b for b, lease in self.leases.items() if lease[1] <= self.now]:
            del self.leases[branch]
            self.expired += 1
        assert self.router.retry(self.now) == []
        for name in "xy":
            self._show(name)

    def _show(self, name: str) -> None:
        flying = [c for calls in self.flying.values() for c in calls if c[1] == name]
        load = {"a": Load(0, 0, len(flying), 300, 20)} if flying else {}
        state = Snapshot(
            self.now + self.calls,
            "a",
            "P",
            0.0,
            0.0,
            False,
            load,
            {"a": COST},
            Occupancy(9, 9, 0, 0, 0, 0),
            Counters(),
            max((c[0] for c in flying), default=b""),
        )
        self.router.updated(name, state, self.now)

    def check(self) -> None:
        for branch in PATHS:
            lease, known = self.router.lease_of(branch, self.now), self.leases.get(branch)
            shown = lease and (lease.instance, lease.expires, lease.incarnation)
            assert shown == known
            # None outlives the process that it is for.
            assert lease is None or lease.incarnation == self.incarnation[lease.instance]
        counts = self.router.status(self.now).leases
        assert counts == LeaseCounts(
            self.installed, self.consumed, self.expired, self.discarded, len(self.leases)
        )
        ended = counts.consumed + counts.expired + counts.discarded
        assert counts.installed == ended + counts.live

    def end(self) -> None:
        """Nothing is held once all is over."""
        for branch in PATHS:
            self.router.forget(branch)
            for call_id, _ in self.flying[branch]:
                self.router.released(call_id, self.now)
        status = self.router.status(self.now)
        assert status.leases.live == 0
        assert all(shown.placed == 0 for shown in status.instances)


def lives(depth: int) -> Iterator[tuple[str, ...]]:
    """Sequences of exactly so many events in which no finish comes before a call; every shorter
    one is the beginning of one of them."""
    for events in product(EVENTS, repeat=depth):
        open_calls = {"0": 0, "1": 0}
        for event in events:
            what, _, who = event.partition(" ")
            if what == "call":
                open_calls[who] += 1
            elif what == "finish":
                open_calls[who] -= 1
                if open_calls[who] < 0:
                    break
        else:
            yield events


def common(one: Sequence[str], other: Sequence[str]) -> int:
    pairs = zip(one, other, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


@pytest.mark.parametrize("beginning", BEGINNINGS.values(), ids=BEGINNINGS)
def test_every_life(beginning: tuple[str, ...]) -> None:
    before: tuple[str, ...] = ()
    seen = {"consumed": 0, "expired": 0, "discarded": 0}
    for events in lives(DEPTH):
        world = World()
        for event in ("restart x", "restart y", *beginning):
            world.apply(event)
        # What this life shares with the one before it has been checked there.
        checked, before = common(events, before), events
        for index, event in enumerate(events):
            world.apply(event)
            if index >= checked:
                world.check()
        world.end()
        for how in seen:
            seen[how] += getattr(world, how)
    assert all(seen.values())
