"""Which session and branch a call belongs to, and what of its prompt an earlier call had; sans-IO.

A call's session is the one that its claim names; without a name it is the one whose last prompt,
what a template puts at its end to make the model speak left out, is the longest proper beginning
of the new prompt; prompt and reply together go before a prompt alone. So sessions that share a
system prompt stay apart, and so do equal prompts.

Under one branch name calls that overlap become branches of their own. A call goes on with the
idle branch that knows most of its prompt; where none knows it, the one used last starts over.

A table notes what changes, if asked to, and can take it all back from rows (``saved.py``).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from alipes.gateway.routing.branches import Branch, Record, Session, longest_known
from alipes.gateway.routing.identity import Claim, Source
from alipes.gateway.routing.paths import TokenPath
from alipes.gateway.routing.prefixes import Place, PrefixIndex, Sums
from alipes.gateway.routing.saved import SavedSessions, SessionNotes, sessions_of
from alipes.gateway.routing.views import SECOND, SessionView, view_of
from alipes.instance.contract import BLOCK_TOKENS, TokenIds

KEPT_BYTES: Final = 128 << 20
SESSION_BRANCHES: Final = 64
BRANCH_RECORDS: Final = 4


@dataclass(slots=True, eq=False)
class SessionCall:
    """A call between ``begin`` and its end. ``branch`` (16 bytes) is for router and instances,
    ``name`` its name in the session;
    ``continuation``: an earlier call of the branch has finished, or this one goes on from one of
    a sibling or the parent. The first ``known_tokens`` of the prompt were in that call.

    ``number`` calls of the branch had finished. Before its first one it began from ``origin``, if
    there is such a branch, which had finished ``origin_calls``. The context that the last call of
    these left begins with the first ``kept_tokens`` of the prompt, or more where it is not held
    any more."""

    session: str
    name: str
    branch: bytes
    continuation: bool
    known_tokens: int
    kept_tokens: int
    number: int
    origin: bytes
    origin_calls: int
    final: bool
    path: TokenPath
    _branch: Branch = field(repr=False)
    _base: Record | None = field(repr=False)
    _length: int = field(repr=False)
    _sums: Sums = field(repr=False)
    _place: Place = field(repr=False)
    _open: bool = True


class SessionTable:
    """At most ``limit`` branches, beyond those of sessions with a call in flight, for ``idle``
    seconds after their session's last use. When there are too many, the tenant with most sessions
    (of several the one that has the oldest) loses the one it used longest ago. Paths, of blocks of
    ``block_tokens``, take ``kept_bytes`` at most. ``entropy`` gives so many random bytes: of a live
    gateway unguessable ones, as they name sessions that come without an id. ``notes`` are of what
    changed."""

    def __init__(
        self,
        limit: int,
        idle: float,
        entropy: Callable[[int], bytes],
        kept_bytes: int = KEPT_BYTES,
        block_tokens: int = BLOCK_TOKENS,
    ) -> None:
        self._limit, self._idle = limit, int(idle * SECOND)
        self._block_tokens = block_tokens
        self._entropy = entropy
        self._kept_bytes = kept_bytes
        self._sessions: dict[tuple[str, str], Session] = {}
        self._resting: dict[str, OrderedDict[Session, None]] = {}
        self._branches = 0
        seed = int.from_bytes(entropy(8), "little")
        self._index: PrefixIndex[Record] = PrefixIndex(seed, block_tokens)
        self._records = 0
        self._kept: OrderedDict[Record, int] = OrderedDict()
        self._kept_cost = 0
        self._gone: list[bytes] = []
        self.notes = SessionNotes()

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def branches(self) -> int:
        return self._branches

    @property
    def kept_cost(self) -> int:
        """Bytes held for paths."""
        return self._kept_cost

    @property
    def seed(self) -> int:
        """That of the prefix index."""
        return self._index.seed

    @property
    def block_tokens(self) -> int:
        return self._block_tokens

    def configure(self, limit: int, idle: float, now: int) -> None:
        """Other bounds from ``now`` on; ``gone`` tells what is too much for them."""
        self._limit, self._idle = limit, int(idle * SECOND)
        self._evict(now)

    def restore(self, saved: SavedSessions, epoch: int, now: int) -> None:
        """Take over what another table held: for one that has had no call. Its calls in flight have
        failed ``now``; of all finished ones the compact record is known. What has expired or is too
        much for this table goes, and changes are noted from here on. Raises ``ValueError``, with
        nothing taken over, for rows that do not belong together."""
        if saved.block_tokens != self._block_tokens:
            raise ValueError(f"its blocks are of {saved.block_tokens} tokens")
        sessions = sessions_of(saved, epoch, now)
        self._index = PrefixIndex(saved.seed, self._block_tokens)
        branches = [branch for session in sessions for branch in session.all()]
        records = [record for branch in branches for record in branch.records]
        for record in sorted(records, key=lambda record: record.number):
            self._file(record)
            self._records = record.number
        self._branches = len(branches)
        self._sessions = {(session.tenant, session.id): session for session in sessions}
        self.notes.begin()
        busy = {row.id for row in saved.branches if row.busy}
        for branch in branches:
            if branch.id in busy:
                self.notes.changed(branch)
        for session in sessions:
            self._rest(session)
        self.gone(now)

    # --- calls -----------------------------------------------------------------------------------

    def begin(
        self, tenant: str, model: str, claim: Claim, tokens: TokenIds, stem: int, now: int
    ) -> SessionCall:
        """A call arrives. ``tokens`` int32 (n,) is its prompt; a later one of its session begins
        with the first ``stem`` of them, 0 where these would not tell it from other sessions."""
        self._expire(now)
        sums = self._index.sums(tokens)
        beginning, its_sums = tokens[:stem], sums.first(stem)
        found = self._find(tenant, model, claim, beginning, its_sums)
        session, name = found if found is not None else self._create(tenant, claim, now)
        branch, base, known = self._branch(session, name, claim.parent, model, tokens, sums)
        self._enter(session, branch, now)
        near = base or next(reversed(branch.records), None)
        origin = None if branch.finished else session.origin(branch)
        last = next(reversed((origin or branch).records), None)
        before = near.path if near is not None else None
        return SessionCall(
            session=session.id,
            name=name,
            branch=branch.id,
            continuation=branch.finished > 0 or known > 0,
            known_tokens=known,
            kept_tokens=known if last is base else last.shared(tokens) if last is not None else 0,
            number=branch.finished,
            origin=origin.id if origin is not None else b"",
            origin_calls=origin.finished if origin is not None else 0,
            final=claim.final,
            path=TokenPath(tokens, tenant, before, self._block_tokens),
            _branch=branch,
            _base=base,
            _length=stem,
            _sums=sums,
            _place=self._index.place(tenant, model, beginning, its_sums),
        )

    def finished(
        self,
        call: SessionCall,
        instance: str,
        reply: TokenIds,
        cached_tokens: int,
        prefix_tokens: int,
        now: int,
    ) -> None:
        """The call has its ``reply``, int32 (m,). Ending a call twice changes nothing."""
        if not call._open:
            return
        branch = call._branch
        branch.finished += 1
        branch.instance = instance
        branch.cached_tokens, branch.prefix_tokens = cached_tokens, prefix_tokens
        if call._base is not None and call._base.branch is branch:
            self._forget_record(call._base)
        self._add_record(call, reply)
        branch.session.over |= call.final
        self._leave(call, now)

    def failed(self, call: SessionCall, now: int) -> None:
        """The call ended in any other way: nothing is known of what it left."""
        if call._open:
            self._leave(call, now)

    # --- what can be asked -----------------------------------------------------------------------

    def view(self, tenant: str, session: str, now: int) -> SessionView | None:
        found = self._sessions.get((tenant, session))
        if found is None or (not found.in_flight and now - found.used > self._idle):
            return None
        return view_of(found, now)

    def gone(self, now: int) -> tuple[bytes, ...]:
        """Expire and evict; ids of the branches that were forgotten since this was last asked."""
        self._evict(now)
        gone, self._gone = tuple(self._gone), []
        return gone

    def _evict(self, now: int) -> None:
        self._expire(now)
        while self._branches > self._limit:
            oldest = [next(iter(resting)) for resting in self._resting.values() if resting]
            if not oldest:
                break
            self._drop(max(oldest, key=self._crowd))

    # --- finding ---------------------------------------------------------------------------------

    def _find(
        self, tenant: str, model: str, claim: Claim, stem: TokenIds, sums: Sums
    ) -> tuple[Session, str] | None:
        """The session that the call belongs to, and its branch name there."""
        named = self._sessions.get((tenant, claim.session)) if claim.session else None
        if named is not None:
            return named, claim.branch
        if claim.session and not claim.weak:
            return None
        record = self._before(tenant, model, stem, sums)
        return (record.branch.session, record.branch.name) if record is not None else None

    def _before(self, tenant: str, model: str, stem: TokenIds, sums: Sums) -> Record | None:
        """The call that this one goes on from; of several with the same prompt the latest whose
        session has nothing in flight, else the latest."""
        for group in self._index.candidates(tenant, model, stem, sums):
            busy: Record | None = None
            for record in group:
                if not record.known(stem):
                    continue
                if not record.branch.session.in_flight:
                    return record
                busy = busy or record
            if busy is not None:
                return busy
        return None

    def _create(self, tenant: str, claim: Claim, now: int) -> tuple[Session, str]:
        source = claim.source if claim.session else Source.NEW
        name = claim.session or f"auto-{self._entropy(16).hex()}"
        session = Session(tenant, name, source, now)
        self._sessions[tenant, name] = session
        return session, claim.branch if claim.session else ""

    def _branch(
        self, session: Session, name: str, parent: str, model: str, tokens: TokenIds, sums: Sums
    ) -> tuple[Branch, Record | None, int]:
        """The branch that takes the call, the record it goes on from, and what that knows."""
        group = session.under(name, model)
        idle = [branch for branch in group if not branch.busy]
        base, known = longest_known(idle, tokens, sums)
        if base is not None:
            return base.branch, base, known
        base, known = longest_known((*group, *session.under(parent, model)), tokens, sums)
        if idle:
            return max(idle, key=lambda branch: branch.used), base, known
        self._make_room(session)
        self._branches += 1
        return session.add(name, parent, model), base, known

    # --- bookkeeping -----------------------------------------------------------------------------

    def _crowd(self, oldest: Session) -> tuple[int, int]:
        """How many sessions its tenant has at rest; of several with as many, the longest there."""
        return len(self._resting[oldest.tenant]), -oldest.used

    def _enter(self, session: Session, branch: Branch, now: int) -> None:
        branch.busy = True
        branch.calls += 1
        branch.used = session.used = now
        session.in_flight += 1
        session.over = False
        self._resting.get(session.tenant, OrderedDict()).pop(session, None)
        self.notes.changed(branch)

    def _leave(self, call: SessionCall, now: int) -> None:
        branch, session = call._branch, call._branch.session
        call._open = branch.busy = False
        branch.used = session.used = now
        session.in_flight -= 1
        self.notes.changed(branch)
        if not session.in_flight:
            self._rest(session)

    def _rest(self, session: Session) -> None:
        """None of its calls is in flight: it may return, or there is nothing to return to."""
        if session.over or not any(each.finished for each in session.all()):
            self._drop(session)
        else:
            self._resting.setdefault(session.tenant, OrderedDict())[session] = None

    def _expire(self, now: int) -> None:
        for resting in self._resting.values():
            while resting and now - next(iter(resting)).used > self._idle:
                self._drop(next(iter(resting)))

    def _add_record(self, call: SessionCall, reply: TokenIds) -> None:
        branch = call._branch
        path = call.path.followed_by(reply) if len(reply) else call.path
        # The last id of a reply is what ended it: a template may write another one, or none.
        whole = path.tokens[:-1]
        sums = self._index.sums(whole, call._sums.first(len(whole)))
        end = self._index.place(branch.session.tenant, branch.model, whole, sums)
        self._records += 1
        record = Record(branch, call._length, call._place, end, path, self._records)
        branch.records.append(record)
        self._file(record)
        if len(branch.records) > BRANCH_RECORDS:
            self._forget_record(branch.records[0])
        self._kept[record] = record.cost
        self._kept_cost += record.cost
        while self._kept_cost > self._kept_bytes:
            oldest, cost = self._kept.popitem(last=False)
            self._kept_cost -= cost
            oldest.compact()

    def _file(self, record: Record) -> None:
        if record.length:
            self._index.add(record.place, record)
            self._index.add(record.end, record)

    def _forget_record(self, record: Record) -> None:
        if record in record.branch.records:
            record.branch.records.remove(record)
            self._index.discard(record.place, record)
            self._index.discard(record.end, record)
            self._kept_cost -= self._kept.pop(record, 0)

    def _make_room(self, session: Session) -> None:
        branches = session.all()
        if len(branches) >= SESSION_BRANCHES:
            idle = (branch for branch in branches if not branch.busy)
            oldest = min(idle, key=lambda branch: branch.used, default=None)
            if oldest is not None:
                self._forget_branch(oldest)

    def _forget_branch(self, branch: Branch) -> None:
        for record in tuple(branch.records):
            self._forget_record(record)
        branch.session.remove(branch)
        self._branches -= 1
        self._gone.append(branch.id)
        self.notes.forgotten(branch)

    def _drop(self, session: Session) -> None:
        for branch in session.all():
            self._forget_branch(branch)
        self._resting.get(session.tenant, OrderedDict()).pop(session, None)
        del self._sessions[session.tenant, session.id]
        self.notes.dropped(session)
