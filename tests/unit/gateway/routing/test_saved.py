"""Cases of saved and restored session tables that have names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import msgspec
import numpy as np
import pytest

from alipes.gateway.routing.identity import NO_CLAIM, Claim, Source
from alipes.gateway.routing.saved import BranchRow, SavedSessions, SessionKey, SessionRow
from alipes.gateway.routing.sessions import SessionCall, SessionTable
from alipes.gateway.routing.views import SECOND
from alipes.instance.contract import TokenIds

CALENDAR = 1_800_000_000 * SECOND
PROMPT = list(range(100, 400))


def ids(tokens: list[int]) -> TokenIds:
    return np.array(tokens, np.int32)


@dataclass
class Life:
    """A table that is saved after everything, and restored by ``restart``; time passes by itself,
    and every table's clock has another origin."""

    limit: int = 100
    idle: float = 60.0
    now: int = 0
    origin: int = CALENDAR
    table: SessionTable = field(init=False)
    sessions: dict[SessionKey, SessionRow] = field(default_factory=dict)
    branches: dict[bytes, BranchRow] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.table = self.new()
        self.table.notes.begin()

    def new(self) -> SessionTable:
        return SessionTable(self.limit, self.idle, Random(self.origin).randbytes)

    def begin(
        self, tokens: list[int], claim: Claim = NO_CLAIM, tenant: str = "t", stem: int | None = None
    ) -> SessionCall:
        self.now += 1
        stem = len(tokens) if stem is None else stem
        return self.table.begin(tenant, "m", claim, ids(tokens), stem, self.now)

    def end(self, call: SessionCall, reply: list[int], instance: str = "i") -> None:
        self.now += 1
        self.table.finished(call, instance, ids(reply), 64, 128, self.now)

    def fail(self, call: SessionCall) -> None:
        self.now += 1
        self.table.failed(call, self.now)

    def turn(
        self, tokens: list[int], reply: list[int], claim: Claim = NO_CLAIM, tenant: str = "t"
    ) -> SessionCall:
        call = self.begin(tokens, claim, tenant)
        self.end(call, reply)
        return call

    def save(self) -> SavedSessions:
        changes = self.table.notes.take(self.origin)
        for key, session in changes.sessions.items():
            put(self.sessions, key, session)
        for branch_id, branch in changes.branches.items():
            put(self.branches, branch_id, branch.row() if branch else None)
        sessions, branches = list(self.sessions.values()), list(self.branches.values())
        return SavedSessions(self.table.seed, self.table.block_tokens, sessions, branches)

    def restart(self) -> None:
        saved = self.save()
        self.origin, self.now = self.origin + self.now - 5 * SECOND, 5 * SECOND
        self.table = self.new()
        self.table.restore(saved, self.origin, self.now)

    def known(self) -> set[str]:
        return {name for _, name in self.table._sessions}


def put(rows: dict[Any, Any], key: Any, row: Any) -> None:
    if row is None:
        rows.pop(key, None)
    else:
        rows[key] = row


def test_a_session_without_an_id_is_found_by_its_longest_prompt() -> None:
    life = Life()
    strangers = [life.turn([*PROMPT, number], [5, 6]) for number in range(3)]
    first = life.turn(PROMPT, [1000, 1001, 2])
    before = life.begin([*PROMPT, 1000, 1001, 3])
    life.fail(before)
    life.restart()
    again = life.begin([*PROMPT, 1000, 1001, 3])
    assert (again.session, again.branch) == (first.session, first.branch)
    assert again.continuation
    assert (again.number, again.path.tokens.tolist()) == (1, [*PROMPT, 1000, 1001, 3])
    # Of the reply only a sum is kept.
    assert (before.known_tokens, again.known_tokens) == (302, 300)
    assert (before.kept_tokens, again.kept_tokens) == (302, 300)
    assert life.begin([*PROMPT, 1, 9]).session == strangers[1].session
    assert life.begin([*PROMPT, 7]).session == first.session


def test_what_is_shown_of_a_session_survives() -> None:
    life = Life()
    for number in range(3):
        life.turn([*PROMPT, number], [5], Claim("s", "b", "p", source=Source.OWN))
    life.end(life.begin(PROMPT, Claim("s", source=Source.BODY)), [5], "other")
    view = life.table.view("t", "s", life.now)
    life.restart()
    assert life.table.view("t", "s", life.now) == view
    assert view is not None
    assert [branch.instance for branch in view.branches] == ["i", "other"]


def test_calls_in_flight_have_come_to_nothing() -> None:
    life = Life()
    life.turn(PROMPT, [5], Claim("s"))
    life.begin([*PROMPT, 5, 6], Claim("s"))
    life.begin(PROMPT, Claim("fresh"))
    life.restart()
    view = life.table.view("t", "s", life.now)
    assert view is not None
    assert (view.calls, view.in_flight, view.idle) == (2, 0, 0.0)
    assert life.known() == {"s"}
    assert set(life.save().sessions) == {life.sessions["t", "s"]}
    assert not life.sessions["t", "s"].busy


