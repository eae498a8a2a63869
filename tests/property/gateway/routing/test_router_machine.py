"""The router against a slow, obvious model of where every call is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from alipes.gateway.routing.decision import (
    CallShape,
    Completion,
    Placement,
    Reject,
    RejectKind,
    RouterSettings,
    Wait,
    Why,
)
from alipes.gateway.routing.router import Router
from alipes.instance.contract import (
    Counters,
    Estimate,
    Hello,
    Load,
    ModelReport,
    Occupancy,
    Pool,
    Snapshot,
    Targets,
)

SECOND = 1_000_000_000
KNOWN = {"a": ("x", "y"), "b": ("y", "z"), "c": ("z",)}
SERVES = {"x": ("a",), "y": ("a", "b"), "z": ("b", "c")}
COST = Estimate(0.01, 0.002, 1e-7, 0.03, 0.01, 1e-6, 0.4, 0.0, 0.0, 3)
LIMITS = RouterSettings(queue_depth=4, queue_timeout=20.0)
KV_TOKENS = 100 * 64

names = st.sampled_from(sorted(SERVES))
models = st.sampled_from(sorted(KNOWN))
loads = st.builds(
    Load,
    waiting=st.integers(0, 4),
    waiting_tokens=st.integers(0, 4000),
    running=st.integers(0, 4),
    running_context=st.integers(0, 4000),
    remaining_tokens=st.integers(0, 500),
)


@dataclass
class ModelInstance:
    """What the slow model knows of an instance; ``sent`` lists (call, still unseen, live)."""

    up: bool = False
    draining: bool = False
    version: int = -1
    updated: int = 0
    heard: int = 0
    sent: list[bytes] = field(default_factory=list)
    unseen: set[bytes] = field(default_factory=set)
    begun: bytes | None = None

    def well(self, now: int) -> bool:
        return (
            self.up
            and not self.draining
            and self.version >= 0
            and now - self.updated <= 5 * SECOND
            and now - self.heard <= 3 * SECOND
        )

    def shown(self, call_id: bytes) -> None:
        if call_id in self.sent:
            earlier = self.sent[: self.sent.index(call_id) + 1]
            self.unseen.difference_update(earlier)


class RouterMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.now = 0
        self.calls = 0
        self.versions = 0
        self.router = Router({m: frozenset(n) for m, n in KNOWN.items()}, LIMITS)
        self.instances = {name: ModelInstance() for name in SERVES}
        self.queued: dict[bytes, tuple[CallShape, int]] = {}
        self.placed: dict[bytes, tuple[CallShape, str]] = {}

    # --- instances ---

    @rule(name=names)
    def connect(self, name: str) -> None:
        reports = tuple(ModelReport(m, "kv", 8192, 1, 1, 1, 100) for m in SERVES[name])
        hello = Hello(1, name, "i", Pool.COLD, "fake", "cpu", 64, 4, 6, 512, Targets(), reports, 1)
        lost = self.router.connected(hello, self.now)
        self._lost(name, lost)
        self.instances[name] = ModelInstance(up=True, heard=self.now)
        self._retry()

    @rule(name=names)
    def disconnect(self, name: str) -> None:
        self._lost(name, self.router.disconnected(name, self.now))
        self.instances[name] = ModelInstance(draining=self.instances[name].draining)
        self._retry()

    def _lost(self, name: str, lost: Sequence[bytes]) -> None:
        there = {call_id for call_id, (_, on) in self.placed.items() if on == name}
        assert sorted(lost) == sorted(there)
        for call_id in lost:
            del self.placed[call_id]

    @rule(name=names)
    def beat(self, name: str) -> None:
        self.router.beat(name, self.now)
        self.instances[name].heard = self.now
        self._retry()

    @rule(name=names)
    def drain(self, name: str) -> None:
        assert self.router.drain(name, self.now)
        self.instances[name].draining = True
        self._retry()

    @rule(name=names, old=st.booleans(), data=st.data(), load=loads)
    def update(self, name: str, old: bool, data: st.DataObject, load: Load) -> None:
        model = data.draw(st.sampled_from(SERVES[name]))
        last = data.draw(st.sampled_from([b"", *self.instances[name].sent]))
        self._update(name, old, model, last, load)
        self._retry()

    def _update(self, name: str, old: bool, model: str, last: bytes, load: Load) -> None:
        self.versions += 1
        known = self.instances[name]
        version = known.version - 1 if old and known.version > 0 else self.versions
        costs = dict.fromkeys(SERVES[name], COST)
        occupancy = Occupancy(100, 100, 0, 0, 0, 0)
        state = Snapshot(
            version, model, "P", 0.5, 1, False, {model: load}, costs, occupancy, Counters(), last
        )
        self.router.updated(name, state, self.now)
        if not known.up:
            return
        known.heard = self.now
        if version < known.version:
            return
        known.version, known.updated = version, self.now
        for call_id in (last, known.begun):
            if call_id:
                known.shown(call_id)
        known.begun = None

    # --- calls ---

    @rule(
        model=models,
        tenant=st.sampled_from(["t", "u"]),
        prompt=st.integers(1, 7000),
        output=st.integers(1, 300),
    )
    def place(self, model: str, tenant: str, prompt: int, output: int) -> None:
        self.calls += 1
        call = CallShape(self.calls.to_bytes(16, "big"), model, tenant, prompt, output)
        ahead = any(other.model == model for other, _ in self.queued.values())
        full = len(self.queued) >= LIMITS.queue_depth
        answer = self.router.place(call, self.now)
        match answer:
            case Placement():
                assert not ahead
                self._took(call, answer)
            case Wait():
                assert not full
                assert all(not candidate.admitted for candidate in answer.candidates)
                self.queued[call.call_id] = (call, self.now)
            case Reject(kind=RejectKind.OVERLOADED):
                assert full
                assert 1 <= answer.retry_after <= LIMITS.queue_timeout
            case Reject(kind=RejectKind.TOO_LARGE):
                assert prompt + output > KV_TOKENS + 1
            case Reject(kind=RejectKind.DRAINING):
                assert self._all_drain(model)
            case _:
                raise AssertionError(answer)

    def _all_drain(self, model: str) -> bool:
        states = [self.instances[name] for name in KNOWN[model]]
        return all(state.up and state.draining for state in states)

    def _took(self, call: CallShape, placement: Placement) -> None:
        known = self.instances[placement.instance]
        assert placement.call_id == call.call_id
        assert placement.instance in KNOWN[call.model]
        assert known.well(self.now)
        assert call.prompt_tokens + call.max_tokens <= KV_TOKENS + 1
        chosen = next(c for c in placement.candidates if c.instance == placement.instance)
        assert chosen.admitted
        assert chosen.total == min(c.total for c in placement.candidates if c.admitted)
        for candidate in placement.candidates:
            unfit = (Why.DOWN, Why.DRAINING, Why.NO_STATE, Why.SILENT, Why.STALE)
            well = self.instances[candidate.instance].well(self.now)
            assert (candidate.why in unfit) is not well
        known.sent.append(call.call_id)
        known.unseen.add(call.call_id)
        self.placed[call.call_id] = (call, placement.instance)

    @precondition(lambda self: self.placed or self.queued)
    @rule(data=st.data(), again=st.booleans(), tokens=st.none() | st.integers(1, 300))
    def release(self, data: st.DataObject, again: bool, tokens: int | None) -> None:
        call_id = data.draw(st.sampled_from(sorted({**self.placed, **self.queued})))
        self._release(call_id, tokens)
        if again:
            self.router.released(call_id, self.now)
        self._retry()

    def _release(self, call_id: bytes, tokens: int | None = None) -> None:
        if tokens is not None:
            self.router.complete(call_id, self.now, Completion(tokens))
        self.router.released(call_id, self.now)
        self.queued.pop(call_id, None)
        _, name = self.placed.pop(call_id, (None, ""))
        if name:
            self.instances[name].unseen.discard(call_id)

    @precondition(lambda self: self.placed)
    @rule(data=st.data())
    def start(self, data: st.DataObject) -> None:
        call_id = data.draw(st.sampled_from(sorted(self.placed)))
        self.router.started(call_id, self.now)
        self.instances[self.placed[call_id][1]].begun = call_id

    # --- time ---

    @rule(tenths=st.integers(1, 80))
    def wait(self, tenths: int) -> None:
        self.now += tenths * SECOND // 10
        self._retry()

    def _retry(self) -> None:
        for answer in self.router.retry(self.now):
            call, arrived = self.queued.pop(answer.call_id)
            if isinstance(answer, Placement):
                self._took(call, answer)
            elif answer.kind is RejectKind.TIMEOUT:
                assert self.now >= arrived + LIMITS.queue_timeout * SECOND
            elif answer.kind is RejectKind.DRAINING:
                assert self._all_drain(call.model)
            else:
                assert answer.kind is RejectKind.TOO_LARGE
                assert call.prompt_tokens + call.max_tokens > KV_TOKENS + 1
        deadline = LIMITS.queue_timeout * SECOND
        assert all(self.now < arrived + deadline for _, arrived in self.queued.values())

    @rule()
    def everything_becomes_idle(self) -> None:
        """Liveness: with all instances idle and well, the first call in the queue goes."""
        for call_id in list(self.placed):
            self._release(call_id)
        for name in SERVES:
            self.connect(name)
            self._update(name, False, SERVES[name][0], b"", Load())
        before = len(self.queued)
        self._retry()
        assert not before or len(self.queued) < before

    # --- what always holds ---

    @invariant()
    def every_call_is_in_one_place(self) -> None:
        status = self.router.status(self.now)
        counts: dict[str, int] = {}
        for call, _ in self.queued.values():
            counts[call.model] = counts.get(call.model, 0) + 1
        assert status.queued == counts
        assert len(self.queued) <= LIMITS.queue_depth
        for shown in status.instances:
            known = self.instances[shown.name]
            there = [on for _, on in self.placed.values() if on == shown.name]
            assert shown.placed == len(there)
            assert shown.unseen == len(known.unseen)
            assert (shown.why is Why.OK) is known.well(self.now)

    @invariant()
    def a_queued_call_has_a_wakeup(self) -> None:
        wakeup = self.router.next_wakeup(self.now)
        assert (wakeup is not None) is bool(self.queued)
        if wakeup is not None:
            first = min(arrived for _, arrived in self.queued.values())
            assert wakeup == max(self.now, first + int(LIMITS.queue_timeout * SECOND))

    def teardown(self) -> None:
        if not hasattr(self, "router"):
            return
        for call_id in [*self.placed, *self.queued]:
            self._release(call_id)
        status = self.router.status(self.now)
        assert status.queued == {}
        assert all(shown.placed == shown.unseen == 0 for shown in status.instances)


TestRouter = RouterMachine.TestCase
TestRouter.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
