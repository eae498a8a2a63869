"""The session table against an obvious model that keeps every prompt and compares them all."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from alipes.gateway.routing.identity import NO_CLAIM, Claim, Source
from alipes.gateway.routing.sessions import BRANCH_RECORDS, SessionCall, SessionTable
from alipes.gateway.routing.views import SECOND
from alipes.instance.contract import TokenIds, chain_key, chain_root

LIMIT = 6
IDLE = 10
pieces = st.lists(
    st.sampled_from([b"\0", b"\1", b"\0" * 63, b"\0" * 64, b"\1" * 65]), min_size=1, max_size=3
).map(b"".join)
claims = st.just(NO_CLAIM) | st.builds(
    Claim,
    session=st.sampled_from(["s", "t"]),
    branch=st.sampled_from(["", "x"]),
    parent=st.sampled_from(["", "x"]),
    final=st.sampled_from([False, False, False, True]),
    source=st.just(Source.OWN),
    weak=st.booleans(),
)


def ids(data: bytes) -> TokenIds:
    return np.frombuffer(data, np.uint8).astype(np.int32)


@dataclass(eq=False)
class ModelRecord:
    branch: ModelBranch
    stem: bytes
    whole: bytes
    number: int

    def known(self, prompt: bytes) -> int:
        if not self.stem or not prompt.startswith(self.stem):
            return 0
        pairs = zip(self.whole, prompt, strict=False)
        same = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
        return min(len(self.whole), len(prompt)) if same is None else same


@dataclass(eq=False)
class ModelBranch:
    session: ModelSession
    id: bytes
    name: str
    model: str
    records: list[ModelRecord] = field(default_factory=list)
    busy: bool = False
    finished: int = 0
    used: int = 0


@dataclass(eq=False)
class ModelSession:
    tenant: str
    id: str
    branches: list[ModelBranch] = field(default_factory=list)
    in_flight: int = 0
    over: bool = False
    used: int = 0
    left: int = 0


@dataclass(eq=False)
class ModelCall:
    call: SessionCall
    branch: ModelBranch
    base: ModelRecord | None
    prompt: bytes
    stem: bytes
    final: bool


class SessionMachine(RuleBasedStateMachine):
    @initialize()
    def begin_with_nothing(self) -> None:
        self.now = 0
        self.counter = 0
        self.limit, self.idle = LIMIT, IDLE
        self.table = SessionTable(LIMIT, IDLE, Random(1).randbytes)
        self.sessions: dict[tuple[str, str], ModelSession] = {}
        self.calls: list[ModelCall] = []
        self.texts: list[bytes] = [b""]
        self.gone: list[bytes] = []

    def records(self) -> list[ModelRecord]:
        return [r for s in self.sessions.values() for b in s.branches for r in b.records]

    def drop(self, session: ModelSession) -> None:
        assert session.in_flight == 0
        del self.sessions[session.tenant, session.id]
        self.gone += [branch.id for branch in session.branches]

    def expire(self) -> None:
        for session in list(self.sessions.values()):
            if not session.in_flight and self.now - session.used > self.idle * SECOND:
                self.drop(session)

    # --- calls ---

    @rule(
        tenant=st.sampled_from(["a", "a", "b"]),
        model=st.sampled_from(["m", "m", "n"]),
        claim=claims,
        more=pieces,
        lead=st.sampled_from([0, 0, 1, 2, None]),
        data=st.data(),
    )
    def begin(
        self,
        tenant: str,
        model: str,
        claim: Claim,
        more: bytes,
        lead: int | None,
        data: st.DataObject,
    ) -> None:
        prompt = data.draw(st.sampled_from(self.texts)) + more
        stem = b"" if lead is None else prompt[: max(0, len(prompt) - lead)]
        self.expire()
        found, name = self.find(tenant, model, claim, stem)
        call = self.table.begin(tenant, model, claim, ids(prompt), len(stem), self.now)
        if found is None:
            assert (tenant, call.session) not in self.sessions
            assert call.session == claim.session or not claim.session
            name = claim.branch if claim.session else ""
            found = ModelSession(tenant, call.session)
            self.sessions[tenant, call.session] = found
        assert call.session == found.id
        branch, base = self.choose(found, name, claim.parent, model, prompt, call)
        assert call.continuation is (branch.finished > 0 or call.known_tokens > 0)
        branch.busy = True
        found.in_flight += 1
        found.over = False
        branch.used = found.used = self.now
        self.calls.append(ModelCall(call, branch, base, prompt, stem, claim.final))
        self.check_keys(call, tenant, prompt)

    def find(
        self, tenant: str, model: str, claim: Claim, stem: bytes
    ) -> tuple[ModelSession | None, str]:
        named = self.sessions.get((tenant, claim.session))
        if named is not None:
            return named, claim.branch
        if claim.session and not claim.weak:
            return None, claim.branch
        begin_alike = [
            (len(beginning), not record.branch.session.in_flight, record.number, record.branch)
            for record in self.records()
            if (record.branch.session.tenant, record.branch.model) == (tenant, model)
            and record.stem
            and stem.startswith(record.stem)
            for beginning in (record.stem, record.whole[:-1])
            if len(beginning) < len(stem) and stem.startswith(beginning)
        ]
        best = max(begin_alike, key=lambda found: found[:3], default=None)
        return (best[3].session, best[3].name) if best else (None, "")

    def choose(
        self,
        session: ModelSession,
        name: str,
        parent: str,
        model: str,
        prompt: bytes,
        call: SessionCall,
    ) -> tuple[ModelBranch, ModelRecord | None]:
        """Check the branch that the call got, and find the record it must go on from."""
        group = [b for b in session.branches if (b.name, b.model) == (name, model)]
        above = [b for b in session.branches if (b.name, b.model) == (parent, model)]
        idle = [branch for branch in group if not branch.busy]
        taken = next((b for b in session.branches if b.id == call.branch), None)
        most = max((r.known(prompt) for b in idle for r in b.records), default=0)
        if most:
            assert taken in idle
            assert call.known_tokens == most
            return taken, next(r for r in taken.records if r.known(prompt) == most)
        others = [r.known(prompt) for b in (*group, *above) for r in b.records]
        assert call.known_tokens == max(others, default=0)
        if idle:
            assert taken is not None
            assert taken.used == max(branch.used for branch in idle)
            return taken, None
        assert taken is None
        branch = ModelBranch(session, call.branch, name, model)
        session.branches.append(branch)
        return branch, None

    def check_keys(self, call: SessionCall, tenant: str, prompt: bytes) -> None:
        key = chain_root("f", tenant.encode())
        wanted = []
        for start in range(0, len(prompt) - 63, 64):
            key = chain_key(key, ids(prompt[start : start + 64]))
            wanted.append(key)
        assert list(call.path.keys("f")) == wanted

    @precondition(lambda self: self.calls)
    @rule(data=st.data(), reply=st.just(b"") | pieces, well=st.booleans(), twice=st.booleans())
    def end(self, data: st.DataObject, reply: bytes, well: bool, twice: bool) -> None:
        ended = data.draw(st.sampled_from(self.calls))
        self.calls.remove(ended)
        branch, session = ended.branch, ended.branch.session
        if well:
            self.table.finished(ended.call, "i", ids(reply), 1, 2, self.now)
            if ended.base in branch.records:
                branch.records.remove(ended.base)
            self.counter += 1
            whole = ended.prompt + reply
            branch.records.append(ModelRecord(branch, ended.stem, whole, self.counter))
            del branch.records[:-BRANCH_RECORDS]
            branch.finished += 1
            self.texts = [*self.texts, ended.prompt, whole][-12:]
        if not well or twice:
            self.table.failed(ended.call, self.now)
        branch.busy = False
        session.in_flight -= 1
        branch.used = session.used = self.now
        session.over = session.over or (well and ended.final)
        session.left = self.now
        useless = not any(b.finished for b in session.branches)
        if not session.in_flight and (session.over or useless):
            self.drop(session)

    @rule(seconds=st.sampled_from([1, 3, IDLE, IDLE + 1]))
    def wait(self, seconds: int) -> None:
        self.now += seconds * SECOND

    # --- bounds ---

    @rule(limit=st.sampled_from([2, LIMIT]), idle=st.sampled_from([3, IDLE]))
    def configure(self, limit: int, idle: int) -> None:
        self.limit, self.idle = limit, idle
        self.table.configure(limit, idle, self.now)
        self.forget()

    @rule()
    def forget(self) -> None:
        self.expire()
        told = self.table.gone(self.now)
        assert len(set(told)) <= len(told)
        for branch_id in self.gone:
            assert branch_id in told
        evicted = [b for b in told if b not in self.gone]
        self.gone.clear()
        alive = {b.id: s for s in self.sessions.values() for b in s.branches}
        total = len(alive)
        for branch_id in evicted:
            session = alive[branch_id]
            assert total > self.limit - len(session.branches)
            if (session.tenant, session.id) in self.sessions:
                rivals = [s for s in self.sessions.values() if not s.in_flight]
                assert session.left == min(s.left for s in rivals if s.tenant == session.tenant)
                self.drop(session)
                total -= len(session.branches)
        self.gone.clear()
        assert total <= self.limit or all(s.in_flight for s in self.sessions.values())

    @invariant()
    def all_is_counted(self) -> None:
        if not hasattr(self, "table"):
            return
        busy = [c.call.branch for c in self.calls]
        assert len(busy) == len(set(busy))
        for session in self.sessions.values():
            view = self.table.view(session.tenant, session.id, self.now)
            if not session.in_flight and self.now - session.used > self.idle * SECOND:
                assert view is None
                continue
            assert view is not None
            assert {b.id for b in view.branches} == {b.id for b in session.branches}
            assert view.in_flight == session.in_flight
        assert len(self.table) == len(self.sessions)
        assert self.table.branches == sum(len(s.branches) for s in self.sessions.values())
        filed = [{r.stem, r.whole[:-1]} for r in self.records() if r.stem]
        assert len(self.table._index) == sum(map(len, filed))

    def teardown(self) -> None:
        """Nothing is left when all has ended and its time is over."""
        if not hasattr(self, "table"):
            return
        for ended in self.calls:
            self.table.failed(ended.call, self.now)
        self.table.gone(self.now + (self.idle + 1) * SECOND)
        assert (len(self.table), self.table.branches) == (0, 0)
        assert (len(self.table._index), self.table.kept_cost) == (0, 0)


TestSessions = SessionMachine.TestCase
TestSessions.settings = settings(max_examples=80, stateful_step_count=50, deadline=None)