def test_of_equal_prompts_the_call_that_finished_last_counts() -> None:
    """Even where another of these sessions was used later, and after a second restart."""
    life = Life()
    calls = [life.begin(PROMPT) for _ in range(3)]
    for call in calls:
        life.end(call, [9])
    life.restart()
    life.fail(life.begin([*PROMPT, 1], Claim(calls[0].session)))
    assert life.begin([*PROMPT, 1]).session == calls[2].session
    life.restart()
    later = life.begin(PROMPT)
    life.end(later, [9])
    life.fail(life.begin([*PROMPT, 1], Claim(calls[1].session)))
    life.restart()
    assert life.begin([*PROMPT, 1]).session == later.session


def test_a_session_that_was_in_use_is_the_last_to_expire() -> None:
    life = Life(idle=60.0)
    for name in ("busy", "idle"):
        life.turn(PROMPT, [9], Claim(name))
    life.begin(PROMPT, Claim("busy"))
    life.turn(PROMPT, [9], Claim("idle"))
    life.now += 50 * SECOND
    life.restart()
    life.now += 20 * SECOND
    life.table.gone(life.now)
    assert life.known() == {"busy"}


@pytest.mark.parametrize("restarts", [False, True])
def test_tenants_with_as_many_sessions_make_room_by_age(restarts: bool) -> None:
    life = Life(limit=3)
    for tenant in ("a", "b", "c"):
        life.turn(PROMPT, [9], Claim(tenant), tenant)
    life.turn(PROMPT, [9], Claim("a"), "a")
    if restarts:
        life.restart()
    life.turn(PROMPT, [9], Claim("d"), "d")
    life.table.gone(life.now)
    assert life.known() == {"a", "c", "d"}


def test_what_is_too_much_or_too_old_goes_from_the_rows_too() -> None:
    life = Life(limit=9, idle=60.0)
    life.turn(PROMPT, [9], Claim("old"))
    life.now += 61 * SECOND
    for number in range(5):
        life.turn(PROMPT, [9], Claim(f"s{number}"))
    life.limit = 2
    life.restart()
    assert life.known() == {"s3", "s4"}
    assert life.table.gone(life.now) == ()
    assert {row.id for row in life.save().sessions} == {"s3", "s4"}
    assert len(life.branches) == 2


def test_a_clock_that_was_set_back_makes_nothing_younger_than_now() -> None:
    life = Life()
    life.turn(PROMPT, [9], Claim("s"))
    saved = life.save()
    life.table = life.new()
    life.table.restore(saved, life.origin - 1000 * SECOND, 5)
    view = life.table.view("t", "s", 5)
    assert view is not None
    assert view.idle == 0.0


def test_a_row_is_the_same_whether_its_paths_are_still_held() -> None:
    life = Life()
    life.turn(PROMPT, [9], Claim("s"))
    (state,) = life.table.notes.take(life.origin).branches.values()
    assert state is not None
    (record,) = state.records
    assert record.path is not None
    row = state.row()
    record.compact()
    assert state.row() == row
    assert len(row.records[0].digest) == 16


def test_nothing_is_noted_unless_asked_for() -> None:
    table = SessionTable(9, 60.0, Random(1).randbytes)
    call = table.begin("t", "m", NO_CLAIM, ids(PROMPT), 300, 1)
    assert len(table.notes) == 0
    table.notes.begin()
    table.finished(call, "i", ids([5]), 0, 0, 2)
    assert len(table.notes) == 2
    table.notes.end()
    assert len(table.notes) == 0
    assert table.notes.take(0).sessions == {}


Fault = Callable[[SavedSessions], dict[str, Any]]
FAULTS: dict[str, Fault] = {
    "session 's' lacks a branch": lambda saved: {"branches": []},
    "1 branches are of no session": lambda saved: {"sessions": []},
    "names a branch that is not its own": lambda saved: {
        "branches": [msgspec.structs.replace(saved.branches[0], serial=1)]
    },
    "its blocks are of 16 tokens": lambda saved: {"block_tokens": 16},
}


@pytest.mark.parametrize("told", FAULTS)
def test_rows_that_do_not_belong_together_are_refused(told: str) -> None:
    life = Life()
    life.turn(PROMPT, [9], Claim("s"))
    saved = life.save()
    fields = {name: getattr(saved, name) for name in saved.__slots__}
    table = life.new()
    with pytest.raises(ValueError, match=told):
        table.restore(SavedSessions(**fields | FAULTS[told](saved)), life.origin, life.now)
    assert (len(table), table.branches, len(table._index)) == (0, 0, 0)
