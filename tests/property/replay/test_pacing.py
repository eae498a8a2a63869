"""Pacing against a slow model that looks at every call of every session each time."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from alipes.replay.pacing import NANOSECONDS, Pacing, PacingSettings, Send
from alipes.replay.progress import SessionError, check
from alipes.replay.traces.form import Branch, Call, Session, Wait

Key = tuple[int, int, int]
CAP = 2.0


@st.composite
def sessions(draw: st.DrawFn) -> Session:
    """Any tree of branches whose joins can be satisfied."""
    gaps = st.sampled_from([0.0, 0.5, 1.0, 5.0])
    names: list[str] = []
    lengths: list[int] = []
    branches: list[Branch] = []
    for number in range(draw(st.integers(1, 4))):
        length = draw(st.integers(1, 4))
        calls = []
        for _ in range(length):
            joins = tuple(draw(st.lists(st.sampled_from([f"b{i}" for i in range(4)]), max_size=2)))
            wait = draw(st.sampled_from([Wait.TOOL, Wait.BRANCH]))
            calls.append(Call(1, 1, gap=draw(gaps), wait=wait, joins=joins))
        parent = draw(st.integers(0, number - 1)) if number else -1
        branches.append(
            Branch(
                f"b{number}",
                tuple(calls),
                names[parent] if number else "",
                draw(st.integers(0, lengths[parent] - 1)) if number else -1,
            )
        )
        names.append(f"b{number}")
        lengths.append(length)
    session = Session("s", tuple(branches), start=draw(st.sampled_from([0.0, 1.0, 3.0])))
    try:
        check(session)
    except SessionError:
        plain = tuple(
            Branch(b.name, tuple(Call(1, 1, gap=c.gap) for c in b.calls), b.parent, b.spawned_by)
            for b in branches
        )
        session = Session("s", plain, start=session.start)
    return session


@dataclass
class Slow:
    """Ends of calls by key; everything else is worked out anew each time."""

    sessions: list[Session]
    arrivals: list[int]
    limit: int
    open_loop: bool
    began: dict[int, int] = field(default_factory=dict)
    places: list[int] = field(default_factory=list)
    sent: set[Key] = field(default_factory=set)
    ends: dict[Key, int] = field(default_factory=dict)
    failed: set[int] = field(default_factory=set)

    def over(self, number: int) -> bool:
        calls = {key for key in self.sent if key[0] == number}
        whole = len(calls) == self.sessions[number].calls
        return calls <= set(self.ends) and number in self.began and (whole or number in self.failed)

    def begin(self, now: int) -> None:
        for number in sorted(range(len(self.sessions)), key=lambda i: (self.arrivals[i], i)):
            if number in self.began or not self.places or self.arrivals[number] > now:
                continue
            free = self.places.pop(0)
            arrival = self.arrivals[number]
            self.began[number] = arrival if self.open_loop else max(arrival, free)

    def branch_end(self, number: int, name: str) -> int | None:
        session = self.sessions[number]
        at = next(i for i, branch in enumerate(session.branches) if branch.name == name)
        keys = [(number, at, index) for index in range(len(session.branches[at].calls))]
        if not all(key in self.ends for key in keys):
            return None
        return max(self.ends[key] for key in keys)

    def intended(self, key: Key) -> int | None:
        number, at, index = key
        session = self.sessions[number]
        branch = session.branches[at]
        call = branch.calls[index]
        if index:
            since = [self.ends.get((number, at, index - 1))]
        elif at:
            parent = next(i for i, b in enumerate(session.branches) if b.name == branch.parent)
            since = [self.ends.get((number, parent, branch.spawned_by))]
        else:
            since = [self.began[number]]
        if call.wait is Wait.BRANCH and (at or index):
            since += [self.branch_end(number, name) for name in call.joins]
        known = [instant for instant in since if instant is not None]
        if len(known) < len(since):
            return None
        return max(known) + round(min(call.gap, CAP) * NANOSECONDS)

    def waiting(self) -> list[tuple[int, Key]]:
        found = []
        for number in self.began:
            for at, branch in enumerate(self.sessions[number].branches):
                for index in range(len(branch.calls)):
                    key = (number, at, index)
                    if number in self.failed or key in self.sent:
                        continue
                    intended = self.intended(key)
                    if intended is not None:
                        found.append((intended, key))
        return sorted(found)

    def wakeup(self) -> int | None:
        times = [intended for intended, _ in self.waiting()]
        coming = [self.arrivals[i] for i in range(len(self.sessions)) if i not in self.began]
        if coming and self.places:
            times.append(max(min(coming), self.places[0]))
        return min(times, default=None)


class PacingMachine(RuleBasedStateMachine):
    @initialize(
        chosen=st.lists(sessions(), min_size=1, max_size=4),
        limit=st.integers(0, 3),
        recorded=st.booleans(),
        elapsed=st.sampled_from([0, 0, NANOSECONDS // 2, NANOSECONDS, 9 * NANOSECONDS]),
    )
    def begin(self, chosen: list[Session], limit: int, recorded: bool, elapsed: int) -> None:
        self.now = 1_000
        pacing = PacingSettings(limit, recorded=recorded, gap_cap=CAP)
        self.fast = Pacing(chosen, pacing, self.now, elapsed)
        starts = [session.start or 0.0 if recorded else 0.0 for session in chosen]
        first = min(starts)
        ahead = [round((start - first) * NANOSECONDS) - elapsed for start in starts]
        arrivals = [self.now + max(0, left) for left in ahead]
        places = [self.now] * min(limit or len(chosen), len(chosen))
        self.slow = Slow(chosen, arrivals, limit, recorded, places=places)
        self.flying: list[Send] = []

    @rule(step=st.sampled_from([0, 1, NANOSECONDS // 2, NANOSECONDS]))
    def time_passes(self, step: int) -> None:
        self.now += step

    @precondition(lambda self: self.fast.next_wakeup() is not None)
    @rule()
    def until_the_wakeup(self) -> None:
        self.now = max(self.now, self.fast.next_wakeup() or 0)

    @rule()
    def send(self) -> None:
        sends = self.fast.due(self.now)
        self.slow.begin(self.now)
        expected = [(at, key) for at, key in self.slow.waiting() if at <= self.now]
        assert [(s.intended, (s.session, s.branch, s.index)) for s in sends] == expected
        for send in sends:
            self.slow.sent.add((send.session, send.branch, send.index))
            sent = sum(key[0] == send.session for key in self.slow.sent)
            call = self.slow.sessions[send.session].branches[send.branch].calls[send.index]
            assert send.gap == round(min(call.gap, CAP) * NANOSECONDS)
            assert send.last == (sent == self.slow.sessions[send.session].calls)
        self.flying += sends

    @precondition(lambda self: self.flying)
    @rule(data=st.data(), succeeded=st.sampled_from([True, True, True, False]))
    def end(self, data: st.DataObject, succeeded: bool) -> None:
        send = self.flying.pop(data.draw(st.integers(0, len(self.flying) - 1)))
        self.fast.ended(send, succeeded, self.now)
        self.slow.ends[send.session, send.branch, send.index] = self.now
        if not succeeded:
            self.slow.failed.add(send.session)
        if self.slow.over(send.session):
            self.slow.places.append(self.now)

    @invariant()
    def agree(self) -> None:
        if not hasattr(self, "fast"):
            return
        assert self.fast.next_wakeup() == self.slow.wakeup()
        numbers = range(len(self.slow.sessions))
        assert self.fast.done == all(self.slow.over(number) for number in numbers)
        # Whatever is not over has something that will go on with it.
        assert self.fast.done or self.flying or self.fast.next_wakeup() is not None
        under_way = [number for number in self.slow.began if not self.slow.over(number)]
        assert not self.slow.limit or len(under_way) <= self.slow.limit


TestPacing = PacingMachine.TestCase
TestPacing.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
