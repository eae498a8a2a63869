"""The round scheduler (Talaria section 3.4): what an instance does next.

A slot of a cold instance is resumed calls, ``P -> D1 -> Dfin``, and a switch to the model whose
turn is next. A hot instance is the case of one model: its slots follow each other without a
switch, each with one chunk of prefill and the decode that is owed for it.
"""

from __future__ import annotations

from alipes.instance.contract import (
    BlocksRemoved,
    BlocksStored,
    Failed,
    FailureClass,
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
from alipes.instance.scheduler.calls import CallTable
from alipes.instance.scheduler.model import ModelState
from alipes.instance.scheduler.outcome import Outcome, finished, measure, take
from alipes.instance.scheduler.phases import Phase
from alipes.instance.scheduler.rotation import Rotation
from alipes.instance.scheduler.sequence import CallState, Sequence
from alipes.instance.scheduler.slot import NANOSECONDS, Slot
from alipes.instance.scheduler.tally import Tally
from alipes.instance.scheduler.work import Progress, Resume, Run, SavedCall, Switch, Work


class RoundScheduler:
    """Decides all that one instance does. Sans-IO: the driver executes what ``next`` returns and
    reports it to ``stepped``, ``switched`` or ``resumed``; ``now`` is in ns and never falls."""

    def __init__(self, settings: InstanceSettings, reports: tuple[ModelReport, ...]) -> None:
        self._settings = settings
        self._tally = Tally()
        self._calls = CallTable(settings, reports, self._tally)
        self._active: ActiveModel | None = None
        self._phase = Phase.IDLE
        self._slot: Slot | None = None
        self._rotation = Rotation(settings, self._tally)
        self._stale = False
        self._version = 0
        self._draining = False

    # --- calls come and go ---------------------------------------------------------------------

    def submit(self, call: Submit, now: int) -> Failed | None:
        """Take a call in, or say why not."""
        if self._draining:
            self._tally.failed += 1
            return Failed(call.call_id, FailureClass.GONE, "the instance is draining")
        failed = self._calls.add(call, now)
        if failed is None:
            self._changed()
        return failed

    def cancel(self, call_id: bytes, now: int) -> bool:
        """Free all that the call holds; False when it is not (any more) here. The driver also
        tells the engine to discard a saved state."""
        if call_id not in self._calls:
            return False
        self._calls.end(self._calls[call_id], self._active)
        self._tally.cancelled += 1
        self._changed()
        return True

    def drain(self) -> None:
        """Accept nothing new; what is here goes on to its end."""
        self._draining = True

    def fail(self, call_ids: tuple[bytes, ...], reason: str, now: int) -> Progress:
        """The engine could not serve these calls: they end, the others go on."""
        calls = [self._calls[call_id] for call_id in call_ids if call_id in self._calls]
        failed = self._fail(calls, FailureClass.INTERNAL, reason)
        removed = self._active.space.take_removed() if self._active is not None else ()
        return Progress(removed=removed, failed=failed, over=True)

    def abandon(self, failure: FailureClass, reason: str) -> tuple[Failed, ...]:
        """Every call's last message, in whatever state a defect left the rest; nothing may be
        asked of the scheduler after this."""
        return self._calls.abandon(failure, reason)

    def _fail(
        self, calls: list[Sequence], failure: FailureClass, reason: str
    ) -> tuple[Failed, ...]:
        self._changed()
        return tuple(self._calls.fail(call, self._active, failure, reason) for call in calls)

    def _changed(self) -> None:
        self._stale = True
        if self._slot is not None:
            self._slot.stuck = False

    # --- what to do next -----------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        return len(self._calls) == 0

    def next(self, now: int) -> Work | None:
        """The next piece of work; None only when there is none to do."""
        models = self._calls.models
        if self._active is None and len(models) == 1:
            return self._switch(next(iter(models.values())))
        if self._stale and self._slot is not None:
            self._stale = False
            state = models[self._slot.model]
            self._rotation.replan(self._slot, state, self._calls.ready())
        # Every slot of a model with work does some; passing through this many is a defect.
        for _ in range(len(Phase) * (len(models) + 2)):
            if self._phase is Phase.IDLE:
                chosen = self._rotation.choose(self._calls.ready())
                if chosen is None:
                    return None
                if self._active is None or self._active.state is not chosen:
                    return self._switch(chosen)
                self._open(chosen, now)
            work = self._advance(now)
            if work is not None:
                return work
        raise RuntimeError(f"{len(self._calls)} calls are here and no slot serves one of them")

    def _switch(self, state: ModelState) -> Switch:
        self._phase = phases.move(self._phase, Phase.SWITCH)
        saved = self._calls.save(self._active) if self._active is not None else ()
        return Switch(state.name, saved)

    def _open(self, state: ModelState, now: int) -> None:
        self._phase = phases.move(self._phase, Phase.P)
        self._stale = False
        self._slot = self._rotation.open(state, self._calls.ready(), now)

    def _advance(self, now: int) -> Work | None:
        """Work of the open slot, or None after a move to its next phase."""
        slot, active = self._slot, self._active
        if slot is None or active is None:
            raise RuntimeError(f"phase {self._phase}: report the work before asking for more")
        if self._phase is Phase.P:
            work = self._prefill(slot, active, now)
            if work is None:
                self._phase = phases.move(self._phase, Phase.D1)
                if slot.stuck:
                    self._rotation.replan(slot, active.state, self._calls.ready())
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
        if self._rotation.alone:
            return False
        if slot.fits(active.state.chunk_seconds(chunk)):
            return True
        # A switch would undo a half-computed prompt that the host has no room for. Were that to
        # happen in every slot, it would never end; from its first token on nothing is undone.
        oldest = active.oldest()
        if oldest is None or oldest.state is not CallState.PREFILL:
            return False
        return active.space.blocks_for(oldest.length) > self._calls.host_room(active.state)

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
        elif self._worth_finishing(slot, active.state, longest * step, now):
            steps = longest
        else:
            steps = 0
        if steps <= 0:
            return None
        ids = tuple(call.call.call_id for call in batch)
        return Run(slot.model, self._phase, ids, (1,) * len(ids), min(steps, longest))

    def _worth_finishing(self, slot: Slot, state: ModelState, seconds: float, now: int) -> bool:
        """Going on until all is done costs the waiting models ``seconds`` now and saves them
        another visit to this model, its activation at least. The bound of Eq. 5 stands."""
        if self._rotation.alone or state.prefill_pending():
            return False
        return seconds <= state.profile.activation and now + seconds * NANOSECONDS <= slot.latest

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
        decoding = run.phase in phases.DECODE
        measure(run, calls, slot, active.state.profile, seconds)
        outcome = take(run, calls, sampled, active.space, now)
        # Growing may have evicted, publishing comes after it, and only then do blocks go back.
        removed = active.space.take_removed()
        stored = active.space.publish_all(calls)
        for call, _ in outcome.ended:
            self._calls.end(call, active)
        if outcome.ended:
            self._changed()
        self._count(run, outcome, decoding)
        late = slot.limit is not None and now >= slot.limit and slot.owed == 0
        return Progress(
            removed=removed,
            stored=stored,
            drawn=tuple(outcome.drawn),
            finished=tuple(finished(call, reason, now) for call, reason in outcome.ended),
            over=outcome.short or late or bool(outcome.ended) or not decoding,
        )

    def _count(self, run: Run, outcome: Outcome, decoding: bool) -> None:
        self._tally.finished += len(outcome.ended)
        self._tally.decode_tokens += len(outcome.drawn)
        self._tally.decode_tokens += sum(r is FinishReason.STOP for _, r in outcome.ended)
        if not decoding:
            self._tally.prefill_tokens += sum(run.chunks)
            self._stale = True

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
        state = self._calls.models[work.model]
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
        calls = [call for call in self._calls.all() if call.call.model == work.model]
        return Progress(removed=removed, failed=self._fail(calls, FailureClass.INTERNAL, reason))

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
                self._calls.requeue_saved(call)
        self._active.space.clear()
        return self._active.space.take_removed()

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
            self._calls.restored(call)
            if saved.call_id in lost:
                active.preempt(call)
                continue
            self._tally.resumed += 1
            stored.extend(active.space.publish(call))
        active.state.profile.restore.observe(seconds)
        return Progress(removed=active.space.take_removed(), stored=tuple(stored))

    # --- what it looks like --------------------------------------------------------------------

    def snapshot(self, now: int) -> Snapshot:
        """The state for the gateway; every one has a higher version."""
        self._version += 1
        return Snapshot(
            version=self._version,
            active_model=self._active.state.name if self._active is not None else "",
            phase=self._phase,
            round_remaining=self._rotation.remaining(self._calls.ready(), self._slot, now),
            round_length=self._rotation.plan.length,
            draining=self._draining,
            loads={state.name: state.load() for state in self._calls.models.values()},
            estimates={s.name: s.profile.estimate() for s in self._calls.models.values()},
            occupancy=self._occupancy(),
            counters=self._tally.counters(len(self._calls)),
            last_call=self._calls.last_submitted,
        )

    def _occupancy(self) -> Occupancy:
        host = (self._calls.host_used, self._settings.host_bytes)
        if self._active is None:
            return Occupancy(0, 0, 0, 0, *host)
        pool = self._active.space.pool
        return Occupancy(pool.total, pool.free, pool.cached, pool.held, *host)
