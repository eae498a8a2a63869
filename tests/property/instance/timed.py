"""The simulated driver with calls that come at given times, and copies that take time."""

from __future__ import annotations

import heapq
import random
from collections import abc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from alipes.instance.contract import InstanceSettings, ModelReport, Submit
from alipes.instance.engine.protocol import BlockCopy, CopyEnd
from alipes.instance.scheduler import phases
from alipes.instance.scheduler.sequence import Sequence
from alipes.instance.scheduler.work import Checkpoint, Linger, Progress, Restore, Run, Switch

from .simulated import BLOCK, Driver, SimulatedEngine


@dataclass(frozen=True)
class Step:
    """One call of a session: ``gap`` ns after the one before ended, or after the beginning. It is
    cancelled ``patience`` ns later, if it has not ended."""

    gap: int
    call: Submit
    patience: int | None = None


Session = abc.Sequence[Step]


class KnownCost:
    """Stands for a ``LinearFit`` that has nothing to learn."""

    samples = 0

    def __init__(self, *coefficients: float) -> None:
        self.coefficients = coefficients

    def observe(self, features: abc.Sequence[float], seconds: float, count: int = 1) -> None:
        pass


@dataclass
class TimedEngine(SimulatedEngine):
    """Its copies to the host take ``block_seconds`` a block, one after another."""

    block_seconds: float = 0.0
    ends: dict[int, int] = field(default_factory=dict)

    def copy_out(self, ticket: int, copies: abc.Sequence[BlockCopy]) -> None:
        super().copy_out(ticket, copies)
        begin = max(self.now, *self.ends.values(), 0)
        self.ends[ticket] = begin + int(self.block_seconds * len(copies) * 1e9)

    def copied(self) -> tuple[CopyEnd, ...]:
        return self._over({ticket for ticket, end in self.ends.items() if end <= self.now})

    def drain(self) -> tuple[CopyEnd, ...]:
        self.now = max(self.now, *self.ends.values(), 0)
        return self._over(set(self.ends))

    def _over(self, tickets: set[int]) -> tuple[CopyEnd, ...]:
        self.ends = {ticket: end for ticket, end in self.ends.items() if ticket not in tickets}
        return self._end(tickets)


class Timed(Driver):
    """Takes calls in when their time has come, as the engine loop does: between two pieces of
    work or two iterations. ``log`` has all that was done and what came of it, with times. What an
    iteration of decode takes is known to the scheduler."""

    engine: TimedEngine

    def __init__(
        self,
        settings: InstanceSettings,
        reports: tuple[ModelReport, ...],
        engine: TimedEngine,
        sessions: abc.Sequence[Session],
    ) -> None:
        super().__init__(settings, reports)
        self.engine = engine
        self.due: list[tuple[int, bytes, Submit | None]] = []
        self._later: dict[bytes, abc.Sequence[Step]] = {}
        self.log: list[tuple[Any, ...]] = []
        self.told = 0
        for state in self.scheduler._calls.models.values():
            known = KnownCost(engine.costs.step, engine.costs.call, 0.0)
            state.profile.decode = known  # type: ignore[assignment]
        for session in sessions:
            self._go_on(session)

    def play(self, until: abc.Callable[[], bool] = lambda: False) -> None:
        """To the end of all sessions, or of something else."""
        for _ in range(20_000):
            if until():
                return
            while self.comes():
                self._input(*heapq.heappop(self.due)[1:])
            if self.turn() is None:
                if not self.due:
                    return
                self.engine.now = self.due[0][0]
            self._note("then", self.state())
        raise AssertionError(f"{len(self.live)} calls unfinished")

    def comes(self) -> bool:
        return bool(self.due) and self.due[0][0] <= self.engine.now

    def advance(self, run: Run, left: int) -> tuple[int, Progress]:
        """Make and report iterations of a decode run, ``left`` at most: how many were made."""
        del left
        begin = self.engine.now
        sampled = self.engine.step(self.scheduler.rows(run))
        seconds = (self.engine.now - begin) / 1e9
        return 1, self.scheduler.stepped(run, sampled, seconds, self.engine.now)

    def _go_on(self, steps: abc.Sequence[Step]) -> None:
        """The session's next call is due after its gap."""
        if not steps:
            return
        step, now = steps[0], self.engine.now + steps[0].gap
        self._later[step.call.call_id] = steps[1:]
        heapq.heappush(self.due, (now, step.call.call_id, step.call))
        if step.patience is not None:
            heapq.heappush(self.due, (now + step.patience, step.call.call_id, None))

    def _input(self, call_id: bytes, call: Submit | None) -> None:
        if call is not None:
            self._note("submit", call_id)
            assert self.submit(call) is None
        elif call_id in self.live:
            self._note("cancel", call_id)
            self.cancel(call_id)
            self._go_on(self._later.pop(call_id))

    # --- what is done ---

    def _run(self, run: Run, steps: int) -> None:
        self._note("run", run)
        self._visit(run)
        for started in run.started:
            self._started(started, run)
        left = run.max_steps
        while left:
            made, progress = self.advance(run, left)
            left -= made
            self.told += 1
            self._iterations += made * (run.phase in phases.DECODE)
            self._take(progress, run.model)
            if progress.over or self.comes():
                return
            self._report(self.engine.copied)

    def _switch(self, work: Switch) -> None:
        self._note("switch", work.model, slabs(work.save))
        super()._switch(work)

    def _restore(self, work: Restore) -> None:
        self._note("restore", [copy.slabs for copy in work.copies], work.tokens)
        super()._restore(work)

    def _linger(self, work: Linger, steps: int) -> None:
        """One that waits for blocks that are being copied looks only when something has changed:
        what it expects of the copy may be far too little."""
        super()._linger(work, 0)
        assert self.slot is not None
        times = [] if self.slot.stuck else [work.until]
        times += [time for time, _, _ in self.due[:1]]
        self.engine.now = min([*times, *self.engine.ends.values()])

    def _take(self, progress: Progress, model: str) -> None:
        for finished in progress.finished:
            self._note("finished", finished)
            self._go_on(self._later.pop(finished.call_id))
        if progress.checkpoint is not None:
            self._note("checkpoint", slabs(progress.checkpoint))
        super()._take(progress, model)

    # --- what can be compared ---

    def _note(self, *what: Any) -> None:
        self.log.append((self.engine.now, *what))

    def state(self) -> dict[str, Any]:
        """All that decisions depend on, but for the numbers of device blocks: calls that grow side
        by side get them in another order."""
        scheduler = self.scheduler
        models = scheduler._calls.models.values()
        keys = {key: sorted(known) for key, known in self.stored.items() if known}
        return {
            "calls": [_of(call) for call in scheduler._calls.all()],
            "waiting": [[call.call.call_id for call in state.waiting] for state in models],
            "occupancy": scheduler.occupancy(),
            "counters": scheduler.counters(),
            "phase": scheduler._phase,
            "known": keys,
            "slot": None if self.slot is None else (self.slot.paid, self.slot.limit),
        }


