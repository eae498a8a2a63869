"""Session-prefill (Talaria section 3.4): which returning sessions come into an open slot.

A call that does not fit is passed by later ones. Where it was time that it lacked, it is among the
first in the next P. Where it was room on the device, it ages: from then on no younger call comes in
through SP before it has, so that what ends makes room for it at last.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from alipes.instance.scheduler.active import ActiveModel
from alipes.instance.scheduler.queue import WaitingQueue
from alipes.instance.scheduler.sequence import CallState, Sequence
from alipes.instance.scheduler.slot import Slot
from alipes.instance.scheduler.tally import Tally
from alipes.instance.scheduler.work_ahead import WorkAhead


@dataclass(slots=True)
class Batch:
    """The decode batch as it will be, and what those that join it need before."""

    running: int
    context: int
    work: WorkAhead = field(default_factory=WorkAhead)

    @classmethod
    def of(cls, decoding: list[Sequence]) -> Batch:
        return cls(len(decoding), sum(call.length for call in decoding))

    def add(self, call: Sequence) -> None:
        self.running += 1
        self.context += call.length
        self.work.add_waiting(call)

    def fits_with(self, call: Sequence, slot: Slot, active: ActiveModel, now: int) -> bool:
        """Whether restoring and computing leave time for what is owed to all, the call too."""
        state = active.state
        work = replace(self.work)
        work.add_waiting(call)
        step = state.profile.decode_seconds(self.running + 1, self.context + call.length)
        seconds = work.seconds(state.profile, state.settings.prefill_chunk)
        return seconds <= slot.seconds_left(now, step)


def join_sessions(slot: Slot, active: ActiveModel, now: int, tally: Tally) -> tuple[Sequence, ...]:
    """Make those resident that come in at this decode boundary, in turn."""
    joined: list[Sequence] = []
    batch = Batch.of(active.state.residents(CallState.DECODE))
    waiting = active.state.waiting
    aged = _oldest_aged(waiting)
    for call in waiting:
        if not slot.joins(call) or (aged is not None and call.order > aged.order):
            continue
        active.expect(call)
        if not call.known:
            continue
        fits = batch.fits_with(call, slot, active, now)
        if fits and active.admit(call):
            batch.add(call)
            joined.append(call)
            aged = _oldest_aged(waiting) if call.aged else aged
            continue
        if call.parked != active.state.turn:
            call.parked = active.state.turn
            tally.sp_parked += 1
        # Those behind it pass it this once.
        call.aged = call.aged or fits
    tally.sp_admitted += len(joined)
    return tuple(joined)


def _oldest_aged(waiting: WaitingQueue) -> Sequence | None:
    return min((call for call in waiting if call.aged), key=lambda call: call.order, default=None)
