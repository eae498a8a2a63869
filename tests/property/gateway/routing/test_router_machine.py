"""The router against a slow, obvious model of where every call, block and lease is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from alipes.gateway.routing.decision import (
    CallShape,
    Candidate,
    Completion,
    Placement,
    Reason,
    Reject,
    RejectKind,
    RouterSettings,
    Wait,
    Why,
)
from alipes.gateway.routing.leases import LeaseCounts
from alipes.gateway.routing.overlay import without
from alipes.gateway.routing.router import Router
from alipes.instance.contract import (
    BlocksRemoved,
    BlocksStored,
    Counters,
    Estimate,
    Hello,
    Load,
    ModelReport,
    Occupancy,
    Pool,
    Snapshot,
    Targets,
    Tier,
)

SECOND = 1_000_000_000
KNOWN = {"a": ("x", "y"), "b": ("y", "z"), "c": ("z",)}
SERVES = {"x": ("a",), "y": ("a", "b"), "z": ("b", "c")}
COST = Estimate(0.01, 0.002, 1e-7, 0.03, 0.01, 1e-6, 0.4, 0.01, 1e-4, 3)
BOUND = int(Targets().round_bound * SECOND)
MAX_WAITING = 6
LIMITS = RouterSettings(queue_depth=4, queue_timeout=20.0, lease_seconds=6.0)
OTHERS = (
    LIMITS,
    RouterSettings(3, 9.0, lease_seconds=2.0, check_seconds=0.3, policy="session-sticky"),
    RouterSettings(6, 40.0, lease_seconds=9.0, check_seconds=2.0, eviction_cost=False),
    RouterSettings(1, 20.0, lease_seconds=0.0, policy="least-pressure", replica_penalty=5.0),
)
BLOCK = 64
KV_TOKENS = 100 * BLOCK
HOT = "x"
BRANCHES = {"a": (b"a1", b"a2"), "b": (b"b1",), "c": (b"",)}

names = st.sampled_from(sorted(SERVES))
models = st.sampled_from(sorted(KNOWN))
tiers = st.sampled_from(Tier)
loads = st.builds(
    Load,
    waiting=st.integers(0, 4),
    waiting_tokens=st.integers(0, 4000),
    running=st.integers(0, 4),
    running_context=st.integers(0, 4000),
    remaining_tokens=st.integers(0, 500),
)


CROWDS = (
    Load(3, 3900, 3, 300, 300),
    Load(0, 0, 2, 6000, 300),
    Load(MAX_WAITING, 60, 0, 0, 0),
    Load(MAX_WAITING - 1, 50, 1, 10, 10),
    Load(0, 0, 1, 10, 10),
)
"""No room in the round, in memory, in the queue; room for one; room."""


def keys_of(branch: bytes, tokens: int, rewritten: int = 0) -> tuple[bytes, ...]:
    """Keys of a branch's context; from block ``rewritten`` on those of another one."""
    whole = range(tokens // BLOCK)
    other = bytes([rewritten])
    return tuple(
        branch + (other if rewritten and n >= rewritten else b"\0") + bytes([n]) for n in whole
    )


@dataclass(frozen=True)
class Path:
    listed: tuple[bytes, ...]
    rewritten: int = 0

    def keys(self, kv_format: str) -> tuple[bytes, ...]:
        return self.listed


def common(one: Sequence[bytes], other: Sequence[bytes]) -> int:
    pairs = zip(one, other, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


@dataclass
class ModelLease:
    instance: str
    prefix: tuple[bytes, ...]
    expires: int


@dataclass
class ModelInstance:
    """What the slow model knows of an instance: ``sent`` calls, those ``unseen`` by the state with
    these ``loads``, and of which models some have ``ended`` that it shows."""

    told: bool = False
    up: bool = False
    draining: bool = False
    version: int = -1
    updated: int = 0
    heard: int = 0
    sent: list[bytes] = field(default_factory=list)
    unseen: set[bytes] = field(default_factory=set)
    begun: bytes | None = None
    unwell: bool = False
    loads: dict[str, Load] = field(default_factory=dict)
    ended: list[str] = field(default_factory=list)
    blocks: dict[bytes, set[Tier]] = field(default_factory=dict)

    def has(self, call: CallShape) -> tuple[int, int]:
        """Tokens of the prompt on the device and on the host."""
        device = host = 0
        assert isinstance(call.path, Path)
        for key in call.path.listed[: (call.prompt_tokens - 1) // BLOCK]:
            if not self.blocks.get(key):
                break
            device += BLOCK * (Tier.DEVICE in self.blocks[key])
            host += BLOCK * (Tier.DEVICE not in self.blocks[key])
        return device, host

    def well(self, now: int) -> bool:
        return (
            self.up
            and not self.draining
            and self.version >= 0
            and now - self.updated <= 5 * SECOND
            and now - self.heard <= 3 * SECOND
        )

    @property
    def full(self) -> bool:
        """It would refuse a call."""
        shown = {
            model: without(load, self.ended.count(model)) for model, load in self.loads.items()
        }
        waiting = sum(load.waiting for load in shown.values()) + len(self.unseen)
        return waiting >= MAX_WAITING and waiting > 0

    def alive(self, now: int) -> bool:
        """Whether a place that is held there needs no check."""
        return self.well(now) or now - self.heard <= 3 * SECOND // 2

    def hear(self, now: int) -> None:
        self.heard, self.unwell = now, False

    def shown(self, call_id: bytes) -> None:
        if call_id in self.sent:
            earlier = self.sent[: self.sent.index(call_id) + 1]
            self.unseen.difference_update(earlier)


class RouterMachine(RuleBasedStateMachine):
    @initialize(ready=st.booleans())
    def begin(self, ready: bool) -> None:
        self.now = 0
        self.calls = 0
        self.versions = 0
        self.limits = LIMITS
        self.router = Router({m: frozenset(n) for m, n in KNOWN.items()}, LIMITS)
        self.instances = {name: ModelInstance() for name in SERVES}
        self.queued: dict[bytes, tuple[CallShape, int]] = {}
        self.checks: dict[bytes, tuple[CallShape, ModelLease, int]] = {}
        self.placed: dict[bytes, tuple[CallShape, str]] = {}
        self.went: dict[str, int] = {}
        self.leases: dict[bytes, ModelLease] = {}
        self.contexts: dict[bytes, tuple[bytes, ...]] = {}
        self.installed = self.consumed = self.expired = self.discarded = 0
        if ready:
            self.everything_becomes_idle()

    # --- instances ---

    @rule(name=names)
    def connect(self, name: str) -> None:
        reports = tuple(ModelReport(m, "kv", 8192, 1, 1, 1, 100) for m in SERVES[name])
        pool = Pool.HOT if name == HOT else Pool.COLD
        hello = Hello(
            1, name, "i", pool, "fake", "cpu", 64, 4, MAX_WAITING, 512, Targets(), reports, 1
        )
        self._lose_leases(name)
        lost = self.router.connected(hello, self.now)
        self._lost(name, lost)
        self.instances[name] = ModelInstance(told=True, up=True, heard=self.now)
        self._retry()

    @rule(name=names)
    def disconnect(self, name: str) -> None:
        self._lose_leases(name)
        self._lost(name, self.router.disconnected(name, self.now))
        known = self.instances[name]
        self.instances[name] = ModelInstance(told=known.told, draining=known.draining)
        self._retry()

    def _lose_leases(self, name: str) -> None:
        for branch in [b for b, lease in self.leases.items() if lease.instance == name]:
            del self.leases[branch]
            self.discarded += 1

    def _lost(self, name: str, lost: Sequence[bytes]) -> None:
        there = {call_id for call_id, (_, on) in self.placed.items() if on == name}
        assert sorted(lost) == sorted(there)
        for call_id in lost:
            del self.placed[call_id]

    @rule(name=names)
    def beat(self, name: str) -> None:
        self.router.beat(name, self.now)
        self.instances[name].hear(self.now)
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
        known.hear(self.now)
        if version < known.version:
            return
        known.version, known.updated = version, self.now
        known.loads, known.ended = {model: load}, []
        for call_id in (last, known.begun):
            if call_id:
                known.shown(call_id)
        known.begun = None

    # --- blocks ---

    @rule(
        name=names,
        branch=st.sampled_from([b"a1", b"a2", b"b1"]),
        first=st.integers(0, 40),
        count=st.integers(1, 100),
        tier=tiers,
        stored=st.booleans(),
    )
    def blocks(
        self, name: str, branch: bytes, first: int, count: int, tier: Tier, stored: bool
    ) -> None:
        keys = keys_of(branch, 100 * BLOCK)[first : first + count]
        known = self.instances[name]
        if stored:
            self.router.stored(name, BlocksStored("a", tier, b"", keys))
        else:
            self.router.removed(name, BlocksRemoved("a", tier, keys))
        for key in keys if known.up else ():
            there = known.blocks.setdefault(key, set())
            (there.add if stored else there.discard)(tier)

    @rule(
        model=st.sampled_from("ab"),
        prompt=st.integers(1, 3000),
        which=st.integers(0, 1),
        tokens=st.integers(1, 200),
    )
    def a_turn(self, model: str, prompt: int, which: int, tokens: int) -> None:
        """What random rules seldom give: a call that finishes."""
        self.place(model, "t", prompt, tokens, which, 0, False, False)
        call_id = self.calls.to_bytes(16, "big")
        if call_id in self.placed:
            self._release(call_id, tokens)
        self._retry()

    @precondition(lambda self: self.leases)
    @rule(
        data=st.data(),
        tier=tiers,
        extra=st.integers(1, 400),
        crowd=st.none() | st.sampled_from(CROWDS),
    )
    def a_session_returns(
        self, data: st.DataObject, tier: Tier, extra: int, crowd: Load | None
    ) -> None:
        """What random blocks seldom give: the KV of a lease is all there."""
        branch = data.draw(st.sampled_from(sorted(self.leases)))
        lease = self.leases[branch]
        if crowd is not None:
            self._update(lease.instance, False, chr(branch[0]), b"", crowd)
            self._retry()
        tokens = len(lease.prefix) * BLOCK
        known = self.instances[lease.instance]
        self.router.stored(lease.instance, BlocksStored("a", tier, b"", lease.prefix))
        for key in lease.prefix:
            known.blocks.setdefault(key, set()).add(tier)
        if tokens + extra + 10 <= KV_TOKENS:
            self.place(chr(branch[0]), "t", tokens + extra, 10, 0, 0, False, False)

    @rule(
        model=models,
        crowds=st.lists(st.sampled_from(CROWDS), min_size=2, max_size=2),
        rounds=st.integers(1, 3),
    )
    def a_model_waits(self, model: str, crowds: list[Load], rounds: int) -> None:
        """What random states seldom give: no instance of a model has room, for long."""
        for name, crowd in zip(KNOWN[model], crowds, strict=False):
            self.connect(name)
            self._update(name, False, model, b"", crowd)
        for prompt in (600, 700):
            self.place(model, "t", prompt, 200, 0, 0, False, False)
        for _ in range(rounds):
            for _ in range(2):
                for name, crowd in zip(KNOWN[model], crowds, strict=False):
                    self._update(name, False, model, b"", crowd)
                self.wait(41)
            self.late_models_are_told()

    # --- calls ---

    @rule(
        model=models,
        tenant=st.sampled_from(["t", "u"]),
        prompt=st.integers(1, 7000),
        output=st.integers(1, 300),
        which=st.integers(0, 1),
        rewritten=st.sampled_from([0, 0, 1, 20]),
        final=st.sampled_from([False, False, True]),
        begun=st.sampled_from([False, False, True]),
    )
    def place(
        self,
        model: str,
        tenant: str,
        prompt: int,
        output: int,
        which: int,
        rewritten: int,
        final: bool,
        begun: bool,
    ) -> None:
        self.calls += 1
        branch = BRANCHES[model][which % len(BRANCHES[model])]
        keys = keys_of(branch, prompt, rewritten)
        known = common(keys, self.contexts.get(branch, ())) * BLOCK
        call = CallShape(
            self.calls.to_bytes(16, "big"),
            model,
            tenant,
            prompt,
            output,
            branch,
            known,
            final,
            Path(keys, rewritten),
            begun,
        )
        waiting = [other for other, _ in self.queued.values() if other.model == model]
        ahead = any(other.begun or not begun for other in waiting)
        full = len(self.queued) >= self.limits.queue_depth and not begun
        large = prompt + output > KV_TOKENS + 1
        held = None if self._refused(call) else self.leases.pop(branch, None)
        good = held is not None and self._good(held, call)
        asks = held is not None and good and self._asks(held)
        if held is not None and not asks:
            self.consumed += good
            self.discarded += not good
        answer = self.router.place(call, self.now)
        match answer:
            case Wait(reason=Reason.CHECK):
                assert asks
                assert held is not None
                assert answer.probe == held.instance
                self.checks[call.call_id] = (call, held, self.now)
            case Placement(reason=Reason.LEASE):
                assert held is not None
                assert good
                assert not asks
                assert answer.instance == held.instance != HOT
                self._took(call, answer)
            case Placement():
                assert not ahead
                assert not good or held is None or held.instance == HOT
                self._took(call, answer)
            case Wait():
                assert not full
                sticky = self.limits.policy == "session-sticky"
                assert sticky or not any(candidate.admitted for candidate in answer.candidates)
                self.queued[call.call_id] = (call, self.now)
            case Reject(kind=RejectKind.OVERLOADED):
                assert full
                assert 1 <= answer.retry_after <= self.limits.queue_timeout
            case Reject(kind=RejectKind.TOO_LARGE):
                assert large
            case Reject(kind=RejectKind.DRAINING):
                assert self._all_drain(model)
            case _:
                raise AssertionError(answer)

    def _all_drain(self, model: str) -> bool:
        states = [self.instances[name] for name in KNOWN[model]]
        return all(state.up and state.draining for state in states)

    def _refused(self, call: CallShape) -> bool:
        """No instance can hold the call, and all have told what they can; or all drain."""
        told = all(self.instances[name].told for name in KNOWN[call.model])
        large = told and call.prompt_tokens + call.max_tokens > KV_TOKENS + 1
        return large or self._all_drain(call.model)

    def _good(self, lease: ModelLease, call: CallShape) -> bool:
        known = self.instances[lease.instance]
        assert isinstance(call.path, Path)
        limit = (call.prompt_tokens - 1) // BLOCK
        shared = call.path.listed[: min(limit, common(call.path.listed, lease.prefix))]
        return (
            known.up
            and known.version >= 0
            and not known.draining
            and not known.unwell
            and not known.full
            and call.prompt_tokens + call.max_tokens <= KV_TOKENS + 1
            and bool(shared)
            and all(known.blocks.get(key) for key in shared)
        )

    def _asks(self, lease: ModelLease) -> bool:
        """The call goes to the instance of its good lease, if that still lives."""
        return lease.instance != HOT and not self.instances[lease.instance].alive(self.now)

    def _took(self, call: CallShape, placement: Placement) -> None:
        known = self.instances[placement.instance]
        assert placement.call_id == call.call_id
        assert placement.instance in KNOWN[call.model]
        if placement.reason is Reason.LEASE:
            assert known.up
            assert not known.draining
        elif placement.reason is Reason.OVERDUE:
            late = [c for c in placement.candidates if c.why in (Why.ROUND, Why.MEMORY)]
            assert self._chosen(placement) in late
            if self.limits.policy == "residency":
                assert self._chosen(placement).total == min(candidate.total for candidate in late)
                assert not any(candidate.admitted for candidate in placement.candidates)
        elif self.limits.policy != "residency":
            chosen = self._chosen(placement)
            sticky = self.limits.policy == "session-sticky"
            assert chosen.admitted or (sticky and chosen.why in (Why.ROUND, Why.MEMORY))
        else:
            self._cheapest(call, placement)
        assert call.prompt_tokens + call.max_tokens <= KV_TOKENS + 1
        known.sent.append(call.call_id)
        known.unseen.add(call.call_id)
        self.placed[call.call_id] = (call, placement.instance)

    @staticmethod
    def _chosen(placement: Placement) -> Candidate:
        return next(c for c in placement.candidates if c.instance == placement.instance)

    def _cheapest(self, call: CallShape, placement: Placement) -> None:
        chosen = self._chosen(placement)
        assert chosen.admitted
        assert chosen.total == min(c.total for c in placement.candidates if c.admitted)
        for candidate in placement.candidates:
            unfit = (Why.DOWN, Why.DRAINING, Why.NO_STATE, Why.SILENT, Why.STALE)
            well = self.instances[candidate.instance].well(self.now)
            assert (candidate.why in unfit) is not well
            if candidate.total:
                has = (candidate.device_tokens, candidate.host_tokens)
                assert has == self.instances[candidate.instance].has(call)
            if candidate.why is Why.NO_GAIN:
                assert candidate.opens
                assert any(c.admitted and not c.opens for c in placement.candidates)

    @precondition(lambda self: self.placed or self.queued or self.checks)
    @rule(data=st.data(), again=st.booleans(), tokens=st.none() | st.integers(1, 300))
    def release(self, data: st.DataObject, again: bool, tokens: int | None) -> None:
        here = [*self.placed, *self.queued, *self.checks]
        call_id = data.draw(st.sampled_from(sorted(here)))
        self._release(call_id, tokens)
        if again:
            self.router.released(call_id, self.now)
        self._retry()

    def _release(self, call_id: bytes, tokens: int | None = None) -> None:
        if tokens is not None:
            self._complete(call_id, tokens)
        self.router.released(call_id, self.now)
        self.queued.pop(call_id, None)
        self.discarded += self.checks.pop(call_id, None) is not None
        call, name = self.placed.pop(call_id, (None, ""))
        if call is not None:
            known = self.instances[name]
            known.ended += [call.model] if call_id not in known.unseen else []
            known.unseen.discard(call_id)

    def _complete(self, call_id: bytes, tokens: int) -> None:
        call, name = self.placed.get(call_id, (None, ""))
        if call is None:
            self.router.complete(call_id, self.now, Completion(tokens, b"k", BLOCK))
            return
        assert isinstance(call.path, Path)
        context = keys_of(call.branch, call.prompt_tokens + tokens, call.path.rewritten)
        prefix = context[-1] if context else b""
        self.router.complete(call_id, self.now, Completion(tokens, prefix, len(context) * BLOCK))
        self.contexts[call.branch] = context
        known = self.instances[name]
        if call.final or not call.branch or not context or known.draining or not self._tau:
            return
        self.discarded += call.branch in self.leases
        self.installed += 1
        self.leases[call.branch] = ModelLease(name, context, self.now + self._tau)

    @rule(branch=st.sampled_from([b"a1", b"a2", b"b1"]))
    def forget(self, branch: bytes) -> None:
        self.router.forget(branch)
        self.discarded += self.leases.pop(branch, None) is not None
        self._retry()

    @precondition(lambda self: self.placed)
    @rule(data=st.data())
    def start(self, data: st.DataObject) -> None:
        call_id = data.draw(st.sampled_from(sorted(self.placed)))
        self.router.started(call_id, self.now)
        self.instances[self.placed[call_id][1]].begun = call_id

    # --- time and settings ---

    @property
    def _tau(self) -> int:
        return int(self.limits.lease_seconds * SECOND)

    @property
    def _timeout(self) -> int:
        return int(self.limits.queue_timeout * SECOND)

    @property
    def _check(self) -> int:
        return int(self.limits.check_seconds * SECOND)

    @rule(limits=st.sampled_from(OTHERS))
    def configure(self, limits: RouterSettings) -> None:
        for lease in self.leases.values():
            lease.expires += int((limits.lease_seconds - self.limits.lease_seconds) * SECOND)
        self.limits = limits
        self.router.configure(limits, self.now)
        self.wait(0)

    @rule(tenths=st.integers(1, 80))
    def wait(self, tenths: int) -> None:
        self.now += tenths * SECOND // 10
        for branch in [b for b, lease in self.leases.items() if lease.expires <= self.now]:
            del self.leases[branch]
            self.expired += 1
        self._retry()

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), answer=st.booleans(), tenths=st.integers(1, 12))
    def a_session_returns_in_silence(self, data: st.DataObject, answer: bool, tenths: int) -> None:
        """What random times seldom give: the place is held where nothing was heard for long."""
        self.wait(18)
        if self.leases:
            self.a_session_returns(data, Tier.HOST, 10, None)
        self.wait(tenths)
        for _, lease, _ in [*self.checks.values()] if answer else ():
            self.beat(lease.instance)

    def _settle(self) -> tuple[set[bytes], set[bytes]]:
        """The calls whose checks are over, by whether their lease is good."""
        good, bad = set(), set()
        for call_id, (call, lease, begun) in self.checks.items():
            known = self.instances[lease.instance]
            alive = known.heard >= begun
            if not alive and self.now >= begun + self._check:
                known.unwell = True
            if alive or not known.up or known.draining or known.unwell:
                (good if self._good(lease, call) else bad).add(call_id)
        self.consumed += len(good)
        self.discarded += len(bad)
        return good, bad

    def _retry(self) -> None:
        good, bad = self._settle()
        checked = {call_id: self.checks.pop(call_id)[0] for call_id in (*good, *bad)}
        self.queued |= {call_id: (call, self.now) for call_id, call in checked.items()}
        for answer in self.router.retry(self.now):
            due = self._dues()[self.queued[answer.call_id][0].model]
            call, arrived = self.queued.pop(answer.call_id)
            if isinstance(answer, Placement):
                assert (answer.reason is Reason.LEASE) is (call.call_id in good)
                assert answer.reason is not Reason.OVERDUE or due <= self.now
                self._took(call, answer)
                if call.call_id not in checked:
                    self.went[call.model] = self.now
            elif answer.kind is RejectKind.OVERLOADED:
                assert call.call_id in bad
            elif answer.kind is RejectKind.TIMEOUT:
                assert self.now >= arrived + self._timeout
            elif answer.kind is RejectKind.DRAINING:
                assert self._all_drain(call.model)
            else:
                assert answer.kind is RejectKind.TOO_LARGE
                assert call.prompt_tokens + call.max_tokens > KV_TOKENS + 1
        assert all(self.now < arrived + self._timeout for _, arrived in self.queued.values())
        assert not good & self.queued.keys()

    def _dues(self) -> dict[str, int]:
        """When the models are late of which calls are queued."""
        came: dict[str, int] = {}
        for call, arrived in self.queued.values():
            came[call.model] = min(arrived, came.get(call.model, arrived))
        return {m: max(then, self.went.get(m, then)) + BOUND for m, then in came.items()}

    @rule()
    def everything_becomes_idle(self) -> None:
        """Liveness: with all instances idle and well, the first call in the queue goes."""
        for call_id in [*self.placed, *self.checks]:
            self._release(call_id)
        before = len(self.queued)
        for name in SERVES:
            self.connect(name)
            self._update(name, False, SERVES[name][0], b"", Load())
        self._retry()
        assert not before or len(self.queued) < before

    # --- what always holds ---

    @invariant()
    def every_call_is_in_one_place(self) -> None:
        status = self.router.status(self.now)
        counts: dict[str, int] = {}
        for call, *_ in (*self.queued.values(), *self.checks.values()):
            counts[call.model] = counts.get(call.model, 0) + 1
        assert status.queued == counts
        most = max(settings.queue_depth for settings in OTHERS)
        assert sum(not call.begun for call, _ in self.queued.values()) <= most
        for shown in status.instances:
            known = self.instances[shown.name]
            there = [on for _, on in self.placed.values() if on == shown.name]
            assert shown.placed == len(there)
            assert shown.unseen == len(known.unseen)
            assert (shown.why is Why.OK) is known.well(self.now)

    @invariant()
    def a_queued_call_has_a_wakeup(self) -> None:
        wakeup = self.router.next_wakeup(self.now)
        assert (wakeup is not None) is bool(self.queued or self.checks)
        if wakeup is not None:
            ends = [arrived + self._timeout for _, arrived in self.queued.values()]
            ends += [lease.expires for lease in self.leases.values() if self.queued]
            ends += [begun + self._check for _, _, begun in self.checks.values()]
            ends += [due for due in self._dues().values() if due > self.now]
            assert wakeup == max(self.now, min(ends))

    @invariant()
    def late_models_are_told(self) -> None:
        """No call waits for longer than a round while one of its model can go."""
        dues = {model: due for model, due in self._dues().items() if due <= self.now}
        late = self.router.status(self.now).late
        assert {each.model for each in late} == dues.keys()
        for each in late:
            waited = (self.now - dues[each.model] + BOUND) / SECOND
            waiting = sum(call.model == each.model for call, _ in self.queued.values())
            assert (each.waited, each.waiting) == (waited, waiting)
            assert tuple(each.why) == KNOWN[each.model]
            if self.limits.policy != "session-sticky":
                assert not {Why.OK, Why.ROUND, Why.MEMORY} & set(each.why.values())

    @invariant()
    def leases_are_those_of_the_model(self) -> None:
        for branch in (b"a1", b"a2", b"b1"):
            shown, known = self.router.lease_of(branch, self.now), self.leases.get(branch)
            assert (shown is None) is (known is None)
            if shown is not None and known is not None:
                assert (shown.instance, shown.expires) == (known.instance, known.expires)
        assert self.router.status(self.now).leases == LeaseCounts(
            self.installed,
            self.consumed,
            self.expired,
            self.discarded,
            len(self.leases) + len(self.checks),
        )

    def teardown(self) -> None:
        if not hasattr(self, "router"):
            return
        for call_id in [*self.placed, *self.queued, *self.checks]:
            self._release(call_id)
        for branch in (b"a1", b"a2", b"b1"):
            self.router.forget(branch)
        status = self.router.status(self.now)
        assert status.queued == {}
        assert status.leases.live == 0
        assert all(shown.placed == shown.unseen == 0 for shown in status.instances)


TestRouter = RouterMachine.TestCase
TestRouter.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
