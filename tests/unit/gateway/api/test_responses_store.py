"""The store of responses against a slow model that counts everything anew."""

from __future__ import annotations

from typing import Any, NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from alipes.gateway.api.openai.responses.store import ENTRY_BYTES, ResponseStore, Turn
from alipes.gateway.routing.identity import Claim, Source

IDLE = 50
COUNT = 5
LIMIT = 14 * ENTRY_BYTES
TENANTS = ("a", "b")


class Known(NamedTuple):
    """``turns`` are those of the whole conversation, each (own number, asked, answered)."""

    body: bytes
    turns: tuple[tuple[int, bytes, bytes], ...]
    session: str


class StoreMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.store = ResponseStore(COUNT, LIMIT, IDLE)
        self.now = 0
        self.made = 0
        self.known: dict[tuple[str, str], Known] = {}  # the one used last comes last
        self.used: dict[tuple[str, str], int] = {}

    def expire(self) -> None:
        for key in [key for key in self.known if self.now - self.used[key] >= IDLE]:
            del self.known[key]

    def touch(self, key: tuple[str, str]) -> None:
        self.known[key] = self.known.pop(key)
        self.used[key] = self.now

    def bytes(self) -> int:
        turns = {turn for known in self.known.values() for turn in known.turns}
        texts = sum(len(asked) + len(answered) for _, asked, answered in turns)
        bodies = sum(len(known.body) for known in self.known.values())
        return texts + bodies + ENTRY_BYTES * (len(turns) + len(self.known))

    def ids(self, data: Any) -> tuple[str, str]:
        return data.draw(
            st.sampled_from(TENANTS)
        ), f"r{data.draw(st.integers(max(0, self.made - 7), self.made))}"

    @rule(seconds=st.integers(0, IDLE // 2))
    def wait(self, seconds: int) -> None:
        self.now += seconds

    @rule(data=st.data())
    def find(self, data: Any) -> None:
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
        while len(self.known) > COUNT or (self.bytes() > LIMIT and len(self.known) > 1):
            del self.known[next(iter(self.known))]
        if self.bytes() > LIMIT:
            self.known[new] = Known(b"", (), session)

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
        assert len(self.store) == len(self.known) <= COUNT
        assert self.store.bytes == self.bytes() <= LIMIT


TestStore = StoreMachine.TestCase
TestStore.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)


def test_an_id_of_another_tenant_is_unknown() -> None:
    store = ResponseStore(9, 1 << 20, IDLE)
    store.add("a", "r", Claim("s"), 0)
    assert store.find("b", "r", 0) is None
    assert not store.remove("b", "r", 0)
    assert store.remove("a", "r", 0)
    assert store.bytes == 0


def test_a_conversation_is_kept_once() -> None:
    store = ResponseStore(99, 1 << 30, IDLE)
    turn = None
    for i in range(50):
        turn = Turn(turn, b"x" * 1000, b"")
        store.add("a", f"r{i}", Claim("s"), 0, turn=turn)
    assert store.bytes == 50 * (1000 + 2 * ENTRY_BYTES)
    for i in range(49):
        store.remove("a", f"r{i}", 0)
    assert store.bytes == 50 * (1000 + ENTRY_BYTES) + ENTRY_BYTES
    store.remove("a", "r49", 0)
    assert store.bytes == 0


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
