"""The round scheduler (Talaria section 3.4): whose turn it is, and what its slot does next.

Rounds are made by one rule: of the models with work, the one whose last slot is oldest is
next. So no model gets two slots while another waits for one. A hot instance is the case of one
model: its slots follow each other without a switch, each with one chunk of prefill and the
decode that is owed for it.
"""

from __future__ import annotations

import itertools

from alipes.instance.contract import (
    BlocksRemoved,
    BlocksStored,
    Drawn,
    Failed,
    FailureClass,
    Finished,
    FinishReason,
    InstanceSettings,
    ModelReport,
    Occupancy,
    Snapshot,
    Started,
    Submit,
)
from alipes.instance.engine.protocol import Row, Sampled, SwitchReport
from alipes.instance.scheduler import phases
from alipes.instance.scheduler.active import ActiveModel
from alipes.instance.scheduler.admission import invalid
from alipes.instance.scheduler.budget import Plan, plan_round
from alipes.instance.scheduler.model import ModelState
from alipes.instance.scheduler.phases import Phase
from alipes.instance.scheduler.profile import CostProfile
from alipes.instance.scheduler.queue import place
from alipes.instance.scheduler.sequence import CallState, Sequence
from alipes.instance.scheduler.slot import NANOSECONDS, Slot
from alipes.instance.scheduler.tally import Tally
from alipes.instance.scheduler.work import Progress, Resume, Run, SavedCall, Switch, Work


