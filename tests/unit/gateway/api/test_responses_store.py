"""The store of responses against a slow model that counts everything anew."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from alipes.gateway.api.openai.responses.kept import ENTRY_BYTES, Turn
from alipes.gateway.api.openai.responses.store import ResponseStore
from alipes.gateway.routing.identity import Claim, Source

IDLE = 50
COUNT = 5
LIMIT = 14 * ENTRY_BYTES
TENANTS = ("a", "b", "c")


class Known(NamedTuple):
    """``turns`` are those of the whole conversation, each (own number, asked, answered)."""

    body: bytes
    turns: tuple[tuple[int, bytes, bytes], ...]
    session: str


class StoreMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.most, self.limit, self.idle = COUNT, LIMIT, IDLE
        self.store = ResponseStore(COUNT, LIMIT, IDLE)
        self.now = 0
        self.made = 0
        self.known: dict[tuple[str, str], Known] = {}  # the one used last comes last
        self.used: dict[tuple[str, str], int] = {}

    def expire(self) -> None:
        for key in [key for key in self.known if self.now - self.used[key] >= self.idle]:
            del self.known[key]

    def touch(self, key: tuple[str, str]) -> None:
        self.known[key] = self.known.pop(key)
        self.used[key] = self.now

    def count(self, tenant: str) -> int:
        return sum(key[0] == tenant for key in self.known)

    def bytes(self, tenant: str) -> int:
        responses = [known for key, known in self.known.items() if key[0] == tenant]
        turns = {turn for known in responses for turn in known.turns}
        texts = sum(len(asked) + len(answered) for _, asked, answered in turns)
        bodies = sum(len(known.body) for known in responses)
        return texts + bodies + ENTRY_BYTES * (len(turns) + len(responses))

    def oldest_of_most(self, amount: Callable[[str], int]) -> tuple[str, str]:
        """Of the tenants that have most, the response used longest ago."""
        most = max(map(amount, TENANTS))
        return next(key for key in self.known if amount(key[0]) == most)

    def make_room(self, new: tuple[str, str] | None) -> None:
        while len(self.known) > self.most:
            del self.known[self.oldest_of_most(self.count)]
        while sum(map(self.bytes, TENANTS)) > self.limit:
            key = self.oldest_of_most(self.bytes)
            known = self.known.pop(key)
            if key == new and (known.turns or known.body):
                self.known[key] = Known(b"", (), known.session)

    def ids(self, data: Any) -> tuple[str, str]:
        return data.draw(
            st.sampled_from(TENANTS)
        ), f"r{data.draw(st.integers(max(0, self.made - 7), self.made))}"

    @rule(seconds=st.integers(0, IDLE // 2))
    def wait(self, seconds: int) -> None:
        self.now += seconds

    @rule(
        most=st.sampled_from([2, COUNT]),
        limit=st.sampled_from([LIMIT // 3, LIMIT]),
        idle=st.sampled_from([IDLE // 2, IDLE]),
    )
    def configure(self, most: int, limit: int, idle: int) -> None:
        self.most, self.limit, self.idle = most, limit, idle
        self.store.configure(most, limit, idle, self.now)
        self.expire()
        self.make_room(None)

    @rule(data=st.data())
    def find(self, data: Any) -> None:
        self.now += 1  # no two tenants use one at the same time: which is older is plain
        key = self.ids(data)
        found = self.store.find(*key, self.now)
        self.expire()
        assert (found is not None) == (key in self.known)
        if found is None:
            return
        self.touch(key)
        known = self.known[key]
        assert (found.body, found.claim.session) == (known.body, known.session)
        conversation = found.turn.conversation() if found.turn is not None else []
        assert conversation == [text for turn in known.turns for text in turn[1:]]

    @rule(data=st.data(), stored=st.booleans(), size=st.sampled_from((0, 300, 2000, LIMIT)))
    def add(self, data: Any, stored: bool, size: int) -> None:
        """A response of its own or one that continues another, which may be forgotten while the
        new one is made."""
        self.now += 1
        key = self.ids(data)
        before = self.store.find(*key, self.now)
        self.expire()
        turns = self.known[key].turns if before is not None else ()
        if before is not None:
            self.touch(key)
        turn = before.turn if before is not None else None
        self.wait(data.draw(st.sampled_from((0, 1, IDLE))))
        self.made += 1
        new = (key[0], f"r{self.made}")
        session, body = f"s{self.made}", bytes(size) if stored else b""
        asked, answered = b"[1]" * data.draw(st.integers(0, 9)), b"[2]"
        kept = Turn(turn, asked, answered) if stored else None
        self.store.add(*new, Claim(session), self.now, turn=kept, body=body)
        self.expire()
        whole = (*turns, (self.made, asked, answered)) if stored else ()
        self.known[new] = Known(body, whole, session)
        self.used[new] = self.now
        within = self.within_fair_share()
        self.make_room(new)
        assert self.known.items() >= within.items()

    def within_fair_share(self) -> dict[tuple[str, str], Known]:
        """The responses of tenants that have no more than their part of either bound."""
        tenants = len({tenant for tenant, _ in self.known})
        return {
            key: known
            for key, known in self.known.items()
            if self.count(key[0]) * tenants <= self.most
            and self.bytes(key[0]) * tenants <= self.limit
        }

    @rule(data=st.data())
    def remove(self, data: Any) -> None:
        key = self.ids(data)
        removed = self.store.remove(*key, self.now)
        self.expire()
        assert removed == (key in self.known)
        self.known.pop(key, None)

    @invariant()
    def sums_agree(self) -> None:
        self.expire()
        assert self.store.find("nobody", "r0", self.now) is None
        assert len(self.store) == len(self.known) <= self.most
        assert self.store.size == sum(map(self.bytes, TENANTS)) <= self.limit

    def teardown(self) -> None:
        self.expire()
        for key in itertools.product(TENANTS, (f"r{i}" for i in range(self.made + 1))):
            assert (self.store.find(*key, self.now) is not None) == (key in self.known)


TestStore = StoreMachine.TestCase
TestStore.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)


def test_an_id_of_another_tenant_is_unknown() -> None:
    store = ResponseStore(9, 1 << 20, IDLE)
    store.add("a", "r", Claim("s"), 0)
    assert store.find("b", "r", 0) is None
    assert not store.remove("b", "r", 0)
    assert store.remove("a", "r", 0)
    assert store.size == 0


def test_a_tenant_with_many_responses_evicts_its_own() -> None:
    store = ResponseStore(10, 1 << 20, IDLE)
    for i in range(5):
        store.add("quiet", f"q{i}", Claim("s"), i)
    for i in range(30):
        store.add("busy", f"b{i}", Claim("s"), 10 + i)
    assert all(store.find("quiet", f"q{i}", 40) for i in range(5))
    assert [i for i in range(30) if store.find("busy", f"b{i}", 40)] == [25, 26, 27, 28, 29]


def test_a_tenant_with_many_bytes_evicts_its_own() -> None:
    store = ResponseStore(99, 21_000, IDLE)
    for i in range(9):
        store.add("quiet", f"q{i}", Claim("s"), i, body=b"x" * 500)
    for i in range(4):
        store.add("busy", f"b{i}", Claim("s"), 10 + i, body=b"x" * 5000)
    assert all(store.find("quiet", f"q{i}", 20) for i in range(9))
    assert [i for i in range(4) if store.find("busy", f"b{i}", 20)] == [2, 3]


def test_content_too_large_beside_that_of_others_leaves_the_session_alone() -> None:
    store = ResponseStore(99, 10_000, IDLE)
    store.add("quiet", "q", Claim("s"), 0, body=b"x" * 4000)
    store.add("busy", "old", Claim("s"), 1)
    store.add("busy", "new", Claim("t"), 2, turn=Turn(None, b"x" * 8000, b""), body=b"x")
    kept = store.find("busy", "new", 3)
    assert kept is not None
    assert (kept.claim, kept.turn, kept.body) == (Claim("t"), None, b"")
    assert store.find("busy", "old", 3) is None
    assert store.find("quiet", "q", 3) is not None


def test_a_bound_below_one_entry_keeps_nothing() -> None:
    store = ResponseStore(9, ENTRY_BYTES - 1, IDLE)
    store.add("a", "r", Claim("s"), 0, body=b"x")
    assert (len(store), store.size) == (0, 0)


@pytest.mark.parametrize(("count", "limit"), [(3, 1 << 20), (99, 3 * ENTRY_BYTES)])
def test_tenants_that_have_equally_much_make_room_by_age(count: int, limit: int) -> None:
    store = ResponseStore(count, limit, IDLE)
    for now, tenant in enumerate("abc"):
        store.add(tenant, "r", Claim("s"), now)
    store.find("a", "r", 3)
    store.add("d", "r", Claim("s"), 4)
    assert [tenant for tenant in "abcd" if store.find(tenant, "r", 5)] == ["a", "c", "d"]


def test_a_conversation_is_kept_once() -> None:
    store = ResponseStore(99, 1 << 30, IDLE)
    turn = None
    for i in range(50):
        turn = Turn(turn, b"x" * 1000, b"")
        store.add("a", f"r{i}", Claim("s"), 0, turn=turn)
    assert store.size == 50 * (1000 + 2 * ENTRY_BYTES)
    for i in range(49):
        store.remove("a", f"r{i}", 0)
    assert store.size == 50 * (1000 + ENTRY_BYTES) + ENTRY_BYTES
    store.remove("a", "r49", 0)
    assert store.size == 0


def test_continuations_of_one_response_fork() -> None:
    store = ResponseStore(9, 1 << 20, IDLE)
    store.add("a", "r", Claim("s", "main", "top"), 0)
    kept = store.find("a", "r", 0)
    assert kept is not None
    assert kept.continued_by("r1") == Claim("s", "main", "top")
    assert kept.continued_by("r2") == Claim("s", "r2", "main", source=Source.RESPONSE)
    kept.not_continued_by("r2")
    assert kept.continued_by("r3").branch == "r3"
    kept.not_continued_by("r1")
    assert kept.continued_by("r4").branch == "main"
