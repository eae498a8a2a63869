"""Which instance serves a call: Talaria Algorithm 1, sans-IO.

A call is in exactly one place from ``place`` to ``complete`` or ``released``: queued here, waiting
for an instance to show that it lives, or charged to the one instance that has it. Every method
takes ``now`` in nanoseconds; durations are float seconds. What happens depends on nothing but the
events and their times.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from msgspec import structs

from alipes.gateway.routing import choice, overload
from alipes.gateway.routing.admission import longest_call
from alipes.gateway.routing.appraisal import Appraiser
from alipes.gateway.routing.baselines import baseline
from alipes.gateway.routing.checks import Check
from alipes.gateway.routing.decision import (
    CallShape,
    Candidate,
    Completion,
    Placement,
    Reason,
    Reject,
    RouterSettings,
    RouterStatus,
    Wait,
    Why,
)
from alipes.gateway.routing.instances import SECOND, InstanceState
from alipes.gateway.routing.lateness import Lateness
from alipes.gateway.routing.leases import Lease, LeaseTable
from alipes.gateway.routing.replica import Replicas
from alipes.gateway.routing.returns import Returns
from alipes.gateway.routing.tally import Tally
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
        names = sorted({name for serving in known.values() for name in serving})
        self._instances = {name: InstanceState(name) for name in names}
        self._serving = {
            model: tuple(self._instances[name] for name in sorted(names))
            for model, names in known.items()
        }
        self._waiting = WaitingCalls(
            self._settings.queue_depth, int(self._settings.queue_timeout * SECOND)
        )
        self._lateness = Lateness(self._waiting, self._serving)
        self._placed: dict[bytes, tuple[CallShape, InstanceState]] = {}
        self._leases = LeaseTable()
        self._tally = Tally()
        self._appraiser = Appraiser(self._settings, self._leases, self._tally)
        self._returns = Returns(self._settings, self._leases, self._appraiser)
        self._replicas = Replicas(self._settings, self._appraiser.profiles)
        self._baseline = baseline(self._settings.policy)
        self._stirred = False

    def configure(self, settings: RouterSettings, now: int) -> None:
        """Go on under other settings. Times that began before last as long as these say; what has
        been learned stays, but for the pins of a policy that is another now."""
        if settings.policy != self._settings.policy:
            self._baseline = baseline(settings.policy)
        self._settings = settings
        self._waiting.configure(settings.queue_depth, int(settings.queue_timeout * SECOND))
        for part in (self._appraiser, self._returns, self._replicas):
            part.configure(settings)
        self._expire_leases(now)
        self._stirred = True

    # --- what happens to instances ---------------------------------------------------------------

    def connected(self, hello: Hello, now: int) -> tuple[bytes, ...]:
        """A link is up; what its blocks are is told anew. Calls of an earlier link to the same
        name are lost; their ids are returned, as by ``disconnected``. Raises KeyError for a name
        that is not configured."""
        lost = self.disconnected(hello.name, now)
        self._instances[hello.name].connected(hello, now)
        self._appraiser.profiles.connected(hello)
        self._waiting.bring_back()
        self._stirred = True
        return lost

    def beat(self, name: str, now: int) -> None:
        self._instances[name].beat(now)
        self._stirred = True

    def updated(self, name: str, snapshot: Snapshot, now: int) -> None:
        """A state arrived; an older version than the one known is a sign of life and no more."""
        if self._instances[name].updated(snapshot, now):
            self._appraiser.profiles.observe(name, snapshot.estimates)
        self._stirred = True

    def disconnected(self, name: str, now: int) -> tuple[bytes, ...]:
        """The link is gone, and with it leases and known blocks. Returns the ids of the calls
        that were there; the router has forgotten them, and those without a first token may be
        placed again."""
        lost = self._instances[name].disconnected()
        self._appraiser.profiles.forget(name)
        self._appraiser.directory.clear(name)
        self._leases.lost(name)
        self._stirred = True
        for call_id in lost:
            del self._placed[call_id]
        return lost

    def drain(self, name: str, now: int) -> bool:
        """No new calls there until it connects anew; False when the name is unknown."""
        if name not in self._instances:
            return False
        self._instances[name].drain()
        self._stirred = True
        return True

    # --- where blocks are ------------------------------------------------------------------------

    def stored(self, name: str, event: BlocksStored) -> None:
        """The instance has these blocks."""
        self._appraiser.directory.stored(name, event)

    def removed(self, name: str, event: BlocksRemoved) -> None:
        """The instance has these blocks no longer in this tier."""
        self._appraiser.directory.removed(name, event)

    # --- what happens to calls -------------------------------------------------------------------

    def place(self, call: CallShape, now: int) -> Placement | Wait | Reject:
        """Answer for a new call, or one that its instance lost. Raises ValueError for a call
        that is here already."""
        if any(
            call.call_id in place for place in (self._placed, self._waiting, self._returns.checks)
        ):
            raise ValueError(f"call {call.call_id.hex()} is placed or queued already")
        refusal = self._refusal(call)
        if refusal is not None:
            return refusal
        self._expire_leases(now)
        if not call.begun:
            self._tally.arrived(call.branch)
        held = self._leases.of(call.branch, now)
        self._stirred |= held is not None
        answer: Placement | Wait | Reject
        match self._returns.take(call, self._instances, now):
            case None:
                answer = self._place_anew(call, now)
            case Check(lease=lease):
                answer = Wait(call.call_id, Reason.CHECK, (), lease.instance)
            case instance:
                answer = self._return(call, instance, now)
        if not call.begun:
            self._replicas.arrived(call.model, now)
        return answer

    def _return(self, call: CallShape, instance: InstanceState, now: int) -> Placement:
        candidate = self._appraiser.cost(instance, call)
        return self._put(call, candidate, Reason.LEASE, (candidate,), now)

    def _place_anew(self, call: CallShape, now: int) -> Placement | Wait | Reject:
        if self._waiting.ahead(call) and not self._out_of_reach(call):
            return self._queue(call, Reason.BEHIND, (), now)
        candidates = self._candidates(call, now)
        placement = self._choose(call, candidates, now)
        if placement is not None:
            return placement
        return self._queue(call, choice.waits_for(candidates), candidates, now)

    def retry(self, now: int) -> list[Placement | Reject]:
        """Calls that wait here and can go now, and those that have waited too long."""
        self._expire_leases(now)
        if not self._waiting and not self._returns.checks:
            return []
        answers: list[Placement | Reject] = []
        for call in self._waiting.expire(now):
            self._stirred = True
            answers.append(self._timed_out(call, now))
        answers += self._settle_checks(now)
        due = self._lateness.next_due()
        if not self._stirred and (due is None or now < due):
            return answers
        self._stirred = False
        for model in self._lateness.turns(now):
            answers += self._retry_model(model, now)
        return answers

    def _settle_checks(self, now: int) -> list[Placement | Reject]:
        """Calls whose health check is over go back to their instance, or are placed anew: then
        one that finds no room goes on waiting, in the queue."""
        answers: list[Placement | Reject] = []
        for call, instance in self._returns.checked(self._instances, now):
            if instance is not None:
                answers.append(self._return(call, instance, now))
                continue
            answer = self._refusal(call) or self._place_anew(call, now)
            if not isinstance(answer, Wait):
                answers.append(answer)
        return answers

    def started(self, call_id: bytes, now: int) -> None:
        """The instance has begun with the call."""
        if call_id in self._placed:
            self._placed[call_id][1].started(call_id)

    def complete(self, call_id: bytes, now: int, completion: Completion) -> None:
        """The call has finished; it is released as well. Its length teaches what to expect of its
        model, and a lease holds a place for the next call of its branch. Nothing happens for a
        call that is not placed."""
        if call_id not in self._placed:
            return
        call, instance = self._placed[call_id]
        self._expire_leases(now)
        self.released(call_id, now)
        self._appraiser.finished(call.model, completion.completion_tokens)
        self._tally.finished(call, instance.name)
        self._returns.finished(call, instance, completion, now)

    def released(self, call_id: bytes, now: int) -> None:
        """The call is over, wherever it was: cancelled, failed or given up. A second time does
        nothing."""
        if self._waiting.remove(call_id) is not None:
            self._stirred = True
        self._returns.given_up(call_id)
        if call_id not in self._placed:
            return
        call, instance = self._placed.pop(call_id)
        instance.release(call_id, call.model)
        self._stirred = True

    def forget(self, branch: bytes) -> None:
        """The branch is known no longer: nothing is kept or held for it."""
        self._leases.discard(branch)
        self._tally.forget(branch)
        if self._baseline is not None:
            self._baseline.forget(branch)
        self._stirred = True

    # --- what can be asked -----------------------------------------------------------------------

    def next_wakeup(self, now: int) -> int | None:
        """When ``retry`` has something to say even if nothing happens until then: a call has
        waited too long, a lease ends that may have kept it out, its model is late, or a health
        check is over."""
        ends = [self._returns.checks.next_end(), self._waiting.next_deadline()]
        if len(self._waiting):
            ends += [self._lateness.next_due(), self._leases.next_expiry()]
        soonest = min((end for end in ends if end is not None), default=None)
        return None if soonest is None else max(now, soonest)

    def lease_of(self, branch: bytes, now: int) -> Lease | None:
        """The place that is held for the branch now."""
        return self._leases.of(branch, now)

    def longest_call(self, model: str, prompt: int = 0) -> int | None:
        """Tokens, prompt and output, of the longest call that any instance can hold, of those that
        are there if a ``prompt`` of so many fits there; None while none has told, or one has not
        and the prompt fits none of the others."""
        states = self._serving.get(model, ())
        told = {
            state.name: longest_call(state.reports[model], state.hello.block_tokens)
            for state in states
            if state.hello is not None and model in state.reports
        }
        there = max((told[s.name] for s in states if s.up and s.name in told), default=0)
        longest = there if there > prompt else max(told.values(), default=0)
        return longest if longest > prompt or len(told) == len(states) > 0 else None

    def status(self, now: int) -> RouterStatus:
        self._expire_leases(now)
        instances = tuple(i.status(self._settings, now) for i in self._instances.values())
        well = {status.name for status in instances if status.why is Why.OK}
        models = {
            model: any(i.name in well and model in i.reports for i in serving)
            for model, serving in self._serving.items()
        }
        return RouterStatus(
            all(models.values()),
            models,
            dict(
                self._returns.checks.depths()
                + Counter(self._waiting.depths())
                + self._waiting.aside()
            ),
            instances,
            self._tally.counts(),
            self._leases.counts(),
            self._lateness.status(lambda queued, at: self._candidates(queued.call, at), now),
        )

    def _expire_leases(self, now: int) -> None:
        self._stirred |= self._leases.expire(now)

    # --- decisions (Algorithm 1, lines 10 to 25) --------------------------------------------------

    def _refusal(self, call: CallShape) -> Reject | None:
        """What no waiting can mend: an unknown model, a call that no instance can hold, or
        instances that all drain."""
        if call.model not in self._serving:
            return overload.unknown(call, self._serving)
        serving = self._serving[call.model]
        return overload.too_large(call, serving) or overload.draining(call, serving)

    def _candidates(self, call: CallShape, now: int) -> tuple[Candidate, ...]:
        candidates = tuple(
            self._appraiser.candidate(instance, call, now) for instance in self._serving[call.model]
        )
        if self._baseline is not None:
            return candidates
        burst = max(1, self._waiting.waits(call.model))
        return self._replicas.screen(call.model, candidates, self._instances, burst, now)

    def _choose(
        self, call: CallShape, candidates: tuple[Candidate, ...], now: int
    ) -> Placement | None:
        best = self._best(call, candidates)
        if best is None:
            return None
        active = {i.name for i in self._serving[call.model] if i.has_active(call.model)}
        reason = choice.reason(best, candidates, active)
        return self._put(call, best, reason, candidates, now)

    def _best(self, call: CallShape, candidates: Sequence[Candidate]) -> Candidate | None:
        """By the policy, the best of the candidates that are admitted."""
        if self._baseline is not None:
            return self._baseline.choose(call, candidates, self._calls_on)
        occupied = {i.name for i in self._serving[call.model] if i.has_active()}
        return choice.least_cost(candidates, self._calls_on, occupied)

    def _calls_on(self, name: str) -> int:
        return len(self._instances[name].placed)

    def _put(
        self,
        call: CallShape,
        chosen: Candidate,
        reason: Reason,
        candidates: tuple[Candidate, ...],
        now: int,
    ) -> Placement:
        """Charge the call to the instance and count what that means."""
        instance = self._instances[chosen.instance]
        elsewhere = any(
            other is not instance
            and other.has_active(call.model)
            and other.condition(self._settings, now) is Why.OK
            for other in self._serving[call.model]
        )
        charge = self._appraiser.charge(call, chosen.device_tokens, chosen.host_tokens)
        instance.place(call.call_id, charge)
        self._placed[call.call_id] = (call, instance)
        if chosen.why is not Why.NO_ESTIMATE:
            self._appraiser.placed(call, chosen)
            self._replicas.placed(call.model, chosen)
        self._tally.placed(call, instance.name, chosen.opens, elsewhere)
        return Placement(call.call_id, instance.name, reason, candidates)

    # --- overload (line 21) -----------------------------------------------------------------------

    def _queue(
        self, call: CallShape, reason: Reason, candidates: tuple[Candidate, ...], now: int
    ) -> Wait | Reject:
        if self._waiting.full_for(call):
            return overload.overloaded(call, len(self._waiting), self._retry_after(call, now))
        self._waiting.add(call, now, aside=self._out_of_reach(call))
        return Wait(call.call_id, reason, candidates)

    def _out_of_reach(self, call: CallShape) -> bool:
        """Whether the instances that are there can never hold the call, so that it waits for one
        that is away."""
        there = [i for i in self._serving[call.model] if i.up and call.model in i.reports]
        return bool(there) and all(overload.misfit_of(instance, call) for instance in there)

    def _retry_model(self, model: str, now: int) -> list[Placement | Reject]:
        """Place calls of one model in their order until one has to go on waiting."""
        answers: list[Placement | Reject] = []
        while (queued := self._waiting.head(model)) is not None:
            refusal = self._refusal(queued.call)
            if refusal is None and self._out_of_reach(queued.call):
                self._waiting.set_aside(queued.call)
                continue
            answer = refusal or self._retry_call(queued.call, now)
            if answer is None:
                break
            answers.append(answer)
            self._waiting.remove(queued.call.call_id)
        return answers

    def _retry_call(self, call: CallShape, now: int) -> Placement | None:
        candidates = self._candidates(call, now)
        placement = self._choose(call, candidates, now)
        if placement is None and self._lateness.due(call.model) <= now:
            placement = self._overdue(call, candidates, now)
        if placement is not None:
            self._lateness.went(call.model, now)
        return placement

    def _overdue(
        self, call: CallShape, candidates: tuple[Candidate, ...], now: int
    ) -> Placement | None:
        """Where the next call of a late model goes, though there is no room for it: it waits there
        in its turn."""
        rooms = tuple(
            structs.replace(each, admitted=True) if each.why.can_wait_there else each
            for each in candidates
        )
        best = self._best(call, rooms)
        return self._put(call, best, Reason.OVERDUE, candidates, now) if best is not None else None

    def _timed_out(self, call: CallShape, now: int) -> Reject:
        conditions = {
            instance.name: instance.condition(self._settings, now)
            for instance in self._serving[call.model]
        }
        after = self._retry_after(call, now)
        return overload.timed_out(call, conditions, self._settings, after)

    def _retry_after(self, call: CallShape, now: int) -> float:
        serving, profiles = self._serving[call.model], self._appraiser.profiles
        return overload.retry_after(serving, profiles, self._settings, now)