class RoundScheduler:
    """Decides all that one instance does. Sans-IO: the driver executes what ``next`` returns and
    reports it to ``stepped``, ``switched`` or ``resumed``; ``now`` is in ns and never falls."""

    def __init__(self, settings: InstanceSettings, reports: tuple[ModelReport, ...]) -> None:
        self._settings = settings
        self._reports = {report.name: report for report in reports}
        self._models = {
            report.name: ModelState(report, CostProfile.prior(report, settings.device))
            for report in reports
        }
        self._calls: dict[bytes, Sequence] = {}
        self._active: ActiveModel | None = None
        self._phase = Phase.IDLE
        self._slot: Slot | None = None
        self._plan = Plan(0.0, {})
        self._stale = False
        self._served: set[str] = set()
        self._turns = itertools.count(1)
        self._serials = itertools.count()
        self._version = 0
        self._last_call = b""
        self._draining = False
        self._host_used = 0
        self._tally = Tally()

    # --- calls come and go ---------------------------------------------------------------------

    def submit(self, call: Submit, now: int) -> Failed | None:
        """Take a call in, or say why not."""
        self._last_call = call.call_id
        failed = self._refuse(call)
        if failed is not None:
            self._tally.failed += 1
            return failed
        level = int(self._settings.targets.ttft * NANOSECONDS)
        order = place(now, call.priority, level, next(self._serials))
        sequence = Sequence.of(call, now, order)
        self._calls[call.call_id] = sequence
        self._models[call.model].waiting.add(sequence)
        self._changed()
        return None

    def _refuse(self, call: Submit) -> Failed | None:
        if self._draining:
            return Failed(call.call_id, FailureClass.GONE, "the instance is draining")
        if call.call_id in self._calls:
            reason = f"call id {call.call_id.hex()} is already in use"
            return Failed(call.call_id, FailureClass.INVALID, reason, "call_id")
        failed = invalid(call, self._reports, self._settings)
        if failed is not None:
            return failed
        waiting = sum(len(state.waiting) for state in self._models.values())
        if waiting < self._settings.max_waiting:
            return None
        reason = f"{waiting} calls wait here already; try again later"
        return Failed(call.call_id, FailureClass.OVERLOADED, reason)

    def cancel(self, call_id: bytes, now: int) -> bool:
        """Free all that the call holds; False when it is not (any more) here. The driver also
        tells the engine to discard a saved state."""
        call = self._calls.get(call_id)
        if call is None:
            return False
        self._end(call)
        self._tally.cancelled += 1
        return True

    def drain(self) -> None:
        """Accept nothing new; what is here goes on to its end."""
        self._draining = True

    def fail(self, call_ids: tuple[bytes, ...], reason: str, now: int) -> Progress:
        """The engine could not serve these calls: they end, the others go on."""
        calls = [self._calls[call_id] for call_id in call_ids if call_id in self._calls]
        failed = tuple(self._failed(call, FailureClass.INTERNAL, reason) for call in calls)
        return Progress(removed=self._take_removed(), failed=failed, over=True)

    def abandon(self, failure: FailureClass, reason: str) -> tuple[Failed, ...]:
        """End every call; the device is not to be used after this."""
        return tuple(self._failed(call, failure, reason) for call in list(self._calls.values()))

    def _failed(self, call: Sequence, failure: FailureClass, reason: str) -> Failed:
        self._end(call)
        self._tally.failed += 1
        return Failed(call.call.call_id, failure, reason)

    def _end(self, call: Sequence) -> None:
        state = self._models[call.call.model]
        if call.state is CallState.WAITING:
            state.waiting.remove(call)
        elif call.state is CallState.SAVED:
            del state.saved[call.call.call_id]
            self._host_used -= call.host_blocks * state.report.block_bytes
        elif self._active is not None:
            self._active.remove(call)
        call.move(CallState.ENDED)
        del self._calls[call.call.call_id]
        self._changed()

    def _changed(self) -> None:
        self._stale = True
        if self._slot is not None:
            self._slot.stuck = False

    # --- what to do next -----------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        return not self._calls

    def next(self, now: int) -> Work | None:
        """The next piece of work; None only when there is none to do."""
        if self._active is None and len(self._models) == 1:
            return self._switch(next(iter(self._models.values())))
        if self._stale and self._slot is not None:
            self._replan(self._slot)
        # Every slot of a model with work does some; passing through this many is a defect.
        for _ in range(len(Phase) * (len(self._models) + 2)):
            if self._phase is Phase.IDLE:
                state = self._choose()
                if state is None:
                    return None
                if self._active is None or self._active.state is not state:
                    return self._switch(state)
                self._open(state, now)
            work = self._advance(now)
            if work is not None:
                return work
        raise RuntimeError(f"{len(self._calls)} calls are here and no slot serves one of them")

    def _choose(self) -> ModelState | None:
        """The model with work whose last slot is oldest. A round ends when all have had one."""
        ready = [state for state in self._models.values() if state.has_work]
        if not ready:
            return None
        if all(state.name in self._served for state in ready):
            self._served.clear()
        if not self._served:
            self._tally.rounds += 1
        return min(ready, key=lambda state: state.turn)

    def _switch(self, state: ModelState) -> Switch:
        self._phase = phases.move(self._phase, Phase.SWITCH)
        saved: list[SavedCall] = []
        if self._active is not None:
            block_bytes = self._active.state.report.block_bytes
            for call in self._active.leave(self._host_room(self._active)):
                self._host_used += call.host_blocks * block_bytes
                blocks = tuple(call.blocks[: call.host_blocks])
                saved.append(SavedCall(call.call.call_id, blocks, call.computed))
        return Switch(state.name, tuple(saved))

    def _open(self, state: ModelState, now: int) -> None:
        self._phase = phases.move(self._phase, Phase.P)
        if not self._served:
            risk = self._make_plan().at_risk
            if risk is not None:
                self._tally.deadline_risk[risk] += 1
        self._served.add(state.name)
        state.turn = next(self._turns)
        plan = self._make_plan()
        self._slot = Slot(state.name, now, plan.shares[state.name], limit=None)
        self._replan(self._slot)

    def _make_plan(self) -> Plan:
        ready = [state for state in self._models.values() if state.has_work]
        settings = self._settings
        alone = len(ready) == 1
        demands = [
            state.demand(settings.prefill_chunk, settings.max_running, alone) for state in ready
        ]
        self._plan = plan_round(demands, settings.targets, settings.switch_share)
        return self._plan

    def _replan(self, slot: Slot) -> None:
        """Give the open slot its share of a round of the models that have work now."""
        self._stale = False
        share = self._make_plan().shares.get(slot.model)
        if share is not None:
            state = self._models[slot.model]
            pending = state.prefill_pending() and not slot.stuck
            slot.grant(share, bounded=pending or len(self._plan.shares) > 1)

    def _advance(self, now: int) -> Work | None:
        """Work of the open slot, or None after a move to its next phase."""
        slot, active = self._slot, self._active
        if slot is None or active is None:
            raise RuntimeError(f"phase {self._phase}: report the work before asking for more")
        if self._phase is Phase.P:
            work = self._prefill(slot, active, now)
            if work is None:
                self._phase = phases.move(self._phase, Phase.D1)
                self._replan(slot)
            return work
        run = self._decode(slot, active, now)
        if run is None and self._phase is Phase.D1:
            self._phase = phases.move(self._phase, Phase.DFIN)
        elif run is None:
            self._phase = phases.move(self._phase, Phase.IDLE)
            self._slot = None
        return run

    def _prefill(self, slot: Slot, active: ActiveModel, now: int) -> Resume | Run | None:
        if not slot.restored:
            slot.restored = True
            restored = active.restore_batch()
            if restored:
                return Resume(
                    tuple(SavedCall(c.call.call_id, tuple(c.blocks), c.computed) for c in restored)
                )
        chunk = self._settings.prefill_chunk
        if slot.prefill_runs and not self._prefill_goes_on(slot, active, chunk):
            return None
        batch = active.prefill_batch(chunk)
        if not batch:
            slot.stuck = slot.prefill_runs == 0 and active.state.prefill_pending()
            return None
        return Run(
            model=slot.model,
            phase=self._phase,
            call_ids=tuple(call.call.call_id for call, _ in batch),
            chunks=tuple(tokens for _, tokens in batch),
            max_steps=1,
            started=tuple(self._started(call, now) for call, _ in batch if call.started is None),
        )

    def _prefill_goes_on(self, slot: Slot, active: ActiveModel, chunk: int) -> bool:
        if len(self._plan.shares) == 1:
            return False
        if slot.fits(active.state.chunk_seconds(chunk)):
            return True
        # A switch would undo a half-computed prompt that the host has no room for. Were that to
        # happen in every slot, it would never end; from its first token on nothing is undone.
        oldest = active.oldest()
        if oldest is None or oldest.state is not CallState.PREFILL:
            return False
        return active.space.blocks_for(oldest.length) > self._host_room(active)

    def _host_room(self, active: ActiveModel) -> int:
        """Blocks of the active model that could be saved now."""
        free = self._settings.host_bytes - self._host_used
        return max(0, free) // active.state.report.block_bytes

    def _started(self, call: Sequence, now: int) -> Started:
        call.start(now)
        call.cached_tokens = call.computed
        self._tally.cached_tokens += call.computed
        queued = (now - call.arrived) / NANOSECONDS
        return Started(call.call.call_id, call.cached_tokens, queued)

    def _decode(self, slot: Slot, active: ActiveModel, now: int) -> Run | None:
        batch = active.decode_batch()
        if not batch:
            return None
        profile = active.state.profile
        step = profile.decode_seconds(len(batch), sum(call.length for call in batch))
        longest = max(call.remaining for call in batch)
        if self._phase is Phase.D1:
            steps = slot.steps_left(now, step, longest)
        elif slot.owed:
            steps = slot.owed
        elif self._worth_finishing(active.state, longest * step):
            steps = longest
        else:
            steps = 0
        if steps <= 0:
            return None
        ids = tuple(call.call.call_id for call in batch)
        return Run(slot.model, self._phase, ids, (1,) * len(ids), min(steps, longest))

    def _worth_finishing(self, state: ModelState, seconds: float) -> bool:
        """Going on until all is done costs the waiting models ``seconds`` now and saves them
        another visit to this model, its activation at least."""
        others_wait = len(self._plan.shares) > 1
        return others_wait and seconds <= state.profile.activation and not state.prefill_pending()

    # --- what it led to ------------------------------------------------------------------------

    def rows(self, run: Run) -> tuple[Row, ...]:
        """The next iteration of a run; valid until it is reported."""
        calls = self._calls
        return tuple(
            calls[call_id].row(tokens)
            for call_id, tokens in zip(run.call_ids, run.chunks, strict=True)
        )

    def stepped(self, run: Run, sampled: tuple[Sampled, ...], seconds: float, now: int) -> Progress:
        """One iteration of ``run`` took ``seconds`` and drew ``sampled``, in the order of rows."""
        slot, active = self._slot, self._active
        if slot is None or active is None:
            raise RuntimeError("an iteration was reported while no slot is open")
        calls = [self._calls[call_id] for call_id in run.call_ids]
        self._measure(run, calls, slot, active, seconds)
        drawn, ended, over = self._take(run, calls, sampled, active, now)
        removed = active.space.take_removed()
        stored = [event for call in calls for event in active.space.publish(call)]
        finished = tuple(self._finish(call, reason, now) for call, reason in ended)
        late = slot.limit is not None and now >= slot.limit and slot.owed == 0
        return Progress(
            removed=removed,
            stored=tuple(stored),
            drawn=tuple(drawn),
            finished=finished,
            over=over or late or bool(finished) or run.phase not in phases.DECODE,
        )

    def _measure(
        self, run: Run, calls: list[Sequence], slot: Slot, active: ActiveModel, seconds: float
    ) -> None:
        profile = active.state.profile
        if run.phase in phases.DECODE:
            slot.paid += 1
            context = sum(call.length for call in calls)
            profile.decode.observe((1.0, len(calls), context), seconds)
            return
        self._stale = True
        slot.prefill_runs += 1
        slot.prefill_spent += seconds
        tokens = sum(run.chunks)
        positions = sum(n * (call.computed + n) for call, n in zip(calls, run.chunks, strict=True))
        profile.prefill.observe((1.0, tokens, positions), seconds)
        self._tally.prefill_tokens += tokens
        for call in calls:
            call.prefill_seconds += seconds

    def _take(
        self,
        run: Run,
        calls: list[Sequence],
        sampled: tuple[Sampled, ...],
        active: ActiveModel,
        now: int,
    ) -> tuple[list[Drawn], list[tuple[Sequence, FinishReason]], bool]:
        """Advance the calls; True when one lacks a block for its next position."""
        drawn: list[Drawn] = []
        ended: list[tuple[Sequence, FinishReason]] = []
        short = False
        results = iter(sampled)
        for call, tokens in zip(calls, run.chunks, strict=True):
            call.computed += tokens
            if call.computed < call.length:
                continue
            result = next(results, None)
            if result is None or result.call_id != call.call.call_id:
                raise RuntimeError(f"the engine drew nothing for call {call.call.call_id.hex()}")
            reason = call.append(result.token, now)
            self._tally.decode_tokens += 1
            if reason is not FinishReason.STOP:
                drawn.append(Drawn(result.call_id, result.token, result.logprob, result.top))
            if reason is not None:
                ended.append((call, reason))
                continue
            if call.state is CallState.PREFILL:
                call.move(CallState.DECODE)
            short = not active.space.grow(call, call.length) or short
        return drawn, ended, short

    def _finish(self, call: Sequence, reason: FinishReason, now: int) -> Finished:
        self._end(call)
        self._tally.finished += 1
        started = call.started if call.started is not None else now
        first = call.first_token if call.first_token is not None else now
        stop_id = int(call.history[call.length - 1]) if reason is FinishReason.STOP else None
        return Finished(
            call_id=call.call.call_id,
            reason=reason,
            stop_id=stop_id,
            prompt_tokens=call.prompt_tokens,
            cached_tokens=call.cached_tokens,
            completion_tokens=call.generated,
            queued=(started - call.arrived) / NANOSECONDS,
            prefill=call.prefill_seconds,
            decode=(now - first) / NANOSECONDS,
        )

    def switched(
        self,
        work: Switch,
        report: SwitchReport,
        seconds_saving: float,
        now: int,
        lost: tuple[bytes, ...] = (),
    ) -> Progress:
        """``work.model`` is active. ``lost`` calls could not be saved: they are recomputed."""
        removed = self._left(work, lost)
        state = self._models[work.model]
        seconds = report.seconds + seconds_saving
        state.profile.switch.observe(seconds)
        self._tally.switch_seconds += seconds
        self._activate(state)
        if state.has_work:
            self._open(state, now)
        else:
            self._phase = phases.move(self._phase, Phase.IDLE)
        return Progress(removed=removed)

    def unswitched(self, work: Switch, reason: str, lost: tuple[bytes, ...] = ()) -> Progress:
        """The engine cannot make ``work.model`` active: its calls end, and no model is active."""
        removed = self._left(work, lost)
        self._active = None
        self._phase = phases.move(self._phase, Phase.IDLE)
        calls = [call for call in self._calls.values() if call.call.model == work.model]
        failed = tuple(self._failed(call, FailureClass.INTERNAL, reason) for call in calls)
        return Progress(removed=removed, failed=failed)

    def _activate(self, state: ModelState) -> None:
        settings = self._settings
        self._active = ActiveModel(state, settings.block_tokens, settings.max_running, self._tally)

    def _left(self, work: Switch, lost: tuple[bytes, ...]) -> tuple[BlocksRemoved, ...]:
        """The device blocks of the model that was active are void."""
        if self._active is None:
            return ()
        self._tally.switches += 1
        for saved in work.save:
            call = self._calls[saved.call_id]
            call.blocks = []
            call.published = 0
            if saved.call_id in lost:
                self._requeue_saved(call)
        self._active.space.clear()
        return self._active.space.take_removed()

    def _requeue_saved(self, call: Sequence) -> None:
        state = self._models[call.call.model]
        del state.saved[call.call.call_id]
        self._host_used -= call.host_blocks * state.report.block_bytes
        call.computed = 0
        call.move(CallState.WAITING)
        state.waiting.add(call)
        self._tally.preempted += 1

    def resumed(
        self, work: Resume, seconds: float, now: int, lost: tuple[bytes, ...] = ()
    ) -> Progress:
        """The calls are on the device again; ``lost`` ones were not, and are recomputed."""
        active = self._active
        if active is None:
            raise RuntimeError("calls were resumed while no model is active")
        stored: list[BlocksStored] = []
        for saved in work.calls:
            call = self._calls[saved.call_id]
            self._host_used -= call.host_blocks * active.state.report.block_bytes
            if saved.call_id in lost:
                active.preempt(call)
                continue
            self._tally.resumed += 1
            stored.extend(active.space.publish(call))
        active.state.profile.restore.observe(seconds)
        return Progress(removed=active.space.take_removed(), stored=tuple(stored))

    def _take_removed(self) -> tuple[BlocksRemoved, ...]:
        return self._active.space.take_removed() if self._active is not None else ()

    # --- what it looks like --------------------------------------------------------------------

    def snapshot(self, now: int) -> Snapshot:
        """The state for the gateway; every one has a higher version."""
        self._version += 1
        return Snapshot(
            version=self._version,
            active_model=self._active.state.name if self._active is not None else "",
            phase=self._phase,
            round_remaining=self._round_remaining(now),
            round_length=self._plan.length,
            draining=self._draining,
            loads={state.name: state.load() for state in self._models.values()},
            estimates={s.name: s.profile.estimate() for s in self._models.values()},
            occupancy=self._occupancy(),
            counters=self._tally.counters(len(self._calls)),
            last_call=self._last_call,
        )

    def _round_remaining(self, now: int) -> float:
        seconds = 0.0
        for state in self._models.values():
            share = self._plan.shares.get(state.name)
            if share is not None and state.has_work and state.name not in self._served:
                seconds += share.seconds + state.profile.activation
        if self._slot is not None and self._slot.limit is not None:
            seconds += max(0.0, (self._slot.limit - now) / NANOSECONDS)
        return seconds

    def _occupancy(self) -> Occupancy:
        host = (self._host_used, self._settings.host_bytes)
        if self._active is None:
            return Occupancy(0, 0, 0, 0, *host)
        pool = self._active.space.pool
        return Occupancy(pool.total, pool.free, pool.cached, pool.held, *host)
