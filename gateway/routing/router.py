"""Which instance serves a call: Talaria Algorithm 1 without leases, sans-IO.

A call is in exactly one place from ``place`` to ``released``: queued here, or charged to the one
instance that has it. Every method takes ``now`` in nanoseconds; durations are float seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import ceil

from alipes.gateway.routing.admission import longest_call, misfit
from alipes.gateway.routing.cost import evaluate
from alipes.gateway.routing.decision import (
    CallShape,
    Candidate,
    Completion,
    Placement,
    Reason,
    Reject,
    RejectKind,
    RouterSettings,
    RouterStatus,
    Wait,
    Why,
)
from alipes.gateway.routing.directory import BlockDirectory
from alipes.gateway.routing.instances import SECOND, InstanceState
from alipes.gateway.routing.leases import Lease, LeaseTable
from alipes.gateway.routing.overlay import Charge
from alipes.gateway.routing.predict import OutputLengths, backlog_seconds
from alipes.gateway.routing.profiles import CostProfiles
from alipes.gateway.routing.waiting import WaitingCalls
from alipes.instance.contract import BlocksRemoved, BlocksStored, Hello, Snapshot


class Router:
    """``known`` names the instances that are configured to serve each model.

    Call ``retry`` after every event: it answers for queued calls, and costs nothing when no
    room can have come free.
    """

    def __init__(
        self, known: Mapping[str, frozenset[str]], settings: RouterSettings | None = None
    ) -> None:
        self._settings = settings or RouterSettings()
        self._known = {model: tuple(sorted(names)) for model, names in known.items()}
        names = sorted({name for serving in known.values() for name in serving})
        self._instances = {name: InstanceState(name) for name in names}
        self._waiting = WaitingCalls(
            self._settings.queue_depth, int(self._settings.queue_timeout * SECOND)
        )
        self._placed: dict[bytes, tuple[CallShape, InstanceState]] = {}
        self._lengths = OutputLengths()
        self._profiles = CostProfiles()
        self._reserved: dict[str, frozenset[str]] = {}
        self._leases = LeaseTable()
        self._directory = BlockDirectory()
        self._stirred = False

    # --- what happens to instances ---------------------------------------------------------------

    def connected(self, hello: Hello, now: int) -> tuple[bytes, ...]:
        """A link is up. Calls of an earlier link to the same name are lost; their ids are
        returned, as by ``disconnected``. Raises KeyError for a name that is not configured."""
        lost = self.disconnected(hello.name, now)
        self._instances[hello.name].connected(hello, now)
        self._profiles.connected(hello)
        self._stirred = True
        return lost

    def beat(self, name: str, now: int) -> None:
        self._instances[name].beat(now)
        self._stirred = True

    def updated(self, name: str, snapshot: Snapshot, now: int) -> None:
        """A state arrived; an older version than the one known is ignored."""
        if self._instances[name].updated(snapshot, now):
            self._profiles.observe(name, snapshot.estimates)
            self._stirred = True

    def disconnected(self, name: str, now: int) -> tuple[bytes, ...]:
        """The link is gone. Returns the ids of the calls that were there; the router has
        forgotten them, and those without a first token may be placed again."""
        lost = self._instances[name].disconnected()
        self._profiles.forget(name)
        for call_id in lost:
            del self._placed[call_id]
        return lost

    def drain(self, name: str, now: int) -> bool:
        """No new calls there until it connects anew; False when the name is unknown."""
        if name not in self._instances:
            return False
        self._instances[name].drain()
        return True

    # --- what happens to calls -------------------------------------------------------------------

    def place(self, call: CallShape, now: int) -> Placement | Wait | Reject:
        """Answer for a new call, or one that its instance lost. Raises ValueError for a call
        that is here already."""
        if call.call_id in self._placed or call.call_id in self._waiting:
            raise ValueError(f"call {call.call_id.hex()} is placed or queued already")
        refusal = self._refusal(call)
        if refusal is not None:
            return refusal
        if self._waiting.waits(call.model):
            return self._queue(call, Reason.BEHIND, (), now)
        candidates = self._candidates(call, self._reserved_for(call.model), now)
        placement = self._choose(call, candidates)
        if placement is not None:
            return placement
        return self._queue(call, _waits_for(candidates), candidates, now)

    def retry(self, now: int) -> list[Placement | Reject]:
        """Queued calls that can go now, and those that have waited too long."""
        answers: list[Placement | Reject] = []
        for call in self._waiting.expire(now):
            self._stirred = True
            answers.append(self._timed_out(call, now))
        if not self._stirred:
            return answers
        self._stirred = False
        self._reserved = {}
        for queued in self._waiting.heads():
            answers += self._retry_model(queued.call.model, now)
        return answers

    def started(self, call_id: bytes, now: int) -> None:
        """The instance has begun with the call."""
        if call_id in self._placed:
            self._placed[call_id][1].started(call_id)

    def complete(self, call_id: bytes, now: int, completion: Completion) -> None:
        """The call has finished; it is released as well. Its length teaches what to expect of its
        model, and a lease holds a place for the next call of its branch."""
        if call_id not in self._placed:
            return
        call, _instance = self._placed[call_id]
        self.released(call_id, now)
        self._lengths.finished(call.model, completion.completion_tokens)

    def released(self, call_id: bytes, now: int) -> None:
        """The call is over, wherever it was: cancelled, failed or given up. A second time does
        nothing."""
        if self._waiting.remove(call_id) is not None:
            self._stirred = True
        if call_id not in self._placed:
            return
        call, instance = self._placed.pop(call_id)
        instance.release(call_id, call.model)
        self._stirred = True

    def forget(self, branch: bytes) -> None:
        """The branch is known no longer: nothing is kept or held for it."""
        self._leases.discard(branch)

    # --- where blocks are ------------------------------------------------------------------------

    def stored(self, name: str, event: BlocksStored) -> None:
        """The instance has these blocks; nothing changes when it has no link."""
        self._directory.stored(name, event)

    def removed(self, name: str, event: BlocksRemoved) -> None:
        """The instance has these blocks no longer in this tier."""
        self._directory.removed(name, event)

    # --- what can be asked -----------------------------------------------------------------------

    def next_wakeup(self, now: int) -> int | None:
        """When ``retry`` has something to say even if nothing happens until then."""
        deadline = self._waiting.next_deadline()
        return None if deadline is None else max(now, deadline)

    def lease_of(self, branch: bytes, now: int) -> Lease | None:
        """The place that is held for the branch now."""
        return self._leases.of(branch, now)

    def longest_call(self, model: str) -> int | None:
        """Tokens, prompt and output, of the longest call that any instance can hold; None while
        none has told."""
        states = (self._instances[name] for name in self._known.get(model, ()))
        told = (
            longest_call(state.reports[model], state.hello.block_tokens)
            for state in states
            if state.hello is not None and model in state.reports
        )
        return max(told, default=None)

    def status(self, now: int) -> RouterStatus:
        instances = tuple(i.status(self._settings, now) for i in self._instances.values())
        well = {status.name for status in instances if status.why is Why.OK}
        models = {
            model: any(n in well and model in self._instances[n].reports for n in names)
            for model, names in self._known.items()
        }
        queued = self._waiting.depths()
        return RouterStatus(all(models.values()), models, queued, instances)

    # --- decisions -------------------------------------------------------------------------------

    def _refusal(self, call: CallShape) -> Reject | None:
        """What no waiting can mend: an unknown model, or a call that no instance can hold."""
        if call.model not in self._known:
            known = ", ".join(sorted(self._known))
            reason = f"unknown model {call.model!r}; known: {known}"
            return Reject(call.call_id, RejectKind.UNKNOWN_MODEL, reason)
        misfits = []
        for name in self._known[call.model]:
            instance = self._instances[name]
            report = instance.reports.get(call.model)
            if instance.hello is None or report is None:
                return None
            size = instance.hello.block_tokens
            misfits.append(misfit(report, size, call.prompt_tokens, call.max_tokens))
        if not misfits or not all(misfits):
            return None
        return Reject(call.call_id, RejectKind.TOO_LARGE, misfits[0])

    def _candidates(
        self, call: CallShape, reserved: frozenset[str], now: int
    ) -> tuple[Candidate, ...]:
        return tuple(
            self._candidate(self._instances[name], call, name in reserved, now)
            for name in self._known[call.model]
        )

    def _candidate(
        self, instance: InstanceState, call: CallShape, reserved: bool, now: int
    ) -> Candidate:
        condition = instance.condition(self._settings, now)
        if condition is not Why.OK:
            return Candidate(instance.name, why=condition)
        report, hello = instance.reports.get(call.model), instance.hello
        if report is None or hello is None:
            return Candidate(instance.name, why=Why.DOWN)
        if misfit(report, hello.block_tokens, call.prompt_tokens, call.max_tokens):
            return Candidate(instance.name, why=Why.TOO_SMALL)
        if reserved:
            return Candidate(instance.name, why=Why.RESERVED)
        return evaluate(instance, self._charge(call), self._profiles.of(instance.name))

    def _charge(self, call: CallShape) -> Charge:
        output = self._lengths.predicted(call.model, call.max_tokens)
        return Charge(call.model, call.prompt_tokens, output)

    def _choose(self, call: CallShape, candidates: tuple[Candidate, ...]) -> Placement | None:
        """The admitted candidate of least cost gets the call; equals are told apart by the
        calls they have, then by name."""
        admitted = [candidate for candidate in candidates if candidate.admitted]
        if not admitted:
            return None
        best = min(
            admitted,
            key=lambda c: (c.total, len(self._instances[c.instance].placed), c.instance),
        )
        reason = self._reason(call.model, best, candidates)
        instance = self._instances[best.instance]
        instance.place(call.call_id, self._charge(call))
        self._placed[call.call_id] = (call, instance)
        return Placement(call.call_id, best.instance, reason, candidates)

    def _reason(self, model: str, best: Candidate, candidates: Iterable[Candidate]) -> Reason:
        rivals = [c for c in candidates if c is not best]
        if not rivals:
            return Reason.ONLY
        if any(c.why.busy and 0 < c.total < best.total for c in rivals):
            return Reason.SPILL
        if not self._is_active(best, model):
            return Reason.SWITCH
        shared = any(c.admitted and self._is_active(c, model) for c in rivals)
        return Reason.LEAST_COST if shared else Reason.ACTIVE

    def _is_active(self, candidate: Candidate, model: str) -> bool:
        snapshot = self._instances[candidate.instance].snapshot
        return snapshot is not None and snapshot.active_model == model

    # --- overload --------------------------------------------------------------------------------

    def _queue(
        self, call: CallShape, reason: Reason, candidates: tuple[Candidate, ...], now: int
    ) -> Wait | Reject:
        if self._waiting.full:
            after = self._retry_after(call.model, now)
            text = f"{len(self._waiting)} calls wait already; try again in {after:.0f} s"
            return Reject(call.call_id, RejectKind.OVERLOADED, text, after)
        self._waiting.add(call, now)
        return Wait(call.call_id, reason, candidates)

    def _retry_model(self, model: str, now: int) -> list[Placement | Reject]:
        """Place calls of one model in their order until one has to go on waiting. Once that
        has waited a round's bound, no other model's calls pass it on the instances it needs."""
        answers: list[Placement | Reject] = []
        while (queued := self._waiting.head(model)) is not None:
            call = queued.call
            answer = self._refusal(call)
            if answer is None:
                candidates = self._candidates(call, self._reserved_for(model), now)
                placement = self._choose(call, candidates)
                if placement is None:
                    self._reserve(model, candidates, now - queued.arrived)
                    break
                answers.append(placement)
            else:
                answers.append(answer)
            self._waiting.remove(call.call_id)
        return answers

    def _reserve(self, model: str, candidates: Iterable[Candidate], waited: int) -> None:
        names = set()
        for candidate in candidates:
            hello = self._instances[candidate.instance].hello
            if hello is None or not candidate.why.busy or candidate.why is Why.RESERVED:
                continue
            if waited > hello.targets.gamma * hello.targets.ttft * SECOND:
                names.add(candidate.instance)
        if names:
            self._reserved[model] = frozenset(names)

    def _reserved_for(self, model: str) -> frozenset[str]:
        """Instances kept for calls of other models that have waited too long."""
        others = (names for holder, names in self._reserved.items() if holder != model)
        return frozenset().union(*others)

    def _timed_out(self, call: CallShape, now: int) -> Reject:
        after = self._retry_after(call.model, now)
        seconds = f"within {self._settings.queue_timeout:g} s"
        states = {name: self._instances[name] for name in self._known[call.model]}
        conditions = {n: state.condition(self._settings, now) for n, state in states.items()}
        if Why.OK in conditions.values():
            text = f"no instance had room {seconds}"
        else:
            listed = ", ".join(f"{name} is {why}" for name, why in conditions.items())
            text = f"no instance could take {call.model} {seconds}: {listed}"
        return Reject(call.call_id, RejectKind.TIMEOUT, text, after)

    def _retry_after(self, model: str, now: int) -> float:
        """Whole seconds, at least 1, until the first instance has served what it has; the
        queue's timeout where none can be asked."""
        backlogs = []
        for name in self._known[model]:
            instance = self._instances[name]
            shown, hello = instance.snapshot, instance.hello
            if shown is None or hello is None:
                continue
            if instance.condition(self._settings, now) is not Why.OK:
                continue
            backlogs.append(
                backlog_seconds(
                    instance.loads(),
                    self._profiles.of(name),
                    shown.active_model,
                    hello.prefill_chunk,
                    hello.max_running,
                )
            )
        seconds = min(backlogs, default=self._settings.queue_timeout)
        return float(max(1, ceil(min(seconds, self._settings.queue_timeout))))


def _waits_for(candidates: Iterable[Candidate]) -> Reason:
    return Reason.BUSY if any(c.why.busy for c in candidates) else Reason.NO_INSTANCE
