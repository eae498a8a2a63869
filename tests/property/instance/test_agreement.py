"""Agreement on copies against a slow, obvious model: the whole history, read again each time."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from alipes.instance.engine.protocol import CopyEnd
from alipes.instance.memory.agreement import Agreement

BOUND = 20


class Told:
    """What was said of one copy, rank by rank; ``truth`` is what each really holds."""

    def __init__(self, ticket: int, at: int, truth: list[list[int]]) -> None:
        self.ticket, self.at, self.truth = ticket, at, truth
        self.said: dict[int, list[int]] = {rank: [] for rank in range(len(truth))}
        self.ended: set[int] = set()

    def verdict(self) -> CopyEnd:
        count = 0
        while all(len(said) > count for said in self.said.values()):
            if len({said[count] for said in self.said.values()}) > 1:
                break
            count += 1
        return CopyEnd(self.ticket, count)

    def holds(self, intact: int) -> bool:
        """Whether all ranks hold the first blocks, and the same of them."""
        beginnings = [tuple(held[:intact]) for held in self.truth]
        return len(set(beginnings)) == 1 and len(beginnings[0]) == intact


class Agreements(RuleBasedStateMachine):
    @initialize(ranks=st.integers(1, 4))
    def build(self, ranks: int) -> None:
        self.ranks, self.now, self.tickets = ranks, 0, 0
        self.agreement = Agreement(ranks, BOUND)
        self.open: list[Told] = []
        self.decided: list[Told] = []

    @rule(data=st.data(), blocks=st.integers(0, 5))
    def begin(self, data: st.DataObject, blocks: int) -> None:
        """Some ranks hold less of it, or something else."""
        self.tickets += 1
        truth = []
        for _ in range(self.ranks):
            held = list(range(data.draw(st.sampled_from((blocks, blocks, blocks // 2))) or 0))
            if held and data.draw(st.integers(0, 3)) == 0:
                held[data.draw(st.integers(0, len(held) - 1))] = 99
            truth.append(held)
        self.open.append(Told(self.tickets, self.now, truth))
        self.agreement.begin(self.tickets, blocks, self.now)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), more=st.integers(0, 5), ends=st.booleans())
    def report(self, data: st.DataObject, more: int, ends: bool) -> None:
        told = data.draw(st.sampled_from(self.open))
        rank = data.draw(st.integers(0, self.ranks - 1))
        said = told.said[rank]
        marks = told.truth[rank][len(said) : len(said) + more]
        if rank in told.ended:
            with pytest.raises(ValueError, match="has ended"):
                self.agreement.report(rank, told.ticket, marks, ends)
            return
        self.agreement.report(rank, told.ticket, marks, ends)
        said += marks
        if ends:
            told.ended.add(rank)

    @precondition(lambda self: self.decided)
    @rule(data=st.data())
    def report_late(self, data: st.DataObject) -> None:
        told = data.draw(st.sampled_from(self.decided))
        rank = data.draw(st.integers(0, self.ranks - 1))
        self.agreement.report(rank, told.ticket, [5], True)

    @rule(passed=st.integers(0, BOUND))
    def decide(self, passed: int) -> None:
        self.now += passed
        want = []
        while self.open:
            told = self.open[0]
            if len(told.ended) < self.ranks and self.now < told.at + BOUND:
                break
            want.append(told.verdict())
            self.decided.append(self.open.pop(0))
        ends = self.agreement.decided(self.now)
        assert ends == tuple(want)
        for end, told in zip(ends, self.decided[len(self.decided) - len(ends) :], strict=True):
            assert end.intact is not None
            assert told.holds(end.intact)

    @invariant()
    def every_copy_has_an_end(self) -> None:
        assert self.agreement.pending == len(self.open)


TestAgreements = Agreements.TestCase
