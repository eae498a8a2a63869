from __future__ import annotations

import msgspec

from alipes.gateway.fleet.links import Beaten, Connected, Delivered, Event, Links, Lost, Reply
from alipes.instance.contract import (
    PROTOCOL,
    Beat,
    Bye,
    Envelope,
    Failed,
    FailureClass,
    FromInstance,
    Hello,
    Pool,
    Refused,
    Resync,
    Targets,
    Welcome,
    encode,
)

SECOND = 1_000_000_000
BODY = Failed(b"c", FailureClass.INTERNAL, "x")


def hello(name: str = "hot", incarnation: str = "1", protocol: int = PROTOCOL) -> Hello:
    return Hello(
        protocol, name, incarnation, Pool.HOT, "fake", "cpu", 64, 16, 256, 512, Targets(), (), 7
    )


class Wire:
    """Links with the numbering of their peers."""

    def __init__(self) -> None:
        self.links = Links(frozenset({"hot", "cold"}), 3 * SECOND)
        self.sequences: dict[bytes, int] = {}

    def send(self, identity: bytes, body: FromInstance, now: int = 0, skip: int = 0) -> list[Event]:
        self.sequences[identity] = self.sequences.get(identity, 0) + 1 + skip
        raw = encode(Envelope(self.sequences[identity], body))
        return self.links.received(identity, raw, now)


def test_hello_is_welcomed_before_it_is_told() -> None:
    wire = Wire()
    assert wire.send(b"A", hello()) == [Reply(b"A", Welcome(PROTOCOL)), Connected(hello())]
    assert wire.links.identity("hot") == b"A"
    assert wire.links.identity("cold") is None
    assert wire.links.identity("other") is None
    assert wire.send(b"A", Beat(0)) == [Beaten("hot")]
    assert wire.send(b"A", BODY) == [Delivered("hot", BODY)]


def test_unknown_names_and_versions_are_refused() -> None:
    wire = Wire()
    (reply,) = wire.send(b"A", hello("warm"))
    assert isinstance(reply, Reply)
    assert isinstance(reply.message, Refused)
    assert "'warm' is not in the cluster file, which has: cold, hot" in reply.message.reason
    (reply,) = wire.send(b"B", hello(protocol=99))
    assert isinstance(reply, Reply)
    assert isinstance(reply.message, Refused)
    assert f"speaks protocol 99, the gateway {PROTOCOL}" in reply.message.reason
    assert wire.links.connected() == ()


def test_a_hello_of_an_unreadable_version_is_refused_by_its_number() -> None:
    raw = msgspec.msgpack.encode([1, ["Hello", 99, {"all": "different"}]])
    (reply,) = Wire().links.received(b"A", raw, 0)
    assert isinstance(reply, Reply)
    assert isinstance(reply.message, Refused)
    assert "speaks protocol 99" in reply.message.reason


def test_garbage_ends_a_link_and_refuses_a_stranger() -> None:
    wire = Wire()
    (reply,) = wire.links.received(b"A", b"\xc1", 0)
    assert isinstance(reply, Reply)
    assert isinstance(reply.message, Refused)
    wire.send(b"B", hello())
    lost, resync = wire.links.received(b"B", b"\xc1", 0)
    assert isinstance(lost, Lost)
    assert isinstance(resync, Reply)
    assert isinstance(resync.message, Resync)
    assert wire.links.identity("hot") is None


def test_a_gap_ends_the_link_and_asks_once_for_another() -> None:
    wire = Wire()
    wire.send(b"A", hello())
    reason = "message 3 came where 2 was due"
    assert wire.send(b"A", BODY, skip=1) == [Lost("hot", reason), Reply(b"A", Resync(reason))]
    assert wire.send(b"A", BODY) == []
    assert wire.send(b"B", hello())[-1] == Connected(hello())


def test_a_stranger_is_asked_for_hello() -> None:
    (reply,) = Wire().send(b"A", Beat(0))
    assert isinstance(reply, Reply)
    assert isinstance(reply.message, Resync)


def test_missed_beats_lose_the_link_and_returning_ones_resync() -> None:
    wire = Wire()
    wire.send(b"A", hello(), now=0)
    wire.send(b"A", Beat(0), now=SECOND)
    assert wire.links.overdue(4 * SECOND) == []
    assert wire.links.overdue(4 * SECOND + 1) == [Lost("hot", "no beat for 3.0 s")]
    assert wire.links.overdue(9 * SECOND) == []
    (reply,) = wire.send(b"A", Beat(0), now=9 * SECOND)
    assert isinstance(reply, Reply)
    assert isinstance(reply.message, Resync)


def test_any_message_counts_as_life() -> None:
    wire = Wire()
    wire.send(b"A", hello(), now=0)
    wire.send(b"A", BODY, now=3 * SECOND)
    assert wire.links.overdue(6 * SECOND) == []


def test_bye_ends_the_link_at_once() -> None:
    wire = Wire()
    wire.send(b"A", hello())
    assert wire.send(b"A", Bye("SIGTERM")) == [Lost("hot", "it ended: SIGTERM")]
    assert wire.links.connected() == ()


def test_a_newer_process_takes_the_name_for_good() -> None:
    wire = Wire()
    wire.send(b"A", hello(incarnation="old"))
    events = wire.send(b"B", hello(incarnation="new"))
    assert [type(event) for event in events] == [Lost, Reply, Reply, Connected]
    assert events[1] == Reply(b"A", Refused("a newer process serves as 'hot'"))
    assert wire.links.identity("hot") == b"B"
    assert wire.send(b"C", hello(incarnation="old")) == [
        Reply(b"C", Refused("a newer process serves as 'hot'"))
    ]
    assert wire.links.identity("hot") == b"B"


def test_a_process_that_reconnects_keeps_its_name() -> None:
    wire = Wire()
    wire.send(b"A", hello())
    events = wire.send(b"B", hello())
    assert [type(event) for event in events] == [Lost, Reply, Connected]
    assert wire.links.identity("hot") == b"B"
    assert wire.links.connected() == ("hot",)


def test_drop_without_a_link_tells_nothing() -> None:
    wire = Wire()
    assert wire.links.drop("hot", "gone") == []
    wire.send(b"A", hello())
    assert wire.links.drop("hot", "gone") == [Lost("hot", "gone")]
