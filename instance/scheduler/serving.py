"""The open slot: ``P -> D1 -> (SP -> D)* -> Dfin`` over the active model (Talaria section 3.4)."""

from __future__ import annotations

from alipes.instance.contract import Started
from alipes.instance.scheduler import phases
from alipes.instance.scheduler.active import ActiveModel
from alipes.instance.scheduler.calls import CallTable
from alipes.instance.scheduler.host import HostKv
from alipes.instance.scheduler.model import ModelState
from alipes.instance.scheduler.phases import Phase
from alipes.instance.scheduler.rotation import Rotation
from alipes.instance.scheduler.sequence import CallState, Sequence
from alipes.instance.scheduler.sessions import join_sessions
from alipes.instance.scheduler.slot import NANOSECONDS, Slot
from alipes.instance.scheduler.tally import Tally
from alipes.instance.scheduler.work import Linger, Restore, Run, Work


class Serving:
    """Decides what is done in a slot, from its opening until its phase is ``IDLE``."""

    def __init__(
        self,
        slot: Slot,
        active: ActiveModel,
        calls: CallTable,
        rotation: Rotation,
        host: HostKv,
        tally: Tally,
    ) -> None:
        self.slot = slot
        self.active = active
        self.phase = phases.move(Phase.IDLE, Phase.P)
        self._calls = calls
        self._rotation = rotation
        self._host = host
        self._tally = tally
        self._chunk = active.state.settings.prefill_chunk

    def replan(self) -> None:
        """Work came, went or was done: take what the slot's share of a round is now."""
        self._rotation.replan(self.slot, self.active.state, self._calls.ready())

    def advance(self, now: int) -> Work | None:
        """The next piece of work, or None after a move to the next phase."""
        slot, active = self.slot, self.active
        work: Work | None
        if self.phase is Phase.P:
            work = self._prefill(slot, active, now)
            if work is None:
                self._end_prefill(slot, active)
        elif self.phase is Phase.SP:
            work = self._join(slot, active, now)
            if work is None:
                self._enter(Phase.D)
        elif self.phase is Phase.DFIN:
            work = self._decode(slot, active, now)
            if work is None:
                self._close(slot, active)
        elif self._sessions_come(slot, active, now):
            work = None
            self._enter(Phase.SP)
        else:
            work = self._decode(slot, active, now) or self._linger(slot, active, now)
            if work is None:
                self._enter(Phase.DFIN)
        return work

    def _enter(self, phase: Phase) -> None:
        self.phase = phases.move(self.phase, phase)

    # --- P and SP ------------------------------------------------------------------------------

    def _prefill(self, slot: Slot, active: ActiveModel, now: int) -> Work | None:
        if not slot.resumed:
            slot.resumed = True
            active.resume_saved()
            restore = active.take_restore()
            if restore is not None:
                return restore
        first: Sequence | None = None
        if slot.prefill_runs and self._rotation.alone:
            return None
        if slot.prefill_runs and not slot.fits(active.state.chunk_seconds()):
            first = self._undone_by_a_switch(slot, active)
            slot.cut = first is None
            if slot.cut:
                return None
        batch = active.prefill_batch(self._chunk, first)
        restore = active.take_restore()
        if restore is not None:
            return restore
        if not batch:
            slot.stuck = slot.prefill_runs == 0 and active.state.prefill_pending()
            if slot.stuck and self._host.copying and not active.state.residents(CallState.DECODE):
                # Copies hold the blocks that are lacking, and nothing else will give any back.
                return Linger(now + active.state.copy_ns(self._host.tokens_copying))
            return None
        return self._prefill_run(slot, batch, now)

    def _prefill_run(self, slot: Slot, batch: list[tuple[Sequence, int]], now: int) -> Run:
        return Run(
            model=slot.model,
            phase=self.phase,
            call_ids=tuple(call.call.call_id for call, _ in batch),
            chunks=tuple(tokens for _, tokens in batch),
            max_steps=1,
            started=tuple(self._started(call, now) for call, _ in batch if call.started is None),
        )

    def _undone_by_a_switch(self, slot: Slot, active: ActiveModel) -> Sequence | None:
        """The oldest call here, where its prompt is half computed and the host has no room for it.
        Were it undone in every slot, it would never end: P goes on, beyond its time, for its sake.
        From its first token on nothing is undone."""
        oldest = active.oldest()
        if oldest is None or oldest.state is not CallState.PREFILL:
            return None
        needed = active.space.blocks_for(oldest.length)
        return oldest if needed > self._host.room(slot.model) else None

    def _end_prefill(self, slot: Slot, active: ActiveModel) -> None:
        self._enter(Phase.D1)
        slot.ordinary = self._calls.taken
        if slot.stuck or slot.sessions:
            self.replan()

    def _started(self, call: Sequence, now: int) -> Started:
        call.start(now)
        call.cached_tokens = call.computed
        self._tally.cached_tokens += call.computed
        self._tally.restores += call.restored_tokens > 0
        self._tally.restored_tokens += call.restored_tokens
        queued = (now - call.arrived) / NANOSECONDS
        return Started(
            call.call.call_id, call.cached_tokens, queued, call.restored_tokens, self.phase
        )

    def _sessions_come(self, slot: Slot, active: ActiveModel, now: int) -> bool:
        """At a decode boundary: whether sessions that returned come in now. Between two times
        every decoding call gets an iteration at least."""
        if not slot.sessions or not len(active.state.waiting):
            return False
        if slot.paid <= slot.boundary and active.state.residents(CallState.DECODE):
            return False
        slot.boundary = slot.paid
        slot.joined = join_sessions(slot, active, now, self._tally)
        return bool(slot.joined)

    def _join(self, slot: Slot, active: ActiveModel, now: int) -> Restore | Run | None:
        restore = active.take_restore()
        if restore is not None:
            return restore
        calls = [call for call in slot.joined if call.state is CallState.PREFILL]
        batch = active.continue_prefill(calls, self._chunk)
        return self._prefill_run(slot, batch, now) if batch else None

    # --- decode --------------------------------------------------------------------------------

    def _decode(self, slot: Slot, active: ActiveModel, now: int) -> Run | None:
        batch = active.decode_batch()
        if not batch:
            return None
        profile = active.state.profile
        step = profile.decode_seconds(len(batch), sum(call.length for call in batch))
        longest = max(call.remaining for call in batch)
        if self.phase in phases.OPEN:
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
        return Run(slot.model, self.phase, ids, (1,) * len(ids), min(steps, longest))

    def _worth_finishing(self, slot: Slot, state: ModelState, seconds: float, now: int) -> bool:
        """Going on until all is done costs the waiting models ``seconds`` now and saves them
        another visit to this model, its activation at least. The bound of Eq. 5 stands."""
        if self._rotation.alone or state.prefill_pending():
            return False
        return seconds <= state.profile.activation and now + seconds * NANOSECONDS <= slot.latest

    def _linger(self, slot: Slot, active: ActiveModel, now: int) -> Linger | None:
        if active.state.residents(CallState.DECODE):
            return None
        until = self._rotation.linger(slot, active.state, self._calls.ready(), now)
        return Linger(until) if until is not None else None

    def _close(self, slot: Slot, active: ActiveModel) -> None:
        seconds = 0.0 if self._rotation.alone else active.state.left_over(slot)
        if seconds:
            self._tally.fell_short(slot.model, seconds)
        self._enter(Phase.IDLE)
