"""The gateway's side of its links, as a state machine without sockets.

A link is one connection of one process that said Hello under a known name. It ends when its
numbering has a gap, when its beats stop, when its process says Bye or a newer process or
connection takes the name. What comes from a connection without a link is answered by Resync.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from alipes.instance.contract import (
    PROTOCOL,
    Beat,
    Bye,
    Envelope,
    FromInstance,
    Hello,
    Refused,
    Resync,
    ToInstance,
    Welcome,
    from_instance,
)

STRANGERS_REMEMBERED: Final = 1024


@dataclass(frozen=True, slots=True)
class Connected:
    hello: Hello


@dataclass(frozen=True, slots=True)
class Beaten:
    name: str


@dataclass(frozen=True, slots=True)
class Delivered:
    name: str
    body: FromInstance


@dataclass(frozen=True, slots=True)
class Lost:
    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Reply:
    identity: bytes
    message: ToInstance


Event = Connected | Beaten | Delivered | Lost | Reply


@dataclass(slots=True)
class _Link:
    identity: bytes
    hello: Hello
    sequence: int
    heard: int


@dataclass(slots=True)
class _Name:
    """One known name: its link, if any, and the processes that newer ones replaced."""

    link: _Link | None = None
    incarnation: str = ""
    retired: set[str] = field(default_factory=set)


class Links:
    """``silence`` is in nanoseconds. Every method returns what is to be told, in order."""

    def __init__(self, known: frozenset[str], silence: int) -> None:
        self._names: Mapping[str, _Name] = {name: _Name() for name in known}
        self._by_identity: dict[bytes, str] = {}
        self._silence = silence
        self._answered: dict[bytes, None] = {}

    def identity(self, name: str) -> bytes | None:
        """Where messages to ``name`` go, or None without a link."""
        entry = self._names.get(name)
        return entry.link.identity if entry and entry.link else None

    def pid(self, name: str) -> int | None:
        """The process behind the link of ``name``, or None without a link."""
        entry = self._names.get(name)
        return entry.link.hello.pid if entry and entry.link else None

    def connected(self) -> tuple[str, ...]:
        return tuple(self._by_identity.values())

    def received(self, identity: bytes, raw: bytes, now: int) -> list[Event]:
        """One message of a connection."""
        try:
            envelope = from_instance.decode(raw)
        except msgspec.DecodeError as error:
            return self._undecodable(identity, raw, error)
        name = self._by_identity.get(identity)
        if isinstance(envelope.body, Hello):
            return self._greeted(identity, envelope.body, now)
        if name is None:
            return self._resync(identity, "it has not said Hello on this connection")
        return self._continued(name, envelope, now)

    def overdue(self, now: int) -> list[Event]:
        """Links whose beats have stopped are lost."""
        events: list[Event] = []
        for name, entry in self._names.items():
            if entry.link is not None and now - entry.link.heard > self._silence:
                seconds = (now - entry.link.heard) / 1e9
                events += self.drop(name, f"no beat for {seconds:.1f} s")
        return events

    def drop(self, name: str, reason: str) -> list[Event]:
        """End the link of ``name``, if there is one."""
        entry = self._names[name]
        if entry.link is None:
            return []
        del self._by_identity[entry.link.identity]
        entry.link = None
        return [Lost(name, reason)]

    def _continued(self, name: str, envelope: Envelope, now: int) -> list[Event]:
        link = self._names[name].link
        assert link is not None
        expected = link.sequence + 1
        if envelope.sequence != expected:
            reason = f"message {envelope.sequence} came where {expected} was due"
            return self.drop(name, reason) + self._resync(link.identity, reason)
        link.sequence = expected
        link.heard = now
        match envelope.body:
            case Beat():
                return [Beaten(name)]
            case Bye(reason=reason):
                return self.drop(name, f"it ended: {reason}")
            case body:
                return [Delivered(name, body)]

    def _greeted(self, identity: bytes, hello: Hello, now: int) -> list[Event]:
        refusal = self._objection(hello)
        if refusal:
            return [Reply(identity, Refused(refusal))]
        entry = self._names[hello.name]
        events: list[Event] = []
        replaced = entry.incarnation not in ("", hello.incarnation)
        if entry.link is not None:
            old = entry.link.identity
            events += self.drop(hello.name, "its name has a new connection")
            if replaced:
                events.append(Reply(old, Refused(_replaced(hello.name))))
        if replaced:
            entry.retired.add(entry.incarnation)
        entry.incarnation = hello.incarnation
        entry.link = _Link(identity, hello, 1, now)
        self._by_identity[identity] = hello.name
        return [*events, Reply(identity, Welcome(PROTOCOL)), Connected(hello)]

    def _objection(self, hello: Hello) -> str:
        if hello.protocol != PROTOCOL:
            return _version_mismatch(hello.protocol)
        entry = self._names.get(hello.name)
        if entry is None:
            names = ", ".join(sorted(self._names)) or "none"
            return f"instance {hello.name!r} is not in the cluster file, which has: {names}"
        if hello.incarnation in entry.retired:
            return _replaced(hello.name)
        return ""

    def _resync(self, identity: bytes, reason: str) -> list[Event]:
        """Ask once for a connection: what it queued before it reads the answer needs none."""
        if identity in self._answered:
            return []
        if len(self._answered) >= STRANGERS_REMEMBERED:
            del self._answered[next(iter(self._answered))]
        self._answered[identity] = None
        return [Reply(identity, Resync(reason))]

    def _undecodable(self, identity: bytes, raw: bytes, error: Exception) -> list[Event]:
        reason = f"a message cannot be decoded: {error}"
        name = self._by_identity.get(identity)
        if name is not None:
            return self.drop(name, reason) + self._resync(identity, reason)
        protocol = _stated_protocol(raw)
        if protocol is not None and protocol != PROTOCOL:
            reason = _version_mismatch(protocol)
        return [Reply(identity, Refused(reason))]


def _replaced(name: str) -> str:
    return f"a newer process serves as {name!r}"


def _version_mismatch(theirs: int) -> str:
    return (
        f"the instance speaks protocol {theirs}, the gateway {PROTOCOL}: "
        "install the same version of alipes on both sides"
    )


def _stated_protocol(raw: bytes) -> int | None:
    """The protocol number of a Hello whose other fields this version cannot read."""
    try:
        message: Any = msgspec.msgpack.decode(raw)
    except msgspec.DecodeError:
        return None
    match message:
        case [_, ["Hello", int() as protocol, *_], *_]:
            return protocol
    return None
