"""Responses that a later call may continue, and the session that each belongs to.

A conversation is kept once however many responses continue it: a response holds its own turn, a
turn the one before it. Forgetting a response frees a turn only when nothing continues it. What is
not to be stored keeps its session alone. Sans-IO; times are nanoseconds of the caller's clock.

A store notes what changes, if asked to, and can take it all back from rows (``saved.py``).
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from alipes.gateway.api.openai.responses.kept import Kept, Turn
from alipes.gateway.api.openai.responses.saved import ResponseNotes, SavedResponses, responses_of
from alipes.gateway.routing.identity import Claim


@dataclass(slots=True, eq=False)
class Share:
    """What is kept for one tenant, by response id; the one used last comes last."""

    tenant: str
    notes: ResponseNotes
    kept: OrderedDict[str, Kept] = field(default_factory=OrderedDict)
    size: int = 0

    @property
    def oldest(self) -> str:
        return next(iter(self.kept))

    @property
    def since(self) -> int:
        """When the oldest was used."""
        return self.kept[self.oldest].used

    def add(self, kept: Kept) -> None:
        self.kept[kept.id] = kept
        self.size += kept.size
        self._hold(kept.turn)
        self.changed(kept)
        if kept.body:
            self.notes.bodies.note((self.tenant, kept.id), kept.body)

    def drop(self, response_id: str) -> None:
        kept = self.kept.pop(response_id)
        self.size -= kept.size
        self._release(kept.turn)
        self.notes.responses.note((self.tenant, response_id), None)
        self.notes.bodies.note((self.tenant, response_id), None)

    def strip(self, kept: Kept) -> None:
        """Leave nothing but its session."""
        self.size -= len(kept.body)
        turn, kept.turn, kept.body = kept.turn, None, b""
        self._release(turn)
        self.changed(kept)
        self.notes.bodies.note((self.tenant, kept.id), None)

    def changed(self, kept: Kept) -> None:
        """Anything but its body did; nothing to note of one that is forgotten."""
        if self.kept.get(kept.id) is kept:
            self.notes.responses.note((self.tenant, kept.id), kept)

    def _hold(self, turn: Turn | None) -> None:
        """One holder more; a turn without any before is new here, and holds the one before it."""
        while turn is not None:
            turn.holders += 1
            if turn.holders > 1:
                return
            self.size += turn.size
            self.notes.turns.note(turn.number, turn)
            turn = turn.before

    def _release(self, turn: Turn | None) -> None:
        while turn is not None:
            turn.holders -= 1
            if turn.holders:
                return
            self.size -= turn.size
            self.notes.turns.note(turn.number, None)
            turn = turn.before


class ResponseStore:
    """At most ``count`` responses and ``limit`` bytes of all tenants together, each for ``idle``
    nanoseconds after its last use. When there is too much, the tenant that has most of it, of
    responses or of bytes, loses the response it used longest ago: with n tenants none loses
    any while it has at most an n-th of both. A tenant's responses do not exist for another one.
    ``notes`` are of what changed."""

    def __init__(self, count: int, limit: int, idle: int) -> None:
        self._count, self._limit, self._idle = count, limit, idle
        self._shares: dict[str, Share] = {}  # none is empty
        self._turns = 0
        self.notes = ResponseNotes()

    def configure(self, count: int, limit: int, idle: int, now: int) -> None:
        """Other bounds from ``now`` on; what is too much for them goes."""
        self._count, self._limit, self._idle = count, limit, idle
        self._expire(now)
        self._make_room(None)

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
        share.changed(kept)
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
        follows: Kept | None = None,
    ) -> None:
        """Keep a response; ``turn`` and ``body`` where its content is stored. Content for which
        there is no room, even with all others of its tenant gone, is not. The turns before
        ``turn``, and the response that this one ``follows``, are of the same tenant."""
        self._expire(now)
        if turn is not None:
            self._turns += 1
            turn.number = self._turns
        kept = Kept(response_id, claim, turn, body, now)
        share = self._share(tenant)
        share.add(kept)
        if follows is not None and follows.successor == response_id:
            follows.followed = True
            share.changed(follows)
        self._make_room(kept)

    def remove(self, tenant: str, response_id: str, now: int) -> bool:
        """Forget a response; False if there is none."""
        self._expire(now)
        share = self._shares.get(tenant)
        if share is None or response_id not in share.kept:
            return False
        self._drop(tenant, response_id)
        return True

    def restore(self, saved: SavedResponses, epoch: int, now: int) -> None:
        """Take over what another store held: for one that has had nothing. A continuation that was
        never kept has come to nothing. What has expired or is too much for this store goes, and
        changes are noted from here on. Raises ``ValueError``, with nothing taken over, for rows
        that do not belong together."""
        for tenant, kept in responses_of(saved, epoch, now):
            self._share(tenant).add(kept)
        self._turns = max(saved.turns, default=0)
        self.notes.begin()
        self._expire(now)
        self._make_room(None)

    def _share(self, tenant: str) -> Share:
        share = self._shares.get(tenant)
        if share is None:
            share = self._shares[tenant] = Share(tenant, self.notes)
        return share

    def _make_room(self, new: Kept | None) -> None:
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
