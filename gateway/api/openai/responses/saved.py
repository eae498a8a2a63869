"""Responses as rows: what of a store outlives its process.

Times in rows are calendar nanoseconds; ``epoch`` is the calendar time at which the store's clock
was 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from alipes.gateway.api.openai.responses.kept import Kept, Turn
from alipes.gateway.routing.changes import Changes
from alipes.gateway.routing.identity import Claim

ResponseKey = tuple[str, str]
"""Tenant and id."""


class TurnRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Of a turn; ``before`` is the number of the one before it, 0 if there is none."""

    before: int
    asked: bytes
    answered: bytes


class ResponseRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Of a response without its body. ``turn`` is the number of its turn, 0 where its content is
    not stored; ``successor`` the response that continues its branch, if that has been stored."""

    tenant: str
    id: str
    claim: Claim
    turn: int
    used: int
    successor: str


@dataclass(frozen=True, slots=True)
class ResponseChanges:
    """What is new, by key or number; None for what is gone."""

    responses: dict[ResponseKey, ResponseRow | None]
    bodies: dict[ResponseKey, bytes | None]
    turns: dict[int, TurnRow | None]


@dataclass(frozen=True, slots=True)
class SavedResponses:
    """All that a store's rows held. A response without a body has none in ``bodies``."""

    responses: Sequence[ResponseRow]
    bodies: Mapping[ResponseKey, bytes]
    turns: Mapping[int, TurnRow]


class ResponseNotes:
    """Which responses, bodies and turns of a store changed."""

    def __init__(self) -> None:
        self.responses: Changes[ResponseKey, Kept] = Changes()
        self.bodies: Changes[ResponseKey, bytes] = Changes()
        self.turns: Changes[int, Turn] = Changes()

    def __len__(self) -> int:
        return len(self.responses) + len(self.bodies) + len(self.turns)

    def begin(self) -> None:
        """Note changes from now on; nothing is noted before. All that is noted must be taken."""
        for changes in (self.responses, self.bodies, self.turns):
            changes.begin()

    def end(self) -> None:
        for changes in (self.responses, self.bodies, self.turns):
            changes.end()

    def take(self, epoch: int) -> ResponseChanges:
        """What changed since the last time, as it is now."""
        responses, turns = self.responses.take(), self.turns.take()
        return ResponseChanges(
            {key: _row(key, one, epoch) if one else None for key, one in responses.items()},
            self.bodies.take(),
            {number: _turn_row(one) if one else None for number, one in turns.items()},
        )


def responses_of(saved: SavedResponses, epoch: int, now: int) -> list[tuple[str, Kept]]:
    """The responses, each after its tenant, the one used last at the end; nobody holds their turns.
    The calendar may have been set back. Raises ``ValueError`` for rows that do not belong
    together."""
    turns = {0: None, **_linked(saved.turns)}
    rows = sorted(saved.responses, key=lambda row: row.used)
    lacking = next((row.id for row in rows if row.turn not in turns), None)
    if lacking is not None:
        raise ValueError(f"response {lacking!r} lacks its turn")
    return [
        (
            row.tenant,
            Kept(
                row.id,
                row.claim,
                turns[row.turn],
                saved.bodies.get((row.tenant, row.id), b""),
                min(now, row.used - epoch),
                row.successor,
                bool(row.successor),
            ),
        )
        for row in rows
    ]


def _linked(rows: Mapping[int, TurnRow]) -> dict[int, Turn]:
    """Turns by number; each comes after the one before it."""
    turns: dict[int, Turn] = {}
    for number, row in sorted(rows.items()):
        if row.before and row.before not in turns:
            raise ValueError(f"turn {number} lacks the one before it")
        before = turns[row.before] if row.before else None
        turns[number] = Turn(before, row.asked, row.answered, number=number)
    return turns


def _row(key: ResponseKey, kept: Kept, epoch: int) -> ResponseRow:
    turn = kept.turn.number if kept.turn is not None else 0
    successor = kept.successor if kept.followed else ""
    return ResponseRow(*key, kept.claim, turn, kept.used + epoch, successor)


def _turn_row(turn: Turn) -> TurnRow:
    before = turn.before.number if turn.before is not None else 0
    return TurnRow(before, turn.asked, turn.answered)
