"""Cases of saved and restored stores of responses that have names."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from alipes.gateway.api.openai.responses.kept import ENTRY_BYTES, Kept, Turn
from alipes.gateway.api.openai.responses.saved import (
    ResponseChanges,
    ResponseRow,
    SavedResponses,
    TurnRow,
)
from alipes.gateway.api.openai.responses.store import ResponseStore
from alipes.gateway.routing.identity import Claim, Source
from alipes.gateway.state.rows import response_changes

IDLE = 100
EPOCH = 1 << 60


class Life:
    """A store that is saved by ``restart``, and restored by it."""

    def __init__(self, count: int = 99, limit: int = 1 << 20) -> None:
        self.store = ResponseStore(count, limit, IDLE)
        self.store.notes.begin()
        self.rows: dict[str, dict[Any, Any]] = {"responses": {}, "bodies": {}, "turns": {}}
        self.now = 0

    def find(self, name: str) -> Kept:
        self.now += 1
        kept = self.store.find("t", name, self.now)
        assert kept is not None
        return kept

    def add(self, name: str, follows: Kept | None = None, size: int = 9) -> None:
        self.now += 1
        turn = Turn(follows.turn if follows else None, b"q", name.encode())
        self.store.add(
            "t", name, Claim("s"), self.now, turn=turn, body=b"x" * size, follows=follows
        )

    def go_on(self, before: str, name: str) -> Claim:
        kept = self.find(before)
        claim = kept.continued_by(name)
        self.save()
        self.add(name, kept)
        return claim

    def save(self) -> SavedResponses:
        changes = self.store.notes.take(EPOCH)
        for table, rows in self.rows.items():
            latest = rows | getattr(changes, table)
            self.rows[table] = {key: row for key, row in latest.items() if row is not None}
        responses = list(self.rows["responses"].values())
        return SavedResponses(responses, dict(self.rows["bodies"]), dict(self.rows["turns"]))

    def restart(self, count: int = 99, limit: int = 1 << 20) -> None:
        saved = self.save()
        self.store = ResponseStore(count, limit, IDLE)
        self.store.restore(saved, EPOCH, self.now)


def test_a_second_continuation_forks_after_a_restart_too() -> None:
    life = Life()
    life.add("r0")
    assert life.go_on("r0", "r1") == Claim("s")
    life.restart()
    assert life.go_on("r0", "r2") == Claim("s", "r2", source=Source.RESPONSE)
    # Even where the first one is forgotten.
    life.store.remove("t", "r1", life.now)
    life.restart()
    assert life.find("r0").continued_by("r3").branch == "r3"


def test_a_continuation_that_was_never_stored_does_not_block_the_branch() -> None:
    life = Life()
    life.add("r0")
    life.find("r0").continued_by("r1")
    life.restart()
    assert life.find("r0").continued_by("r2") == Claim("s")


def test_conversations_go_on_from_restart_to_restart() -> None:
    life = Life()
    life.add("r0")
    for number in range(1, 6):
        life.go_on(f"r{number - 1}", f"r{number}")
        life.restart()
    turn = life.find("r5").turn
    assert turn is not None
    assert turn.conversation()[1::2] == [b"r%d" % number for number in range(6)]
    assert len(life.save().turns) == 6


def test_a_deleted_response_leaves_only_what_others_need() -> None:
    life = Life()
    life.add("r0")
    life.go_on("r0", "r1")
    life.store.remove("t", "r0", life.now)
    saved = life.save()
    assert {row.id for row in saved.responses} == {"r1"}
    assert set(saved.bodies) == {("t", "r1")}
    assert len(saved.turns) == 2
    life.store.remove("t", "r1", life.now)
    assert life.save() == SavedResponses([], {}, {})


def test_what_is_too_much_or_too_old_goes_from_the_rows_too() -> None:
    life = Life()
    life.add("old")
    life.now += IDLE - 5
    for number in range(4):
        life.add(f"r{number}", size=2 * ENTRY_BYTES)
    life.now += 5
    life.find("r0")
    life.restart(count=3)
    assert {row.id for row in life.save().responses} == {"r0", "r2", "r3"}
    life.restart(limit=6 * ENTRY_BYTES)
    assert {row.id for row in life.save().responses} == {"r0"}
    assert len(life.rows["turns"]) == len(life.rows["bodies"]) == 1


ROW = ResponseRow("t", "r", Claim("s"), 2, EPOCH, "")


@pytest.mark.parametrize(
    ("turns", "told"),
    [
        ({}, "response 'r' lacks its turn"),
        ({2: TurnRow(1, b"", b"")}, "turn 2 lacks the one before it"),
    ],
)
def test_rows_that_do_not_belong_together_are_refused(turns: dict[int, TurnRow], told: str) -> None:
    store = ResponseStore(9, 1 << 20, IDLE)
    with pytest.raises(ValueError, match=told):
        store.restore(SavedResponses([ROW], {}, turns), EPOCH, 1)
    assert (len(store), store.size) == (0, 0)


def test_content_that_is_left_out_takes_with_it_what_goes_on_from_it() -> None:
    key = ("t", "r")
    turn = TurnRow(1, b"", b"")
    left_out = {1}
    changes = ResponseChanges({key: ROW}, {key: b"body"}, {2: turn})
    (written,) = response_changes(changes, left_out)
    assert written[0] == "response"
    assert msgspec.msgpack.decode(written[2] or b"", type=ResponseRow).turn == 0
    assert left_out == {1, 2}
    # Once the first one is gone, there may be room for others.
    gone = ResponseChanges({}, {}, {1: None, 3: turn})
    assert [change[0] for change in response_changes(gone, left_out)] == ["turn", "turn"]
    assert left_out == {2}
