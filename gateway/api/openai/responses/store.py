"""Responses that a later call may continue, and the session that each belongs to.

A conversation is kept once however many responses continue it: a response holds its own turn, a
turn the one before it. Forgetting a response frees a turn only when nothing continues it. What is
not to be stored keeps its session alone. Sans-IO; times are nanoseconds of the caller's clock.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
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


@dataclass(slots=True, eq=False)
class Share:
    """What is kept for one tenant, by response id; the one used last comes last."""

    kept: OrderedDict[str, Kept] = field(default_factory=OrderedDict)
    size: int = 0

    @property
    def oldest(self) -> str:
        return next(iter(self.kept))

    @property
    def since(self) -> int:
        """When the oldest was used."""
        return self.kept[self.oldest].used

    def add(self, response_id: str, kept: Kept) -> None:
        self.kept[response_id] = kept
        self.size += kept.size
        self._hold(kept.turn)

    def drop(self, response_id: str) -> None:
        kept = self.kept.pop(response_id)
        self.size -= kept.size
        self._release(kept.turn)

    def strip(self, kept: Kept) -> None:
        """Leave nothing but its session."""
        self.size -= len(kept.body)
        turn, kept.turn, kept.body = kept.turn, None, b""
        self._release(turn)

    def _hold(self, turn: Turn | None) -> None:
        """One holder more; a turn without any before is new here, and holds the one before it."""
        while turn is not None:
            turn.holders += 1
            if turn.holders > 1:
                return
            self.size += turn.size
            turn = turn.before

    def _release(self, turn: Turn | None) -> None:
        while turn is not None:
            turn.holders -= 1
            if turn.holders:
                return
            self.size -= turn.size
            turn = turn.before


class ResponseStore:
    """At most ``count`` responses and ``limit`` bytes of all tenants together, each for ``idle``
    nanoseconds after its last use. When there is too much, the tenant that has most of it, of
    responses or of bytes, loses the response it used longest ago: with n tenants none loses
    any while it has at most an n-th of both. A tenant's responses do not exist for another one."""

    def __init__(self, count: int, limit: int, idle: int) -> None:
        self._count = count
        self._limit = limit
        self._idle = idle
        self._shares: dict[str, Share] = {}  # none is empty

    def __len__(self) -> int:
        return sum(len(share.kept) for share in self._shares.values())

    @property
    def size(self) -> int:
        return sum(share.size for share in self._shares.values())

    def find(self, tenant: str, response_id: str, now: int) -> Kept | None:
        """The response, used now."""
        self._expire(now)
        share = self._shares.get(tenant)
        if share is None or response_id not in share.kept:
            return None
        share.kept.move_to_end(response_id)
        kept = share.kept[response_id]
        kept.used = now
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
        there is no room, even with all others of its tenant gone, is not. The turns before
        ``turn`` are of the same tenant."""
        self._expire(now)
        kept = Kept(claim, turn, body, now)
        self._shares.setdefault(tenant, Share()).add(response_id, kept)
        self._make_room(kept)

    def remove(self, tenant: str, response_id: str, now: int) -> bool:
        """Forget a response; False if there is none."""
        self._expire(now)
        share = self._shares.get(tenant)
        if share is None or response_id not in share.kept:
            return False
        self._drop(tenant, response_id)
        return True

    def _make_room(self, new: Kept) -> None:
        """Of tenants that have equally much, the one with the oldest response makes room."""
        shares = self._shares
        while len(self) > self._count:
            tenant = max(shares, key=lambda each: (len(shares[each].kept), -shares[each].since))
            self._drop(tenant, shares[tenant].oldest)
        while self.size > self._limit:
            tenant = max(shares, key=lambda each: (shares[each].size, -shares[each].since))
            share = shares[tenant]
            if share.kept[share.oldest] is new and (new.turn is not None or new.body):
                share.strip(new)
            else:
                self._drop(tenant, share.oldest)

    def _expire(self, now: int) -> None:
        for tenant in tuple(self._shares):
            share = self._shares[tenant]
            while share.kept and now - share.since >= self._idle:
                self._drop(tenant, share.oldest)

    def _drop(self, tenant: str, response_id: str) -> None:
        share = self._shares[tenant]
        share.drop(response_id)
        if not share.kept:
            del self._shares[tenant]
