"""A session table that is saved and restored again and again, against one that never is.

The other one's open calls fail when the first is restored, and it keeps the compact records alone
from then on. From there both must answer alike.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from alipes.gateway.routing.identity import NO_CLAIM, Claim, Source
from alipes.gateway.routing.sessions import SessionCall, SessionTable
from alipes.gateway.routing.views import SECOND
from alipes.gateway.state.rows import index_change, saved_of, session_changes
from alipes.instance.contract import TokenIds

from .disk import Disk

LIMIT = 6
IDLE = 40
CALENDAR = 1_800_000_000 * SECOND
TENANTS = ("a", "a", "b")
TOLD = (
    *("session", "name", "branch", "continuation", "known_tokens", "kept_tokens"),
    *("number", "origin", "origin_calls", "final"),
)
pieces = st.lists(
    st.sampled_from([b"\0", b"\1", b"\0" * 63, b"\0" * 64, b"\1" * 65]), min_size=1, max_size=2
).map(b"".join)
claims = st.just(NO_CLAIM) | st.builds(
    Claim,
    session=st.sampled_from(["s", "t"]),
    branch=st.sampled_from(["", "x"]),
    parent=st.sampled_from(["", "x"]),
    final=st.sampled_from([False, False, False, True]),
    source=st.just(Source.OWN),
    weak=st.booleans(),
)


def ids(data: bytes) -> TokenIds:
    return np.frombuffer(data, np.uint8).astype(np.int32)


class Entropy:
    """The same names for both tables, another seed for each."""

    def __init__(self, seed: int, drawn: int = 0) -> None:
        self.seed, self.drawn = seed, drawn

    def __call__(self, size: int) -> bytes:
        if size == 8:
            return self.seed.to_bytes(8, "little")
        self.drawn += 1
        return hashlib.blake2b(self.drawn.to_bytes(8, "little"), digest_size=size).digest()


class Saved:
    """The table that is saved. Its clock is 0 at ``origin``, in nanoseconds of the calendar."""

    def __init__(self) -> None:
        self.origin = 7 * SECOND
        self.entropy = Entropy(1)
        self.table = SessionTable(LIMIT, IDLE, self.entropy)
        self.table.notes.begin()
        self.disk = Disk()
        self.disk.write([index_change(self.table.seed, self.table.block_tokens)])

    def save(self) -> None:
        self.disk.write(session_changes(self.table.notes.take(CALENDAR + self.origin)))

    def restored(self, origin: int, now: int) -> tuple[SessionTable, Entropy]:
        """A table as another process would have it; ``now`` is of the calendar."""
        saved = saved_of(self.disk.rows)
        assert saved is not None
        entropy = Entropy(self.entropy.seed + 1, self.entropy.drawn)
        table = SessionTable(LIMIT, IDLE, entropy)
        table.restore(saved.sessions, CALENDAR + origin, now - origin)
        return table, entropy

    def restart(self, origin: int, now: int) -> None:
        self.save()
        self.table, self.entropy = self.restored(origin, now)
        self.origin = origin


@dataclass(eq=False)
class OpenCall:
    plain: SessionCall
    saved: SessionCall
    prompt: bytes


class SavedSessionsMachine(RuleBasedStateMachine):
    @initialize()
    def begin_with_nothing(self) -> None:
        self.now = 1000 * SECOND
        self.plain = SessionTable(LIMIT, IDLE, Entropy(0))
        self.saved = Saved()
        self.calls: list[OpenCall] = []
        self.texts: list[bytes] = [b""]
        self.names = {(tenant, name) for tenant in TENANTS for name in ("s", "t")}

    def clock(self) -> int:
        """The saved table's."""
        return self.now - self.saved.origin

    def tick(self) -> None:
        """No two things happen at one time: which one was first is plain."""
        self.now += 1

    @rule(
        tenant=st.sampled_from(TENANTS),
        model=st.sampled_from(["m", "m", "n"]),
        claim=claims,
        more=pieces,
        lead=st.sampled_from([0, 0, 1, 2, None]),
        data=st.data(),
    )
    def begin(
        self,
        tenant: str,
        model: str,
        claim: Claim,
        more: bytes,
        lead: int | None,
        data: st.DataObject,
    ) -> None:
        self.tick()
        prompt = data.draw(st.sampled_from(self.texts)) + more
        stem = 0 if lead is None else max(0, len(prompt) - lead)
        plain = self.plain.begin(tenant, model, claim, ids(prompt), stem, self.now)
        saved = self.saved.table.begin(tenant, model, claim, ids(prompt), stem, self.clock())
        assert [getattr(saved, name) for name in TOLD] == [getattr(plain, name) for name in TOLD]
        self.names.add((tenant, plain.session))
        self.calls.append(OpenCall(plain, saved, prompt))

    @precondition(lambda self: self.calls)
    @rule(data=st.data(), reply=st.just(b"") | pieces, well=st.booleans())
    def end(self, data: st.DataObject, reply: bytes, well: bool) -> None:
        self.end_one(data.draw(st.sampled_from(self.calls)), reply, well)

    def end_one(self, ended: OpenCall, reply: bytes, well: bool) -> None:
        self.tick()
        self.calls.remove(ended)
        if not well:
            self.plain.failed(ended.plain, self.now)
            self.saved.table.failed(ended.saved, self.clock())
            return
        self.plain.finished(ended.plain, "i", ids(reply), 1, 2, self.now)
        self.saved.table.finished(ended.saved, "i", ids(reply), 1, 2, self.clock())
        self.texts = [*self.texts, ended.prompt, ended.prompt + reply][-12:]

    @rule(data=st.data(), claim=claims, model=st.sampled_from(["m", "m", "n"]), more=pieces)
    def turn(self, data: st.DataObject, claim: Claim, model: str, more: bytes) -> None:
        """A call and its answer, with nothing between."""
        self.begin("a", model, claim, more, 0, data)
        self.end_one(self.calls[-1], b"\1", True)

    @rule(seconds=st.sampled_from([1, 1, 2, 5, IDLE - 5]))
    def wait(self, seconds: int) -> None:
        self.now += seconds * SECOND

    @rule()
    def forget(self) -> None:
        told = self.saved.table.gone(self.clock())
        assert sorted(told) == sorted(self.plain.gone(self.now))

    @rule()
    def save(self) -> None:
        """What is on the disk at any time can be restored, whatever was not saved since."""
        self.saved.save()
        self.saved.restored(0, self.now)

    @rule(origin=st.integers(-5, 2000).map(lambda seconds: seconds * SECOND))
    def restart(self, origin: int) -> None:
        self.tick()
        self.saved.restart(origin, self.now)
        for call in sorted(self.calls, key=lambda call: call.plain._branch.session.used):
            self.plain.failed(call.plain, self.now)
        self.calls.clear()
        for record in self.plain._kept:
            record.compact()
        self.plain.gone(self.now)
        assert self.saved.table.gone(self.clock()) == ()
        assert self.saved.table.kept_cost == 0

    @invariant()
    def both_show_the_same(self) -> None:
        if not hasattr(self, "plain"):
            return
        table = self.saved.table
        assert (len(table), table.branches) == (len(self.plain), self.plain.branches)
        assert len(table._index) == len(self.plain._index)
        for name in self.names:
            assert table.view(*name, self.clock()) == self.plain.view(*name, self.now)


TestSavedSessions = SavedSessionsMachine.TestCase
TestSavedSessions.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
