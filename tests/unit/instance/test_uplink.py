from __future__ import annotations

from alipes.instance.contract import (
    PROTOCOL,
    Beat,
    Counters,
    Envelope,
    Failed,
    FailureClass,
    Hello,
    InstanceSettings,
    Occupancy,
    Ping,
    Pool,
    Refused,
    Resync,
    Snapshot,
    Targets,
    Welcome,
)
from alipes.instance.uplink import Do, Step, Uplink

SECOND = 1_000_000_000
HELLO = Hello(PROTOCOL, "a", "1", Pool.HOT, "fake", "cpu", 64, 16, 256, 512, Targets(), (), 7)
BODY = Failed(b"c", FailureClass.INTERNAL, "x")


def uplink() -> Uplink:
    settings = InstanceSettings("a", Pool.HOT, (), Targets(), "ipc://x", orphan_seconds=60.0)
    return Uplink(HELLO, settings, 0)


def snapshot(version: int) -> Snapshot:
    return Snapshot(
        version, "", "idle", 0.0, 0.0, False, {}, {}, Occupancy(0, 0, 0, 0, 0, 0), Counters()
    )


def welcomed(link: Uplink, now: int = 0) -> Step:
    link.opened(now)
    return link.received(Welcome(PROTOCOL), now)


def test_only_hello_is_sent_before_welcome_and_the_last_snapshot_after() -> None:
    link = uplink()
    assert link.opened(0) == Step(send=(Envelope(1, HELLO),))
    assert link.outgoing(snapshot(1)) == Step()
    assert link.outgoing(snapshot(2)) == Step()
    assert link.outgoing(BODY) == Step()
    assert link.received(Welcome(PROTOCOL), 0) == Step(send=(Envelope(2, snapshot(2)),))
    assert link.outgoing(BODY) == Step(send=(Envelope(3, BODY),))


def test_every_connection_numbers_from_one_and_repeats_the_snapshot() -> None:
    link = uplink()
    welcomed(link)
    link.outgoing(snapshot(5))
    assert link.received(Resync("gap"), 1).do is Do.RECONNECT
    assert link.opened(2) == Step(send=(Envelope(1, HELLO),))
    assert link.outgoing(BODY) == Step()
    assert link.received(Welcome(PROTOCOL), 3) == Step(send=(Envelope(2, snapshot(5)),))


def test_beats_go_out_each_second_while_the_gateway_is_heard() -> None:
    link = uplink()
    welcomed(link)
    link.outgoing(snapshot(9))
    assert link.passed(SECOND - 1) == Step()
    assert link.wakeup() == SECOND
    assert link.passed(SECOND) == Step(send=(Envelope(3, Beat(9)),))
    assert link.wakeup() == 2 * SECOND


def test_a_ping_is_answered_at_once_by_a_beat() -> None:
    link = uplink()
    link.opened(0)
    assert link.received(Ping(), 0) == Step(), "nobody would read it before the welcome"
    link.received(Welcome(PROTOCOL), 0)
    answer = link.received(Ping(), SECOND // 2)
    assert answer == Step(send=(Envelope(2, Beat(0)),))
    assert link.wakeup() == SECOND // 2 + SECOND, "the next beat counts from this one"


def test_pings_that_piled_up_are_answered_by_one_beat() -> None:
    link = uplink()
    welcomed(link)
    answers = [link.received(Ping(), 7) for _ in range(100)]
    assert answers == [Step(send=(Envelope(2, Beat(0)),))] + [Step()] * 99
    assert link.received(Ping(), 8) == Step(send=(Envelope(3, Beat(0)),))


def test_a_silent_gateway_is_left() -> None:
    link = uplink()
    welcomed(link)
    link.received(Ping(), 5 * SECOND)
    assert link.passed(15 * SECOND - 1).do is Do.NOTHING
    assert link.passed(15 * SECOND).do is Do.RECONNECT


def test_an_orphan_counts_from_when_it_was_left() -> None:
    link = uplink()
    welcomed(link)
    assert link.passed(10 * SECOND).do is Do.RECONNECT
    for now in range(10, 70, 10):
        link.opened(now * SECOND)
        assert link.passed((now + 9) * SECOND).do is Do.NOTHING
    assert link.wakeup() == 70 * SECOND
    assert link.passed(70 * SECOND).do is Do.EXIT_ORPHANED


def test_an_instance_that_never_found_a_gateway_is_an_orphan_too() -> None:
    link = uplink()
    link.opened(0)
    assert link.passed(60 * SECOND).do is Do.EXIT_ORPHANED


def test_a_welcome_ends_orphanage() -> None:
    link = uplink()
    welcomed(link, 59 * SECOND)
    assert link.passed(60 * SECOND).do is Do.NOTHING


def test_refusals_end_the_process() -> None:
    link = uplink()
    link.opened(0)
    assert link.received(Refused("no"), 0) == Step(Do.EXIT_REFUSED, "no")
    other = link.received(Welcome(PROTOCOL + 1), 0)
    assert other.do is Do.EXIT_REFUSED
    assert f"protocol {PROTOCOL + 1}" in other.reason
