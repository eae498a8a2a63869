"""The round scheduler (Talaria section 3.4): what an instance does next.

A slot of a cold instance is resumed calls, ``P -> D1 -> (SP -> D)* -> Dfin``, and a switch to the
model whose turn is next. A hot instance is the case of one model: its slots follow each other
without a switch, each with one chunk of prefill and the decode that is owed for it.
"""

from __future__ import annotations

from dataclasses import replace

from alipes.instance.contract import (
    BlocksStored,
    Counters,
    Failed,
    FailureClass,
    Finished,
    InstanceSettings,
    ModelReport,
    Occupancy,
    Snapshot,
    Submit,
)
from alipes.instance.engine.protocol import (
    CopyEnd,
    HostSlabs,
    Row,
    Sampled,
    Staged,
    SwitchReport,
)
from alipes.instance.scheduler import phases
from alipes.instance.scheduler.active import ActiveModel
from alipes.instance.scheduler.calls import CallTable
from alipes.instance.scheduler.host import HostKv
from alipes.instance.scheduler.model import ModelState
from alipes.instance.scheduler.outcome import (
    Horizon,
    Outcome,
    advance,
    finished,
    horizon,
    measure,
    take,
)
from alipes.instance.scheduler.phases import Phase
from alipes.instance.scheduler.profile import Trial
from alipes.instance.scheduler.rotation import Rotation
from alipes.instance.scheduler.sequence import Sequence
from alipes.instance.scheduler.serving import Serving
from alipes.instance.scheduler.slot import NANOSECONDS
from alipes.instance.scheduler.switches import Switches
from alipes.instance.scheduler.tally import Tally
from alipes.instance.scheduler.work import (
    Checkpoint,
    Linger,
    Progress,
    Restore,
    Run,
    Switch,
    Work,
)
from alipes.instance.scheduler.yielding import give_way