class Stretched(Timed):
    """Reports decode runs in stretches, cut as the simulated instance cuts them, and at random."""

    def __init__(
        self,
        settings: InstanceSettings,
        reports: tuple[ModelReport, ...],
        engine: TimedEngine,
        sessions: abc.Sequence[Session],
        cuts: random.Random,
    ) -> None:
        super().__init__(settings, reports, engine, sessions)
        self.cuts = cuts

    def advance(self, run: Run, left: int) -> tuple[int, Progress]:
        if run.phase not in phases.DECODE:
            return super().advance(run, left)
        step = int((self.engine.costs.step + len(run.call_ids) * self.engine.costs.call) * 1e9)
        steps = self._steps(run, left, step)
        calls = [self.scheduler._calls[call_id] for call_id in run.call_ids]
        before = [call.computed for call in calls]
        self.engine.now += steps * step
        with self._seeing_blocks(calls) as blocks:
            progress = self.scheduler.advanced(run, steps, steps * step / 1e9, self.engine.now)
        for call, first in zip(calls, before, strict=True):
            self._fill(call, first, blocks[call.call.call_id])
        return steps, progress

    def _steps(self, run: Run, left: int, step: int) -> int:
        now = self.engine.now
        horizon = self.scheduler.horizon(run)
        steps = min(horizon.steps, left)
        if horizon.limit is not None:
            steps = min(steps, max(-((now - horizon.limit) // step), horizon.owed, 1))
        events = [*self.engine.ends.values(), *(time for time, _, _ in self.due[:1])]
        for event in events:
            steps = min(steps, max(-((now - event) // step), 1))
        return self.cuts.randint(1, steps) if self.cuts.random() < 0.3 else steps

    @contextmanager
    def _seeing_blocks(self, calls: list[Sequence]) -> Iterator[dict[bytes, list[int]]]:
        """The blocks of these calls, those of calls that end meanwhile as they were last."""
        active = self.scheduler._active
        assert active is not None
        space, blocks = active.space, {call.call.call_id: call.blocks for call in calls}
        truncate = space.truncate

        def seeing(call: Sequence, count: int) -> None:
            blocks[call.call.call_id] = list(call.blocks)
            truncate(call, count)

        space.truncate = seeing  # type: ignore[method-assign]
        yield blocks
        del space.truncate

    def _fill(self, call: Sequence, first: int, blocks: list[int]) -> None:
        """Tell the engine what it computed, from position ``first`` on."""
        history = tuple(int(token) for token in call.history[: call.computed])
        for position in range(first, call.computed):
            place = blocks[position // BLOCK], position % BLOCK
            self.engine.content[place] = history[: position + 1]
            self.tokens[call.call.call_id].append(int(call.history[position + 1]))


def slabs(checkpoint: Checkpoint | None) -> list[tuple[int, ...]]:
    return [copy.slabs for copy in checkpoint.copies] if checkpoint is not None else []


def _of(call: Sequence) -> tuple[Any, ...]:
    return (
        call.call.call_id,
        call.state,
        call.order,
        call.length,
        call.computed,
        call.published,
        len(call.blocks),
        [block.slabs for block in call.saved],
        (call.known, call.known_host, call.parked, call.aged, call.started, call.first_token),
        (call.cached_tokens, call.restored_tokens, call.prefill_seconds),
    )
