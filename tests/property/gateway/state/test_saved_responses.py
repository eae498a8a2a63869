"""A store of responses that is saved and restored again and again, against one that never is.

The continuations that are being made come to nothing when the first is restored; the other one is
told so. From there both must answer alike.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from alipes.gateway.api.openai.responses.kept import ENTRY_BYTES, Kept, Turn
from alipes.gateway.api.openai.responses.store import ResponseStore
from alipes.gateway.routing.identity import Claim
from alipes.gateway.state.rows import index_change, response_changes, saved_of

from .disk import Disk

IDLE = 100
COUNT = 6
LIMIT = 20 * ENTRY_BYTES
CALENDAR = 1 << 60
TENANTS = ("a", "a", "b")


@dataclass(eq=False)
class Making:
    """A response on its way, and what it follows in either store."""

    tenant: str
    id: str
    plain: Kept | None
    saved: Kept | None


class SavedResponsesMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.plain = ResponseStore(COUNT, LIMIT, IDLE)
        self.saved = ResponseStore(COUNT, LIMIT, IDLE)
        self.saved.notes.begin()
        self.disk = Disk()
        self.disk.write([index_change(1, 64)])
        self.now = 1000
        self.origin = 7
        self.made = 0
        self.making: list[Making] = []

    def clock(self) -> int:
        """The saved store's."""
        return self.now - self.origin

    def find(self, tenant: str, response_id: str) -> tuple[Kept | None, Kept | None]:
        self.now += 1  # no two are used at the same time: which is older is plain
        plain = self.plain.find(tenant, response_id, self.now)
        saved = self.saved.find(tenant, response_id, self.clock())
        assert content(plain) == content(saved)
        return plain, saved

    @rule(seconds=st.sampled_from((1, 2, 5, IDLE // 2)))
    def wait(self, seconds: int) -> None:
        self.now += seconds

    @rule(tenant=st.sampled_from(TENANTS), back=st.integers(1, 4))
    def ask(self, tenant: str, back: int) -> None:
        """For one that may continue another."""
        self.made += 1
        making = Making(tenant, f"r{self.made}", *self.find(tenant, f"r{max(0, self.made - back)}"))
        if making.plain is not None and making.saved is not None:
            claims = making.plain.continued_by(making.id), making.saved.continued_by(making.id)
            assert claims[0] == claims[1]
        self.making.append(making)

    @precondition(lambda self: self.making)
    @rule(
        data=st.data(),
        well=st.sampled_from((True, True, False)),
        stored=st.booleans(),
        size=st.sampled_from((1, 1, 300, 2000, LIMIT)),
    )
    def answer(self, data: st.DataObject, well: bool, stored: bool, size: int) -> None:
        one = data.draw(st.sampled_from(self.making))
        self.making.remove(one)
        if not well:
            for kept in filter(None, (one.plain, one.saved)):
                kept.not_continued_by(one.id)
            return
        self.now += 1
        claim, body = Claim(f"s{self.made}", "b", "p"), bytes(size) if stored else b""
        for store, kept, now in (
            (self.plain, one.plain, self.now),
            (self.saved, one.saved, self.clock()),
        ):
            before = kept.turn if kept is not None else None
            turn = Turn(before, b"[%d]" % size, one.id.encode()) if stored else None
            store.add(one.tenant, one.id, claim, now, turn=turn, body=body, follows=kept)

    @rule(tenant=st.sampled_from(TENANTS), back=st.integers(0, 7))
    def remove(self, tenant: str, back: int) -> None:
        name = f"r{max(0, self.made - back)}"
        removed = self.saved.remove(tenant, name, self.clock())
        assert removed == self.plain.remove(tenant, name, self.now)

    @rule()
    def save(self) -> None:
        """What is on the disk at any time can be restored, whatever was not saved since."""
        self.disk.write(response_changes(self.saved.notes.take(CALENDAR + self.origin), set()))
        self.restored(0)

    def restored(self, origin: int) -> ResponseStore:
        saved = saved_of(self.disk.rows)
        assert saved is not None
        store = ResponseStore(COUNT, LIMIT, IDLE)
        store.restore(saved.responses, CALENDAR + origin, self.now - origin)
        return store

    @rule(origin=st.integers(-10, 2000))
    def restart(self, origin: int) -> None:
        self.save()
        self.origin, self.saved = origin, self.restored(origin)
        for one in self.making:
            if one.plain is not None:
                one.plain.not_continued_by(one.id)
        self.making.clear()

    @invariant()
    def both_hold_the_same(self) -> None:
        self.plain.find("nobody", "r0", self.now)
        self.saved.find("nobody", "r0", self.clock())
        assert (len(self.saved), self.saved.size) == (len(self.plain), self.plain.size)

    def teardown(self) -> None:
        """Nothing that is forgotten stays on the disk."""
        self.now += IDLE
        self.save()
        self.saved.find("nobody", "r0", self.clock())
        self.save()
        left = [table for table in ("response", "body", "turn") if self.disk.rows[table]]
        assert not left


def content(kept: Kept | None) -> object:
    if kept is None:
        return None
    turns = kept.turn.conversation() if kept.turn is not None else []
    return kept.claim, kept.body, turns, kept.successor


TestSavedResponses = SavedResponsesMachine.TestCase
TestSavedResponses.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
