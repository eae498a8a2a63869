"""The lease table: one end for each lease, and charges that go with it."""

from __future__ import annotations

import pytest

from alipes.gateway.routing.leases import Lease, LeaseCounts, LeaseTable


def lease(branch: int, instance: str = "x", expires: int = 10, charge: float = 0.3) -> Lease:
    return Lease(bytes([branch]), "a", instance, "first", b"k", 64, expires, charge)


def test_a_lease_lives_until_it_expires() -> None:
    table = LeaseTable()
    table.install(lease(1))
    assert table.of(b"\1", 9) == lease(1)
    assert table.of(b"\1", 10) is None
    assert not table.expire(9)
    assert table.expire(10)
    assert table.counts() == LeaseCounts(installed=1, expired=1)


def test_a_lease_is_consumed_once() -> None:
    table = LeaseTable()
    table.install(lease(1))
    table.consume(b"\1")
    with pytest.raises(KeyError):
        table.consume(b"\1")
    table.discard(b"\1")
    assert table.counts() == LeaseCounts(installed=1, consumed=1)


def test_a_branch_has_one_lease_the_latest() -> None:
    table = LeaseTable()
    table.install(lease(1, "x", 10))
    table.install(lease(1, "y", 20))
    assert table.of(b"\1", 0) == lease(1, "y", 20)
    assert (table.charge("x"), table.charge("y")) == (0, 0.3)
    assert table.counts() == LeaseCounts(installed=2, discarded=1, live=1)
    assert table.next_expiry() == 20


def test_charges_are_those_of_others_and_return_to_nothing() -> None:
    table = LeaseTable()
    for branch in range(3):
        table.install(lease(branch, charge=0.1 * (branch + 1)))
    assert table.charge("x") == pytest.approx(0.6)
    assert table.charge("x", but=b"\1") == pytest.approx(0.4)
    table.consume(b"\0")
    table.discard(b"\1")
    table.expire(10)
    assert (table.charge("x"), table.next_expiry(), len(table)) == (0, None, 0)


def test_an_instance_takes_its_leases_with_it() -> None:
    table = LeaseTable()
    table.install(lease(1, "x"))
    table.install(lease(2, "y"))
    table.lost("x")
    table.lost("x")
    assert table.of(b"\1", 0) is None
    assert table.of(b"\2", 0) == lease(2, "y")
    assert table.counts() == LeaseCounts(installed=2, discarded=1, live=1)


def test_only_the_leases_that_are_over_expire() -> None:
    table = LeaseTable()
    for branch in range(4):
        table.install(lease(branch, expires=10 + branch))
    table.expire(12)
    assert [table.of(bytes([n]), 0) is None for n in range(4)] == [True, True, True, False]
