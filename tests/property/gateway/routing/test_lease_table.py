"""The lease table against a list of everything that ever happened."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from alipes.gateway.routing.leases import Lease, LeaseCounts, LeaseTable

TAU = 10
branches = st.integers(0, 4).map(lambda n: bytes([n]))
instances = st.sampled_from("xyz")


class LeaseMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.now, self.lasting = 0, TAU
        self.table = LeaseTable()
        self.installed: list[Lease] = []
        self.ends: list[str] = []

    def _live(self) -> list[tuple[int, Lease]]:
        """All that the table has: those that were taken are out."""
        return [(i, one) for i, one in enumerate(self.installed) if self.ends[i] == ""]

    def _end(self, how: str, which: list[int]) -> None:
        for index in which:
            assert self.ends[index] == ""
            self.ends[index] = how

    @rule(branch=branches, instance=instances, charge=st.floats(0, 50))
    def install(self, branch: bytes, instance: str, charge: float) -> None:
        self._end("discarded", [i for i, one in self._live() if one.branch == branch])
        lease = Lease(branch, "a", instance, "first", b"k", 64, self.now + self.lasting, charge)
        self.table.install(lease)
        self.installed.append(lease)
        self.ends.append("")

    @rule(branch=branches)
    def consume(self, branch: bytes) -> None:
        own = [i for i, one in self._live() if one.branch == branch]
        if own:
            self.table.consume(branch)
            self._end("consumed", own)
        else:
            with pytest.raises(KeyError):
                self.table.consume(branch)

    @rule(branch=branches)
    def take(self, branch: bytes) -> None:
        own = [(i, one) for i, one in self._live() if one.branch == branch]
        if own:
            assert self.table.take(branch) == own[0][1]
            self._end("taken", [own[0][0]])
        else:
            with pytest.raises(KeyError):
                self.table.take(branch)

    @precondition(lambda self: "taken" in self.ends)
    @rule(good=st.booleans())
    def settle(self, good: bool) -> None:
        self.table.settle(good)
        self.ends[self.ends.index("taken")] = "consumed" if good else "discarded"

    @rule(branch=branches)
    def discard(self, branch: bytes) -> None:
        self.table.discard(branch)
        self._end("discarded", [i for i, one in self._live() if one.branch == branch])

    @rule(instance=instances)
    def lose(self, instance: str) -> None:
        self.table.lost(instance)
        self._end("discarded", [i for i, one in self._live() if one.instance == instance])

    @rule(lasting=st.integers(1, 2 * TAU))
    def last(self, lasting: int) -> None:
        """From now on all leases last so long."""
        self.table.shift(lasting - self.lasting)
        moved = [
            replace(one, expires=one.expires + lasting - self.lasting) for one in self.installed
        ]
        self.installed, self.lasting = moved, lasting
        self.wait(0)

    @rule(passed=st.integers(1, 12))
    def wait(self, passed: int) -> None:
        self.now += passed
        over = [i for i, one in self._live() if one.expires <= self.now]
        for index in over:
            assert self.table.of(self.installed[index].branch, self.now) is None
        assert self.table.expire(self.now) is bool(over)
        self._end("expired", over)

    @precondition(lambda self: len(self.table) > 0)
    @rule()
    def all_expire(self) -> None:
        self.wait(self.lasting)
        assert len(self.table) == 0

    @invariant()
    def leases_and_charges_are_those_of_the_list(self) -> None:
        live = [one for _, one in self._live()]
        assert len({one.branch for one in live}) == len(live) == len(self.table)
        for number in range(5):
            own = [one for one in live if one.branch == bytes([number])]
            assert self.table.of(bytes([number]), self.now) == (own[0] if own else None)
        for name in "xyz":
            there = [one for one in live if one.instance == name]
            total = self.table.charge(name)
            assert total == pytest.approx(sum(one.charge for one in there), abs=1e-9)
            if not there:
                assert total == 0
            for one in live:
                rest = sum(other.charge for other in there if other is not one)
                assert self.table.charge(name, one.branch) == pytest.approx(rest, abs=1e-9)

    @invariant()
    def every_lease_has_at_most_one_end(self) -> None:
        counts = {how: self.ends.count(how) for how in ("consumed", "expired", "discarded")}
        live = self.ends.count("") + self.ends.count("taken")
        assert self.table.counts() == LeaseCounts(len(self.installed), **counts, live=live)

    @invariant()
    def the_next_expiry_is_the_earliest(self) -> None:
        earliest = min((one.expires for _, one in self._live()), default=None)
        assert self.table.next_expiry() == earliest


TestLeaseTable = LeaseMachine.TestCase
TestLeaseTable.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
