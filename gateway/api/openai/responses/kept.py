"""What is kept of a response: its own turn of a conversation, and what leads to its session."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from alipes.gateway.routing.identity import Claim, Source

ENTRY_BYTES: Final = 512
"""What an entry or turn is charged for its own objects, besides the text it keeps."""


@dataclass(slots=True, eq=False)
class Turn:
    """What one response added to a conversation, as JSON lists: the items it was asked with and
    those it answered. ``holders`` are its response and the turns that continue it. The store
    gives it a ``number``."""

    before: Turn | None
    asked: bytes
    answered: bytes
    holders: int = 0
    number: int = 0

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
    not stored. ``body`` is its JSON. ``successor`` continues its branch, others fork from it;
    ``followed`` once that is kept too."""

    id: str
    claim: Claim
    turn: Turn | None
    body: bytes
    used: int
    successor: str = ""
    followed: bool = False

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