class RoundScheduler:
    """Decides all that one instance does. Sans-IO: the driver executes what ``next`` returns and
    reports it to ``stepped``, ``switched`` or ``restored``, and the ends of copies to ``copied``;
    ``now`` is in ns and never falls."""

    def __init__(
        self, settings: InstanceSettings, reports: tuple[ModelReport, ...], host: HostSlabs
    ) -> None:
        self._settings = settings
        self._tally = Tally()
        self._host = HostKv(host, reports, settings.block_tokens, settings.host_kv)
        self._calls = CallTable(settings, reports, self._host, self._tally)
        self._active: ActiveModel | None = None
        self._between = Phase.IDLE
        self._serving: Serving | None = None
        self._rotation = Rotation(settings, self._tally)
        self._lingering: int | None = None
        self._switches = Switches(self._calls.models, self._tally)
        self._stale = False
        self._version = 0
        self._draining = False

    def learn(self, trial: Trial) -> None:
        """Take what was measured before the first call instead of the priors."""
        self._calls.models[trial.model].profile.learn(trial)

    # --- calls come and go ---------------------------------------------------------------------

    def submit(self, call: Submit, now: int) -> Failed | None:
        """Take a call in, or say why not."""
        if self._draining:
            self._tally.failed += 1
            return Failed(call.call_id, FailureClass.GONE, "the instance is draining")
        failed = self._calls.add(call, self._active, now)
        if failed is None:
            self._changed()
        return failed

    def cancel(self, call_id: bytes, now: int) -> Progress | None:
        """Free all that the call holds; None when it is not (any more) here. What was computed of
        it is kept as if it had finished: whoever cancels may have read enough."""
        if call_id not in self._calls:
            return None
        call, active = self._calls[call_id], self._active
        checkpoint = None
        if active is not None and call_id in active.state.resident and call.generated:
            checkpoint = self._part(active, [call], now)
        self._calls.end(call, active)
        self._tally.cancelled += 1
        self._changed()
        return self._progress(checkpoint=checkpoint)

    def drain(self) -> None:
        """Accept nothing new; what is here goes on to its end."""
        self._draining = True

    def fail(self, call_ids: tuple[bytes, ...], reason: str, now: int) -> Progress:
        """The engine could not serve these calls: they end, the others go on."""
        calls = [self._calls[call_id] for call_id in call_ids if call_id in self._calls]
        failed = self._fail(calls, FailureClass.INTERNAL, reason)
        return self._progress(failed=failed, over=True)

    def abandon(self, failure: FailureClass, reason: str) -> tuple[Failed, ...]:
        """Every call's last message as the process ends, in whatever state a defect left the rest;
        nothing may be asked of the scheduler after this."""
        return self._calls.abandon(failure, reason)

    def _fail(
        self, calls: list[Sequence], failure: FailureClass, reason: str
    ) -> tuple[Failed, ...]:
        self._changed()
        return tuple(self._calls.fail(call, self._active, failure, reason) for call in calls)

    def _part(self, active: ActiveModel, calls: list[Sequence], now: int) -> Checkpoint | None:
        """Calls of the active model end: keep their KV, and note that their sessions are out."""
        for call in calls:
            if call.call.branch and not call.call.final:
                active.state.returns.departed(call.call.branch, now)
        return active.checkpoint(calls)

    def _changed(self) -> None:
        self._stale = True
        if self._serving is not None:
            self._serving.slot.stuck = False

    # --- what to do next -----------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        return len(self._calls) == 0

    @property
    def copying(self) -> bool:
        """Whether copies to the host are under way, whose end must be reported."""
        return self._host.copying

    def next(self, now: int) -> Work | None:
        """The next piece of work; None only when there is none to do."""
        models = self._calls.models
        if self._lingering is not None:
            self._tally.lingered_seconds += (now - self._lingering) / NANOSECONDS
            self._lingering = None
        if self._active is None and len(models) == 1:
            return self._switch(next(iter(models.values())), now)
        if self._stale and self._serving is not None:
            self._stale = False
            self._serving.replan()
        # Every slot of a model with work does some; passing through this many is a defect.
        for _ in range(len(Phase) * (len(models) + 2)):
            if self._serving is None:
                chosen = self._rotation.choose(self._calls.ready())
                if chosen is None:
                    return None
                if self._active is None or self._active.state is not chosen:
                    return self._switch(chosen, now)
                self._open(self._active, now)
            elif (work := self._serving.advance(now)) is not None:
                self._lingering = now if isinstance(work, Linger) else None
                self._switches.followed_by(work, self._serving.active.state, now)
                return work
            elif self._serving.phase is Phase.IDLE:
                self._serving = None
        raise RuntimeError(f"{len(self._calls)} calls are here and no slot serves one of them")

    def _switch(self, state: ModelState, now: int) -> Switch:
        self._switches.begin(now)
        self._between = phases.move(self._between, Phase.SWITCH)
        return Switch(state.name, self._active.leave() if self._active is not None else None)

    def _open(self, active: ActiveModel, now: int) -> None:
        self._stale = False
        slot = self._rotation.open(active.state, self._calls.ready(), now)
        self._serving = Serving(slot, active, self._calls, self._rotation, self._host, self._tally)

    # --- what it led to ------------------------------------------------------------------------

    def rows(self, run: Run) -> tuple[Row, ...]:
        """The next iteration of a run; valid until it is reported."""
        calls, size = self._calls, self._settings.block_tokens
        return tuple(
            calls[call_id].row(tokens, size)
            for call_id, tokens in zip(run.call_ids, run.chunks, strict=True)
        )

    def stepped(self, run: Run, sampled: tuple[Sampled, ...], seconds: float, now: int) -> Progress:
        """One iteration of ``run`` took ``seconds`` and drew ``sampled``, in the order of rows."""
        if self._serving is None:
            raise RuntimeError("an iteration was reported while no slot is open")
        slot, active = self._serving.slot, self._serving.active
        calls = [self._calls[call_id] for call_id in run.call_ids]
        measure(run, calls, slot, active.state.profile, seconds)
        return self._led_to(run, calls, take(run, calls, sampled, active.space, now), now)

    def horizon(self, run: Run) -> Horizon:
        """How much of a decode run needs no further thought, unless a message comes."""
        if self._serving is None:
            raise RuntimeError("a run was asked about while no slot is open")
        calls = [self._calls[call_id] for call_id in run.call_ids]
        return horizon(run, calls, self._serving.slot, self._serving.active.space)

    def advanced(self, run: Run, steps: int, seconds: float, now: int) -> Progress:
        """As ``stepped`` for ``steps`` iterations at once, all within the run's ``horizon``, of
        calls whose tokens are forced; ``seconds`` in all. Nothing is told of single tokens."""
        if self._serving is None:
            raise RuntimeError("iterations were reported while no slot is open")
        slot, active = self._serving.slot, self._serving.active
        calls = [self._calls[call_id] for call_id in run.call_ids]
        measure(run, calls, slot, active.state.profile, seconds, steps)
        return self._led_to(run, calls, advance(calls, steps, active.space, now), now)

    def _led_to(self, run: Run, calls: list[Sequence], outcome: Outcome, now: int) -> Progress:
        """Publish, end and count what iterations of ``run`` did to its calls."""
        assert self._serving is not None
        slot, active = self._serving.slot, self._serving.active
        decoding = run.phase in phases.DECODE
        # Growing may have evicted, publishing comes after it, and only then do blocks go back.
        stored = active.space.publish_all(calls)
        size = self._settings.block_tokens
        checkpoint = None
        if outcome.ended:
            checkpoint = self._part(active, [call for call, _ in outcome.ended], now)
            for call, _ in outcome.ended:
                self._calls.end(call, active)
            self._changed()
        self._count(run, outcome, decoding)
        late = slot.limit is not None and now >= slot.limit and slot.owed == 0
        return self._progress(
            stored=stored,
            checkpoint=checkpoint,
            outcome=outcome,
            finished=tuple(finished(call, reason, now, size) for call, reason in outcome.ended),
            over=outcome.short or late or bool(outcome.ended) or not decoding,
        )

    def _progress(
        self,
        stored: tuple[BlocksStored, ...] = (),
        checkpoint: Checkpoint | None = None,
        outcome: Outcome | None = None,
        finished: tuple[Finished, ...] = (),
        failed: tuple[Failed, ...] = (),
        over: bool = False,
    ) -> Progress:
        """With all that has been evicted and published since the last one."""
        gone = self._active.space.take_removed() if self._active is not None else ()
        evicted, saved = self._host.take_events()
        return Progress(
            removed=gone + evicted,
            stored=stored + saved,
            drawn=tuple(outcome.drawn) if outcome is not None else (),
            finished=finished,
            failed=failed,
            checkpoint=checkpoint,
            over=over,
        )

    def _count(self, run: Run, outcome: Outcome, decoding: bool) -> None:
        self._tally.finished += len(outcome.ended)
        self._tally.decode_tokens += outcome.tokens
        if not decoding:
            self._tally.prefill_tokens += sum(run.chunks)
            self._stale = True

    def copied(self, ends: tuple[CopyEnd, ...], now: int) -> Progress:
        """These checkpoints have ended: what they copied can be restored from now on. Of a copy
        that is not whole no more than its intact beginning is published, and calls that rely on
        the rest are recomputed."""
        for end in ends:
            if end.intact is not None:
                self._requeue_torn(end)
            copying = self._host.ended(end)
            if self._active is not None:
                self._active.copied(copying)
        return self._progress()

    def _requeue_torn(self, end: CopyEnd) -> None:
        saved = [call for state in self._calls.models.values() for call in state.saved.values()]
        for call in self._host.lost(end, saved):
            self._calls.requeue_saved(call)
            self._changed()

    def uncopied(self, checkpoint: Checkpoint, now: int) -> Progress:
        """The engine could not begin the checkpoint."""
        self._changed()
        return self.copied((CopyEnd(checkpoint.ticket, intact=0),), now)

    def switched(
        self, work: Switch, report: SwitchReport, seconds_saving: float, now: int
    ) -> Progress:
        """``work.model`` is active; saving running calls and draining copies took
        ``seconds_saving``."""
        progress = self._leave()
        state = self._calls.models[work.model]
        self._switches.done(state, report, seconds_saving)
        self._active = ActiveModel(state, self._host, self._settings, self._tally)
        for call in state.waiting:
            self._active.expect(call)
        if state.has_work:
            self._open(self._active, now)
        return progress

    def unswitched(self, work: Switch, reason: str) -> Progress:
        """The engine cannot make ``work.model`` active: its calls end, and no model is active."""
        progress = self._leave()
        self._active = None
        calls = [call for call in self._calls.all() if call.call.model == work.model]
        return replace(progress, failed=self._fail(calls, FailureClass.INTERNAL, reason))

    def _leave(self) -> Progress:
        """The device blocks of the model that was active are void."""
        self._between = phases.move(self._between, Phase.IDLE)
        if self.copying:
            raise RuntimeError("a model left the device while its blocks were being copied")
        if self._active is not None:
            self._tally.switches += 1
            state = self._active.state
            for call in state.saved.values():
                call.leave_device()
            self._active.space.clear()
            for call in state.waiting:
                state.expect_host(self._host, call)
        return self._progress()

    def restored(self, work: Restore, seconds: float, now: int, failed: bool = False) -> Progress:
        """The blocks are on the device. When it ``failed`` they are not, and are computed."""
        if self._serving is None:
            raise RuntimeError("blocks were restored while no slot is open")
        slot, active = self._serving.slot, self._serving.active
        batch, stored = active.restored(failed)
        if not failed:
            active.state.profile.restore.observe((1.0, work.tokens), seconds)
        if batch.resumes:
            slot.returned += seconds
        else:
            slot.prefill_spent += seconds
            self._switches.meanwhile(seconds)
        self._stale = True
        return self._progress(stored=stored)

    def upcoming(self) -> str | None:
        """The model whose turn is next if nothing changes; None where no other has work."""
        active = self._active.state if self._active is not None else None
        return self._rotation.following(active, self._calls.ready())

    def staged(self, staged: Staged, now: int) -> Progress:
        """What switches would find on the device now: predictions go by it, and idle blocks give
        way to weights that are worth more."""
        self._switches.find(staged, self.active_model)
        if staged.target and self._serving is not None and self._active is not None:
            following = self._calls.models[staged.target]
            slot = self._serving.slot
            self._tally.yielded_blocks += give_way(self._active, following, staged, slot, now)
        return self._progress()

    # --- what it looks like --------------------------------------------------------------------

    def known(self) -> tuple[BlocksStored, ...]:
        """All blocks that can be reused now, on the device and on the host."""
        device = self._active.space.known() if self._active is not None else ()
        return device + self._host.known()

    def snapshot(self, now: int) -> Snapshot:
        """The state for the gateway; every one has a higher version."""
        self._version += 1
        slot = self._serving.slot if self._serving is not None else None
        return Snapshot(
            version=self._version,
            active_model=self.active_model,
            phase=self._phase,
            round_remaining=self._rotation.remaining(self._calls.ready(), slot, now),
            round_length=self._rotation.plan.length,
            draining=self._draining,
            loads={state.name: state.load() for state in self._calls.models.values()},
            estimates={s.name: s.profile.estimate() for s in self._calls.models.values()},
            occupancy=self.occupancy(),
            counters=self.counters(),
            last_call=self._calls.last_submitted,
            staging=self._switches.state(),
        )

    @property
    def _phase(self) -> Phase:
        return self._serving.phase if self._serving is not None else self._between

    @property
    def active_model(self) -> str:
        """Empty before the first switch."""
        return self._active.state.name if self._active is not None else ""

    @property
    def device_rows(self) -> int:
        """Block rows from the lowest that calls or prefixes of the active model may be in."""
        return self._active.space.pool.highest + 1 if self._active is not None else 0

    def drawn(self, call_id: bytes) -> int:
        """Tokens that a call has drawn so far, here or before; 0 for one that is not here."""
        return self._calls[call_id].generated if call_id in self._calls else 0

    def context(self, run: Run) -> int:
        """Tokens of all calls of the run, the one to be computed next included."""
        return sum(self._calls[call_id].length for call_id in run.call_ids)

    @property
    def rounds(self) -> int:
        """How many rounds have begun."""
        return self._tally.rounds

    def counters(self) -> Counters:
        return self._tally.counters(len(self._calls), self._host)

    def occupancy(self) -> Occupancy:
        return self._host.occupancy(self._active.space.pool if self._active is not None else None)
