"""Sessions as rows: what of a table outlives its process, and how it comes back.

Times in rows are calendar nanoseconds, as those of a table's clock mean nothing to another one;
``epoch`` is the calendar time at which that clock was 0. Of a finished call's prompt and reply the
compact record is kept: lengths, places, and a digest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from alipes.gateway.routing.branches import Branch, Record, Session
from alipes.gateway.routing.changes import Changes
from alipes.gateway.routing.identity import Source

SessionKey = tuple[str, str]
"""Tenant and id."""


class RecordRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Of a record. ``total`` and ``rest``, ``end_total`` and ``end_rest`` are those of its two
    places, whose tenant and model are the branch's."""

    number: int
    length: int
    total: int
    rest: bytes
    end_total: int
    end_rest: bytes
    digest: bytes


class BranchRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Of a branch; ``busy`` if a call of it was in flight."""

    id: bytes
    name: str
    parent: str
    model: str
    serial: int
    calls: int
    finished: int
    instance: str
    cached_tokens: int
    prefix_tokens: int
    used: int
    busy: bool
    records: tuple[RecordRow, ...] = ()


class SessionRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Of a session, with the ids of its branches in order; ``busy`` if calls were in flight."""

    tenant: str
    id: str
    source: Source
    used: int
    over: bool
    busy: bool
    branches: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class BranchState:
    """A branch as it was at one moment."""

    head: BranchRow
    records: tuple[Record, ...]

    def row(self) -> BranchRow:
        """The whole row. Prompts that have no digest yet get one, half a millisecond for 100K ids:
        to be called in a thread that may take its time."""
        rows = tuple(map(_record_row, self.records))
        return msgspec.structs.replace(self.head, records=rows)


@dataclass(frozen=True, slots=True)
class SessionChanges:
    """What is new, by key; None for what is gone."""

    sessions: dict[SessionKey, SessionRow | None]
    branches: dict[bytes, BranchState | None]


@dataclass(frozen=True, slots=True)
class SavedSessions:
    """All that a table's rows held. ``seed`` is that of its prefix index, of blocks of
    ``block_tokens``: without it the records' places mean nothing."""

    seed: int
    block_tokens: int
    sessions: Sequence[SessionRow]
    branches: Sequence[BranchRow]


class SessionNotes:
    """Which sessions and branches of a table changed."""

    def __init__(self) -> None:
        self._sessions: Changes[SessionKey, Session] = Changes()
        self._branches: Changes[bytes, Branch] = Changes()

    def __len__(self) -> int:
        return len(self._sessions) + len(self._branches)

    def begin(self) -> None:
        """Note changes from now on; nothing is noted before. All that is noted must be taken."""
        self._sessions.begin()
        self._branches.begin()

    def end(self) -> None:
        self._sessions.end()
        self._branches.end()

    def changed(self, branch: Branch) -> None:
        """The branch and its session."""
        session = branch.session
        self._sessions.note((session.tenant, session.id), session)
        self._branches.note(branch.id, branch)

    def forgotten(self, branch: Branch) -> None:
        self._branches.note(branch.id, None)

    def dropped(self, session: Session) -> None:
        self._sessions.note((session.tenant, session.id), None)

    def take(self, epoch: int) -> SessionChanges:
        """What changed since the last time, as it is now."""
        sessions, branches = self._sessions.take(), self._branches.take()
        return SessionChanges(
            {key: _session_row(one, epoch) if one else None for key, one in sessions.items()},
            {key: _branch_state(one, epoch) if one else None for key, one in branches.items()},
        )


def sessions_of(saved: SavedSessions, epoch: int, now: int) -> list[Session]:
    """The sessions, the one used last at the end. A call that was in flight has ended ``now``.
    Raises ``ValueError`` for rows that do not belong together."""
    branches = {row.id: row for row in saved.branches}
    rows = sorted(saved.sessions, key=lambda row: (row.busy, row.used))
    sessions = [_session(row, branches, epoch, now) for row in rows]
    if branches:
        raise ValueError(f"{len(branches)} branches are of no session")
    return sessions


def _session(row: SessionRow, branches: dict[bytes, BranchRow], epoch: int, now: int) -> Session:
    session = Session(row.tenant, row.id, row.source, _used(row, epoch, now), over=row.over)
    for branch_id in row.branches:
        found = branches.pop(branch_id, None)
        if found is None:
            raise ValueError(f"session {row.id!r} lacks a branch")
        branch = _branch(session, found, epoch, now)
        session.branches.setdefault((branch.name, branch.model), []).append(branch)
    return session


def _branch(session: Session, row: BranchRow, epoch: int, now: int) -> Branch:
    branch = Branch(
        session,
        row.name,
        row.parent,
        row.model,
        row.serial,
        calls=row.calls,
        finished=row.finished,
        instance=row.instance,
        cached_tokens=row.cached_tokens,
        prefix_tokens=row.prefix_tokens,
        used=_used(row, epoch, now),
    )
    if branch.id != row.id:
        raise ValueError(f"session {session.id!r} names a branch that is not its own")
    branch.records += [_record(branch, record) for record in row.records]
    return branch


def _used(row: SessionRow | BranchRow, epoch: int, now: int) -> int:
    """The calendar may have been set back."""
    return now if row.busy else min(now, row.used - epoch)


def _record(branch: Branch, row: RecordRow) -> Record:
    where = branch.session.tenant, branch.model
    place, end = (*where, row.total, row.rest), (*where, row.end_total, row.end_rest)
    return Record(branch, row.length, place, end, None, row.number, row.digest)


def _session_row(session: Session, epoch: int) -> SessionRow:
    return SessionRow(
        session.tenant,
        session.id,
        session.source,
        session.used + epoch,
        session.over,
        session.in_flight > 0,
        tuple([branch.id for branch in session.all()]),
    )


def _branch_state(branch: Branch, epoch: int) -> BranchState:
    head = BranchRow(
        branch.id,
        branch.name,
        branch.parent,
        branch.model,
        branch.serial,
        branch.calls,
        branch.finished,
        branch.instance,
        branch.cached_tokens,
        branch.prefix_tokens,
        branch.used + epoch,
        branch.busy,
    )
    return BranchState(head, tuple(branch.records))


def _record_row(record: Record) -> RecordRow:
    (_, _, total, rest), (_, _, end_total, end_rest) = record.place, record.end
    digest = record.sealed()
    return RecordRow(record.number, record.length, total, rest, end_total, end_rest, digest)
