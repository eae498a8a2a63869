"""An instance on a virtual clock: ``instance/loop.py`` over cost models in place of an engine.

The scheduler is the live one, and so is the order in which it is asked and told: a message that
comes during an iteration is seen at its end, copies are reported between iterations, a state is
told four times a second at most. Only, a decode run is one event: it is cut where a message comes
or a copy ends, and reported as a whole.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from msgspec.structs import replace

from alipes.instance.contract import (
    SNAPSHOT_SECONDS,
    Cancel,
    FromInstance,
    Submit,
    Welcome,
)
from alipes.instance.engine.protocol import Sampled, SwitchReport
from alipes.instance.scheduler import phases
from alipes.instance.scheduler.rounds import RoundScheduler
from alipes.instance.scheduler.work import Checkpoint, Linger, Progress, Restore, Run, Switch
from alipes.replay.runs import MemoryRecord, SwitchRecord
from alipes.replay.sim.clock import SimulationError
from alipes.replay.sim.copier import Copier
from alipes.replay.sim.devices import Costs, Memory, Stretch, Weights
from alipes.replay.sim.timeline import Activity, Timeline

SNAPSHOT_NS: Final = int(SNAPSHOT_SECONDS * 1e9)
_ACTIVITIES: Final = {
    Run: Activity.PREFILL,
    Restore: Activity.RESTORE,
    Switch: Activity.SWITCH,
}

Emit = Callable[[str, FromInstance], None]
Message = Submit | Cancel | Welcome


class SimulatedInstance:
    """An ``Actor``. ``emit`` gets what the instance says, at the time at which it says it."""

    def __init__(
        self,
        name: str,
        scheduler: RoundScheduler,
        costs: Mapping[str, Costs],
        weights: Weights,
        memory: Memory,
        block_tokens: int,
        emit: Emit,
        timeline: Timeline | None = None,
        now: int = 0,
    ) -> None:
        """A process that begins ``now``; ``timeline`` is that of the ones before it."""
        self.name = name
        self.scheduler = scheduler
        self.timeline = timeline or Timeline(name)
        # As live, the only model of an instance is made active before its first call.
        self.wakeup: int | None = now
        self._costs = costs
        self._weights = weights
        self._memory = memory
        self._block_tokens = block_tokens
        self._emit = emit
        self._inbox: deque[Message] = deque()
        self._copier = Copier()
        self._stretch: Stretch | None = None
        self._work: Switch | Restore | Run | None = None
        self._switch: SwitchRecord | None = None
        self._saving = 0
        self._begin = now
        self._resting: Activity = Activity.IDLE
        self._told = now - SNAPSHOT_NS
        self._round = 0

    # --- messages --------------------------------------------------------------------------------

    def deliver(self, message: Message, now: int) -> None:
        """A message arrives; it is taken in when the work under way comes to an end."""
        if isinstance(message, Submit):
            busy = now - self._begin if self._work is not None else 0
            switching = busy if isinstance(self._work, Switch) else 0
            restoring = busy if isinstance(self._work, Restore) else 0
            self.timeline.sent(message.call_id, switching, restoring)
        self._inbox.append(message)
        if self._stretch is not None:
            self._cut(now)
        elif self._work is None:
            self.wakeup = now

    def refresh(self, now: int) -> None:
        """Tell the state as of ``now`` unless it was told a moment ago."""
        if now - self._told >= SNAPSHOT_NS:
            self._settle(now)
            self._tell_snapshot(now)

    # --- what befalls its process ----------------------------------------------------------------

    def stop(self, now: int) -> None:
        """Nothing is done from now on; what has ended by now is told."""
        self._settle(now)

    def go_on(self, gap: int, now: int) -> None:
        """All goes on as it was ``gap`` ns ago. Other work than decoding takes so much longer, as
        whoever times it knows of no gap."""
        if self._stretch is not None:
            self._stretch.begin += gap
            self.timeline.add(Activity.DOWN, gap)
            self._go_on()
        elif self._work is not None:
            assert self.wakeup is not None
            self.wakeup += gap
            if self._switch is not None:
                seconds = self._switch.seconds + gap / 1e9
                self._switch = replace(self._switch, seconds=seconds)
        elif self.wakeup is not None:
            self.wakeup = max(self.wakeup, now)

    def die(self, now: int) -> None:
        """The process is gone, after ``stop``."""
        spent: Activity = self._resting
        if self._stretch is not None:
            spent = Activity.DECODE
        elif self._work is not None:
            spent = _ACTIVITIES[type(self._work)]
        self.timeline.add_rest(spent, now)
        if self._round:
            self._close_round(now)
        self.timeline.process_ended()

    # --- the clock -------------------------------------------------------------------------------

    def act(self, now: int) -> None:
        """Complete what ends now and begin what is next."""
        self.wakeup = None
        if self._stretch is not None:
            self._settle(now)
        elif self._work is not None:
            self._complete(now)
        if self._stretch is not None:
            self._report_copies(now)
            self._go_on()
        elif self._work is None:
            self._decide(now)
        if self.wakeup is None and not self.scheduler.idle:
            raise self._impossible("has calls, and nothing will happen to them")

    @property
    def busy(self) -> bool:
        return self._work is not None or self._stretch is not None

    @property
    def calls(self) -> int:
        """How many were sent here and have not ended."""
        return len(self.timeline.calls)

    def check(self) -> None:
        """Raises ``SimulationError`` for a call that is nowhere, and for memory that is not."""
        calls = self.scheduler.counters().live_calls
        inbox = sum(isinstance(message, Submit) for message in self._inbox)
        if calls + inbox != self.calls:
            raise self._impossible(f"has {calls} calls and is to get {inbox} of {self.calls}")
        device = self.scheduler.occupancy()
        whole = device.free + device.cached + device.held == device.total
        least = min(device.free, device.cached, device.held, device.host_held)
        if not whole or least < 0 or not device.host_held <= device.host_used <= device.host_total:
            raise self._impossible(f"has memory that does not add up: {device}")

    def _impossible(self, problem: str) -> SimulationError:
        return SimulationError(f"instance {self.name} {problem}")

    def _decide(self, now: int) -> None:
        """Take messages in and begin the next piece of work."""
        if self._begin < now:
            self.timeline.add(self._resting, now - self._begin)
        self._resting, self._begin = Activity.IDLE, now
        while self._inbox:
            self._take(self._inbox.popleft(), now)
        self._report_copies(now)
        work = self.scheduler.next(now)
        self._watch_round(now)
        match work:
            case None:
                self.wakeup = self._copier.next_end
                self._tell_snapshot(now)
            case Linger(until=until):
                ends = self._copier.next_end
                self.wakeup = max(now + 1, until if ends is None else min(until, ends))
                self._resting = Activity.LINGER
                self._tell_snapshot(now)
            case Run():
                self._run(work, now)
            case Switch():
                self._start_switch(work, now)
            case Restore():
                self._work = work
                costs = self._costs[self.scheduler.active_model]
                self.wakeup = now + costs.restore(work.tokens)

    def _take(self, message: Message, now: int) -> None:
        match message:
            case Submit():
                failed = self.scheduler.submit(message, now)
                if failed is not None:
                    self._emit(self.name, failed)
            case Cancel(call_id=call_id):
                self.timeline.calls.pop(call_id, None)
                progress = self.scheduler.cancel(call_id, now)
                if progress is not None:
                    self._tell(progress, now)
            case Welcome():
                for stored in self.scheduler.known():
                    self._emit(self.name, stored)

    # --- runs ------------------------------------------------------------------------------------

    def _run(self, run: Run, now: int) -> None:
        for started in run.started:
            times = self.timeline.calls[started.call_id]
            times.phase = started.phase
            times.cold = started.cached_tokens == 0
            self._emit(self.name, started)
        if run.phase in phases.DECODE:
            context = self.scheduler.context(run)
            self._stretch = Stretch(run, now, context, self._costs[run.model])
            self._go_on()
            return
        costs = self._costs[run.model]
        rows = self.scheduler.rows(run)
        # All of them begin with this iteration, and it is that which takes longer.
        cold = sum(map(self._take_cold, run.call_ids)) > 0
        duration = costs.prefill([(len(row.tokens), row.start) for row in rows])
        self._work, self.wakeup = run, now + duration + (costs.cold if cold else 0)

    def _take_cold(self, call_id: bytes) -> bool:
        times = self.timeline.calls[call_id]
        cold, times.cold = times.cold, False
        return cold

    def _go_on(self) -> None:
        """Plan the stretch as far as nothing is to be decided, and look up after the iteration in
        which a copy ends."""
        stretch = self._stretch
        assert stretch is not None
        horizon = self.scheduler.horizon(stretch.run)
        stretch.steps = min(stretch.done + horizon.steps, stretch.run.max_steps)
        if horizon.limit is not None:
            owed = stretch.done + max(horizon.owed, 1)
            stretch.steps = min(stretch.steps, max(stretch.until(horizon.limit), owed))
        ends = self._copier.next_end
        self.wakeup = stretch.at(stretch.steps if ends is None else stretch.until(ends))

    def _cut(self, now: int) -> None:
        """A message came: the iteration under way is the last."""
        self._settle(now)
        stretch = self._stretch
        if stretch is None:
            self.wakeup = now
            return
        stretch.steps = stretch.done + 1
        self.wakeup = stretch.at(stretch.steps)

    def _settle(self, now: int) -> None:
        """Report the iterations that have ended by ``now``."""
        stretch = self._stretch
        if stretch is None:
            return
        before, done = stretch.done, stretch.by(now)
        if done == before:
            return
        begin, end = stretch.at(before), stretch.at(done)
        self._spend(Activity.DECODE, begin, end - begin)
        for call_id in stretch.run.call_ids:
            self.timeline.calls[call_id].decode += end - begin
        progress = self.scheduler.advanced(stretch.run, done - before, (end - begin) / 1e9, end)
        stretch.done = done
        last = done == stretch.run.max_steps or (done == stretch.steps and self._inbox)
        if progress.over or last:
            self._stretch = None
            self._begin = end
            if self.wakeup is None or self.wakeup > now:
                self.wakeup = now
        self._tell(progress, end)

    # --- other work ------------------------------------------------------------------------------

    def _start_switch(self, work: Switch, now: int) -> None:
        """The checkpoint of what must not be lost, then all copies drained, then the model."""
        if work.save is not None:
            self._begin_copy(work.save, now)
        self._work, self._switch = work, None
        self.wakeup = max(now, self._copier.drained())

    def _activate(self, work: Switch, now: int) -> None:
        """All copies have ended."""
        self._saving = now - self._begin
        self._report_copies(now)
        duration, self._switch = self._weights.switch(work.model, now)
        self._work, self.wakeup = work, now + duration

    def _complete(self, now: int) -> None:
        """The piece of work under way has ended."""
        work, self._work = self._work, None
        assert work is not None
        if isinstance(work, Switch) and self._switch is None:
            self._activate(work, now)
            return
        duration = now - self._begin
        scheduler = self.scheduler
        match work:
            case Run():
                self._spend(Activity.PREFILL, self._begin, duration)
                progress = self._prefilled(work, duration, now)
            case Restore():
                self._spend(Activity.RESTORE, self._begin, duration)
                progress = scheduler.restored(work, duration / 1e9, now)
            case Switch():
                self.timeline.add(Activity.SWITCH, duration)
                progress = self._switched(work, now)
        self._begin = now
        self._tell(progress, now)

    def _prefilled(self, run: Run, duration: int, now: int) -> Progress:
        sampled = []
        for row in self.scheduler.rows(run):
            if row.draw is None:
                continue
            if row.draw.forced is None:
                raise ValueError(f"call {row.call_id.hex()} draws a token that is not forced")
            sampled.append(Sampled(row.call_id, row.draw.forced))
            times = self.timeline.calls[row.call_id]
            times.first_token = now if times.first_token is None else times.first_token
        return self.scheduler.stepped(run, tuple(sampled), duration / 1e9, now)

    def _switched(self, work: Switch, now: int) -> Progress:
        record = self._switch
        assert record is not None
        self.timeline.switches.append(record)
        report = SwitchReport(
            record.seconds,
            path=record.path,
            h2d_bytes=record.h2d_bytes,
            d2d_bytes=record.d2d_bytes,
        )
        return self.scheduler.switched(work, report, self._saving / 1e9, now)

    def _spend(self, activity: Activity, begin: int, duration: int) -> None:
        self.timeline.add(activity, duration)
        rows = self.scheduler.device_rows
        self._weights.serving(self.scheduler.upcoming(), begin, begin + duration, rows)
        self._tell(self.scheduler.staged(self._weights.staged, begin + duration), begin + duration)

    # --- copies and messages ---------------------------------------------------------------------

    def _begin_copy(self, checkpoint: Checkpoint, now: int) -> None:
        tokens = len(checkpoint.devices) * self._block_tokens
        costs = self._costs[self.scheduler.active_model]
        self._copier.begin(checkpoint.ticket, costs.checkpoint(tokens), now)

    def _report_copies(self, now: int) -> None:
        ends = self._copier.ended(now)
        if ends:
            self._tell(self.scheduler.copied(ends, now), now)

    def _tell(self, progress: Progress, now: int) -> None:
        for removed in progress.removed:
            self._emit(self.name, removed)
        for stored in progress.stored:
            self._emit(self.name, stored)
        # Copies begin before a finished call's client may answer.
        if progress.checkpoint is not None:
            self._begin_copy(progress.checkpoint, now)
        for finished in progress.finished:
            self._emit(self.name, finished)
        for failed in progress.failed:
            self._emit(self.name, failed)

    def _tell_snapshot(self, now: int) -> None:
        self._told = now
        self._emit(self.name, self.scheduler.snapshot(now))

    # --- what is written down --------------------------------------------------------------------

    def _watch_round(self, now: int) -> None:
        rounds = self.scheduler.rounds
        if rounds == self._round:
            return
        if self._round:
            self._close_round(now)
        self._round = rounds

    def finish(self, now: int) -> None:
        """Nothing more will come. Raises ``SimulationError`` for a nanosecond or a block that is
        not accounted for."""
        self.timeline.add(self._resting, max(0, now - self._begin))
        self._begin = now
        if self._round:
            self._close_round(now)
        spent = sum(self.timeline.spent.values())
        if spent != now:
            raise self._impossible(f"did something for {spent} of {now} ns")
        occupancy = self.scheduler.occupancy()
        if (occupancy.held or occupancy.host_held) and not self.scheduler.copying:
            raise self._impossible(f"holds memory for nobody: {occupancy}")

    def _close_round(self, now: int) -> None:
        counters = self.scheduler.counters()
        self.timeline.round_over(self._round, now, counters.sp_admitted, counters.sp_parked)
        self.timeline.memory.append(self._footprint(now))

    def _footprint(self, now: int) -> MemoryRecord:
        model, occupancy = self.scheduler.active_model, self.scheduler.occupancy()
        blocks = occupancy.held + occupancy.cached
        return MemoryRecord(
            instance=self.name,
            at=now / 1e9,
            weights=self._memory.weights.get(model, 0),
            kv=blocks * self._memory.block_bytes.get(model, 0),
            staged=self._weights.staged.covered_bytes,
            runtime=self._memory.runtime,
            capacity=self._memory.capacity,
            host_kv=occupancy.host_used,
        )
