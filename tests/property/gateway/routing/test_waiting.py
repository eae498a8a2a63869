"""The queue of waiting calls against a plain list of them."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from alipes.gateway.routing.decision import CallShape
from alipes.gateway.routing.waiting import WaitingCalls

DEPTH, TIMEOUT = 4, 20
MODELS = "ab"


@dataclass
class SlowQueue:
    """``calls`` with their arrivals, in that order; ``turns`` lists the tenants with calls that
    have not begun, by model, the next one first."""

    calls: list[tuple[CallShape, int]] = field(default_factory=list)
    turns: dict[str, list[str]] = field(default_factory=lambda: {model: [] for model in MODELS})

    def of(self, model: str) -> list[CallShape]:
        return [call for call, _ in self.calls if call.model == model]

    def add(self, call: CallShape, now: int) -> None:
        self.calls.append((call, now))
        if not call.begun and call.tenant not in self.turns[call.model]:
            self.turns[call.model].append(call.tenant)

    def head(self, model: str) -> CallShape | None:
        calls = self.of(model)
        begun = [call for call in calls if call.begun]
        if begun or not calls:
            return begun[0] if begun else None
        return next(call for call in calls if call.tenant == self.turns[model][0])

    def remove(self, call: CallShape) -> None:
        self.calls = [(other, then) for other, then in self.calls if other is not call]
        if call.begun:
            return
        turns = self.turns[call.model]
        turns.remove(call.tenant)
        left = [c for c in self.of(call.model) if not c.begun and c.tenant == call.tenant]
        turns += [call.tenant] * bool(left)


class WaitingMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.now = self.count = 0
        self.depth, self.timeout = DEPTH, TIMEOUT
        self.queue = WaitingCalls(DEPTH, TIMEOUT)
        self.slow = SlowQueue()

    @rule(
        model=st.sampled_from(MODELS),
        tenant=st.sampled_from("tuv"),
        begun=st.sampled_from([False, False, True]),
    )
    def arrive(self, model: str, tenant: str, begun: bool) -> None:
        self.count += 1
        call = CallShape(bytes([self.count]), model, tenant, 1, 1, begun=begun)
        before = [other for other in self.slow.of(model) if other.begun or not begun]
        assert self.queue.ahead(call) == len(before)
        full = len(self.slow.calls) >= self.depth and not begun
        assert self.queue.full_for(call) is full
        if not full:
            self.queue.add(call, self.now)
            self.slow.add(call, self.now)

    @precondition(lambda self: self.slow.calls)
    @rule(data=st.data())
    def take_any(self, data: st.DataObject) -> None:
        call, _ = data.draw(st.sampled_from(self.slow.calls))
        self._take(call)

    @rule(model=st.sampled_from(MODELS))
    def take_head(self, model: str) -> None:
        call = self.slow.head(model)
        if call is not None:
            self._take(call)

    def _take(self, call: CallShape) -> None:
        assert self.queue.remove(call.call_id) is call
        assert self.queue.remove(call.call_id) is None
        self.slow.remove(call)

    @rule(depth=st.integers(0, 2 * DEPTH), timeout=st.integers(1, 2 * TIMEOUT))
    def configure(self, depth: int, timeout: int) -> None:
        self.depth, self.timeout = depth, timeout
        self.queue.configure(depth, timeout)
        self.wait(0)

    @rule(passed=st.integers(0, TIMEOUT))
    def wait(self, passed: int) -> None:
        self.now += passed
        over = [call for call, then in self.slow.calls if then + self.timeout <= self.now]
        assert self.queue.expire(self.now) == over
        for call in over:
            self.slow.remove(call)

    @invariant()
    def both_hold_the_same(self) -> None:
        calls = self.slow.calls
        assert len(self.queue) == len(calls)
        assert all(call.call_id in self.queue for call, _ in calls)
        depths = {model: len(self.slow.of(model)) for model in MODELS}
        assert self.queue.depths() == {model: count for model, count in depths.items() if count}
        assert all(self.queue.waits(model) == depths[model] for model in MODELS)
        earliest = min((then for _, then in calls), default=None)
        assert self.queue.next_deadline() == (None if earliest is None else earliest + self.timeout)

    @invariant()
    def the_heads_are_the_same(self) -> None:
        heads = []
        for model in MODELS:
            queued, head = self.queue.head(model), self.slow.head(model)
            assert (queued.call if queued else None) is head
            heads += [head] if head else []
        shown = self.queue.heads()
        assert sorted(queued.call.model for queued in shown) == [head.model for head in heads]
        assert [queued.arrived for queued in shown] == sorted(queued.arrived for queued in shown)


TestWaiting = WaitingMachine.TestCase
TestWaiting.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
