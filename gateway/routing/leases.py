"""Leases: places held for sessions that are likely to return (Talaria 3.3, 4.1)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import msgspec
from msgspec.structs import replace


class Lease(msgspec.Struct, frozen=True):
    """One admission unit held on an instance for the next call of a branch.

    ``prefix`` is the key of the last full block of what the finished call left there,
    ``prefix_tokens`` what it stands for. ``charge`` is in seconds, ``expires`` in nanoseconds.
    It keeps no KV and promises no execution.
    """

    branch: bytes
    model: str
    instance: str
    incarnation: str
    prefix: bytes
    prefix_tokens: int
    expires: int
    charge: float


class LeaseCounts(msgspec.Struct, frozen=True):
    """What became of all leases: ``installed`` is the sum of the others. ``discarded`` are those
    whose instance or prefix was no longer there, or whose branch got another or was forgotten."""

    installed: int = 0
    consumed: int = 0
    expired: int = 0
    discarded: int = 0
    live: int = 0


@dataclass(slots=True)
class _Held:
    """The leases of one instance and the sum of their charges."""

    leases: dict[bytes, Lease] = field(default_factory=dict)
    charge: float = 0.0


class LeaseTable:
    """The live leases, at most one for each branch.

    installed -> consumed | expired | discarded, once; the charge goes with the lease. In between
    it may be out for a check (``take``, ``settle``): then it is live, and nothing else of it is.
    """

    def __init__(self) -> None:
        self._live: dict[bytes, Lease] = {}
        self._on: dict[str, _Held] = {}
        self._counts: Counter[str] = Counter()
        self._out = 0

    def __len__(self) -> int:
        return len(self._live)

    def of(self, branch: bytes, now: int) -> Lease | None:
        lease = self._live.get(branch)
        return lease if lease is not None and now < lease.expires else None

    def install(self, lease: Lease) -> None:
        """A call of the branch finished; an earlier lease of the branch is discarded."""
        self.discard(lease.branch)
        self._live[lease.branch] = lease
        there = self._on.setdefault(lease.instance, _Held())
        there.leases[lease.branch] = lease
        there.charge += lease.charge
        self._counts["installed"] += 1

    def consume(self, branch: bytes) -> None:
        """The branch has returned. Raises KeyError without a lease."""
        self._end(branch, "consumed")

    def take(self, branch: bytes) -> Lease:
        """The branch has returned, and it is yet to be seen whether the lease is good for
        anything: it charges nothing and does not expire until ``settle``. Raises KeyError
        without a lease."""
        lease = self._remove(branch)
        self._out += 1
        return lease

    def settle(self, good: bool) -> None:
        """What became of a lease that was taken."""
        self._out -= 1
        self._counts["consumed" if good else "discarded"] += 1

    def discard(self, branch: bytes) -> None:
        """The lease is good for nothing; without one nothing happens."""
        if branch in self._live:
            self._end(branch, "discarded")

    def expire(self, now: int) -> bool:
        """End the leases whose time is over; True when there were any."""
        over = []
        # Every lease lasts as long: they expire in the order in which they were installed.
        for branch, lease in self._live.items():
            if now < lease.expires:
                break
            over.append(branch)
        for branch in over:
            self._end(branch, "expired")
        return bool(over)

    def shift(self, nanoseconds: int) -> None:
        """All live leases last so much longer, or shorter where that is negative."""
        for lease in list(self._live.values()):
            moved = replace(lease, expires=lease.expires + nanoseconds)
            self._live[lease.branch] = moved
            self._on[lease.instance].leases[lease.branch] = moved

    def next_expiry(self) -> int | None:
        for lease in self._live.values():
            return lease.expires
        return None

    def lost(self, instance: str) -> None:
        """The instance, or this run of it, is gone with the KV that its leases stand for."""
        there = self._on.get(instance)
        for branch in list(there.leases) if there else ():
            self._end(branch, "discarded")

    def charge(self, instance: str, but: bytes = b"") -> float:
        """Seconds held on an instance, without those for the branch ``but``."""
        there = self._on.get(instance)
        if there is None:
            return 0.0
        own = there.leases.get(but)
        return max(0.0, there.charge - own.charge) if own else there.charge

    def models(self, instance: str) -> frozenset[str]:
        """Models whose sessions are likely to return to an instance."""
        there = self._on.get(instance)
        return frozenset(lease.model for lease in there.leases.values()) if there else frozenset()

    def counts(self) -> LeaseCounts:
        return LeaseCounts(**self._counts, live=len(self._live) + self._out)

    def _end(self, branch: bytes, how: str) -> None:
        self._remove(branch)
        self._counts[how] += 1

    def _remove(self, branch: bytes) -> Lease:
        lease = self._live.pop(branch)
        there = self._on[lease.instance]
        del there.leases[branch]
        there.charge -= lease.charge
        if not there.leases:
            del self._on[lease.instance]
        return lease
