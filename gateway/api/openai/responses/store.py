"""Responses that a later call may continue, and the session that each belongs to.

A conversation is kept once however many responses continue it: a response holds its own turn, a
turn the one before it. Forgetting a response frees a turn only when nothing continues it. What is
not to be stored keeps its session alone. Sans-IO; times are nanoseconds of the caller's clock.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from alipes.gateway.routing.identity import Claim, Source

ENTRY_BYTES: Final = 512
"""What an entry or turn is charged for its own objects, besides the text it keeps."""


@dataclass(slots=True, eq=False)
class Turn:
    """What one response added to a conversation, as JSON lists: the items it was asked with and
    those it answered. ``holders`` are its response and the turns that continue it."""

    before: Turn | None
    asked: bytes
    answered: bytes
    holders: int = 0

    @property
    def size(self) -> int:
        return ENTRY_BYTES + len(self.asked) + len(self.answered)

    def conversation(self) -> list[bytes]:
        """JSON lists of items, from the first turn to this one."""
        lists: list[bytes] = []
        turn: Turn | None = self
        while turn is not None:
            lists += (turn.answered, turn.asked)
            turn = turn.before
        return lists[::-1]


@dataclass(slots=True, eq=False)
class Kept:
    """One response: ``claim`` leads to its session and branch; without a ``turn`` its content is
    not stored. ``body`` is its JSON. ``successor`` continues its branch, others fork from it."""

    claim: Claim
    turn: Turn | None
    body: bytes
    used: int
    successor: str = ""

    @property
    def size(self) -> int:
        return ENTRY_BYTES + len(self.body)

    def continued_by(self, response_id: str) -> Claim:
        """Where a response that continues this one belongs: the first is the next on the branch,
        any other forks a branch of its own from it."""
        if not self.successor:
            self.successor = response_id
            return self.claim
        session, branch = self.claim.session, self.claim.branch
        return Claim(session, response_id, branch, source=Source.RESPONSE)

    def not_continued_by(self, response_id: str) -> None:
        """That response came to nothing: its place on the branch is free again."""
        if self.successor == response_id:
            self.successor = ""


class ResponseStore:
    """At most ``count`` responses and ``limit`` bytes of all tenants together, each for ``idle``
    nanoseconds after its last use; those not used for the longest time go first. A tenant's
    responses do not exist for another one."""

    def __init__(self, count: int, limit: int, idle: int) -> None:
        self._count = count
        self._limit = limit
        self._idle = idle
        self._kept: OrderedDict[tuple[str, str], Kept] = OrderedDict()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, tenant: str, response_id: str, now: int) -> Kept | None:
        """The response, used now."""
        self._expire(now)
        kept = self._kept.get((tenant, response_id))
        if kept is not None:
            kept.used = now
            self._kept.move_to_end((tenant, response_id))
        return kept

    def add(
        self,
        tenant: str,
        response_id: str,
        claim: Claim,
        now: int,
        *,
        turn: Turn | None = None,
        body: bytes = b"",
    ) -> None:
        """Keep a response; ``turn`` and ``body`` where its content is stored. Content for which
        there is no room, even with all others gone, is not."""
        self._expire(now)
        kept = Kept(claim, turn, body, now)
        self._kept[tenant, response_id] = kept
        self.bytes += kept.size
        self._hold(turn)
        while len(self._kept) > self._count or (self.bytes > self._limit and len(self._kept) > 1):
            self._drop(next(iter(self._kept)))
        if self.bytes > self._limit:
            self._strip(kept)

    def remove(self, tenant: str, response_id: str, now: int) -> bool:
        """Forget a response; False if there is none."""
        self._expire(now)
        if (tenant, response_id) not in self._kept:
            return False
        self._drop((tenant, response_id))
        return True

    def _expire(self, now: int) -> None:
        while self._kept:
            key, kept = next(iter(self._kept.items()))
            if now - kept.used < self._idle:
                return
            self._drop(key)

    def _drop(self, key: tuple[str, str]) -> None:
        kept = self._kept.pop(key)
        self.bytes -= kept.size
        self._release(kept.turn)

    def _strip(self, kept: Kept) -> None:
        """Leave nothing but the session."""
        self.bytes -= len(kept.body)
        turn, kept.turn, kept.body = kept.turn, None, b""
        self._release(turn)

    def _hold(self, turn: Turn | None) -> None:
        """One holder more; a turn without any before is new here, and holds the one before it."""
        while turn is not None:
            turn.holders += 1
            if turn.holders > 1:
                return
            self.bytes += turn.size
            turn = turn.before

    def _release(self, turn: Turn | None) -> None:
        while turn is not None:
            turn.holders -= 1
            if turn.holders:
                return
            self.bytes -= turn.size
            turn = turn.before
