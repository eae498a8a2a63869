"""Random peers against a slow model: what the sink hears is always one whole story a name."""

from __future__ import annotations

from dataclasses import dataclass

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

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
    encode,
)

NAMES = ("hot", "cold")
SILENCE = 5


@dataclass
class Peer:
    """One connection of one process, as the model sees it."""

    identity: bytes
    name: str
    incarnation: str
    sequence: int = 0
    linked: bool = False
    heard: int = 0


class LinksMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.links = Links(frozenset(NAMES), SILENCE)
        self.now = 0
        self.peers: list[Peer] = []
        self.retired: set[str] = set()
        self.up: dict[str, str] = {}
        self.said = 0

    def send(self, peer: Peer, body: FromInstance, skip: int = 0) -> list[Event]:
        peer.sequence += 1 + skip
        raw = encode(Envelope(peer.sequence, body))
        events = self.links.received(peer.identity, raw, self.now)
        self.hear(events)
        return events

    def hear(self, events: list[Event]) -> None:
        """A sink is never told of a name twice in a row that it is up, or down."""
        for event in events:
            match event:
                case Connected(hello=hello):
                    assert hello.name not in self.up
                    self.up[hello.name] = hello.incarnation
                case Lost(name=name):
                    del self.up[name]
                case Beaten(name=name) | Delivered(name=name):
                    assert name in self.up

    def hello(self, peer: Peer) -> Hello:
        return Hello(
            PROTOCOL,
            peer.name,
            peer.incarnation,
            Pool.HOT,
            "fake",
            "cpu",
            64,
            16,
            256,
            512,
            Targets(),
            (),
            len(self.peers),
        )

    def greet(self, name: str, incarnation: str) -> None:
        peer = Peer(str(len(self.peers)).encode(), name, incarnation)
        self.peers.append(peer)
        events = self.send(peer, self.hello(peer))
        replies = [event for event in events if isinstance(event, Reply)]
        if incarnation in self.retired:
            assert [type(reply.message) for reply in replies] == [Refused]
            return
        for other in self.peers:
            if other.name == name and other.incarnation != incarnation:
                self.retired.add(other.incarnation)
            if other.name == name:
                other.linked = False
        peer.linked, peer.heard = True, self.now
        assert self.up[name] == incarnation

    @rule(name=st.sampled_from(NAMES))
    def start_process(self, name: str) -> None:
        self.greet(name, f"{name}-{len(self.peers)}")

    @precondition(lambda self: self.peers)
    @rule(data=st.data())
    def reconnect(self, data: st.DataObject) -> None:
        peer = data.draw(st.sampled_from(self.peers))
        self.greet(peer.name, peer.incarnation)

    @precondition(lambda self: self.peers)
    @rule(data=st.data(), beat=st.booleans(), skip=st.sampled_from([0, 0, 0, 1]))
    def speak(self, data: st.DataObject, beat: bool, skip: int) -> None:
        peer = data.draw(st.sampled_from(self.peers))
        self.said += 1
        body = Beat(self.said) if beat else Failed(b"c", FailureClass.INTERNAL, str(self.said))
        events = self.send(peer, body, skip)
        if not peer.linked:
            assert all(isinstance(e, Reply) and isinstance(e.message, Resync) for e in events)
        elif skip:
            assert [type(event) for event in events] == [Lost, Reply]
            peer.linked = False
        else:
            assert events == [Beaten(peer.name) if beat else Delivered(peer.name, body)]
            peer.heard = self.now

    @precondition(lambda self: any(peer.linked for peer in self.peers))
    @rule(data=st.data(), orderly=st.booleans())
    def end(self, data: st.DataObject, orderly: bool) -> None:
        peer = data.draw(st.sampled_from([peer for peer in self.peers if peer.linked]))
        if orderly:
            self.send(peer, Bye("done"))
        else:
            self.hear(self.links.drop(peer.name, "its process is gone"))
        peer.linked = False

    @rule(passed=st.integers(1, 4))
    def wait(self, passed: int) -> None:
        self.now += passed
        self.hear(self.links.overdue(self.now))
        for peer in self.peers:
            peer.linked = peer.linked and self.now - peer.heard <= SILENCE

    @invariant()
    def links_are_as_the_model_says(self) -> None:
        for name in NAMES:
            linked = [peer for peer in self.peers if peer.linked and peer.name == name]
            assert len(linked) <= 1
            expected = linked[0] if linked else None
            assert self.links.identity(name) == (expected.identity if expected else None)
            assert self.up.get(name) == (expected.incarnation if expected else None)
        assert set(self.links.connected()) == set(self.up)


TestLinks = LinksMachine.TestCase
TestLinks.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
