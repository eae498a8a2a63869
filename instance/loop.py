"""Drives the scheduler's decisions over an engine, on the one thread that may touch it."""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable
from typing import Final

from alipes.instance.contract import (
    SNAPSHOT_SECONDS,
    Cancel,
    Drain,
    FailureClass,
    FromInstance,
    Stop,
    Submit,
    Tokens,
    Welcome,
)
from alipes.instance.engine.protocol import CopyEnd, Engine, EngineError
from alipes.instance.scheduler.rounds import RoundScheduler
from alipes.instance.scheduler.work import (
    Checkpoint,
    Linger,
    Progress,
    Restore,
    Run,
    Switch,
)

log = logging.getLogger(__name__)

Message = Submit | Cancel | Drain | Stop | Welcome
SNAPSHOT_NS: Final = int(SNAPSHOT_SECONDS * 1e9)
IDLE_SNAPSHOT_SECONDS: Final = 1.0
COPY_POLL_SECONDS: Final = 0.005
STAGE_NS: Final = 10_000_000
"""How often the engine is told which rows are unused and which model is next."""


class EngineLoop:
    """``post`` may be called from any thread; ``run``, on the engine thread, returns after a
    ``Stop``. ``emit`` is called on the engine thread, in the order in which the messages are to
    be told; ``clock`` gives ns. Every submitted call gets exactly one last message."""

    def __init__(
        self,
        engine: Engine,
        scheduler: RoundScheduler,
        emit: Callable[[FromInstance], None],
        clock: Callable[[], int],
    ) -> None:
        self._engine = engine
        self._scheduler = scheduler
        self._emit = emit
        self._clock = clock
        self._inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._stopped = False
        self._changed = True
        self._next_snapshot = 0
        self._next_staging = 0

    def post(self, message: Message) -> None:
        """Hand in a message and wake the loop."""
        self._inbox.put(message)

    def run(self) -> None:
        """Work until stopped. A defect is raised: the process must end. Either way the calls that
        are left get a last message, so that another instance may have them."""
        try:
            while not self._stopped:
                self._turn()
            self._abandon(FailureClass.GONE, "the instance stops")
        except BaseException as error:
            self._abandon(FailureClass.BROKEN, f"the engine loop broke: {error!r}")
            raise

    def _turn(self) -> None:
        while not self._inbox.empty():
            self._deliver(self._inbox.get())
        if self._stopped:
            return
        self._report_copies(self._engine.copied)
        work = self._scheduler.next(self._clock())
        match work:
            case None:
                self._wait(IDLE_SNAPSHOT_SECONDS)
            case Linger(until=until):
                self._wait((until - self._clock()) / 1e9)
            case Run():
                self._iterate(work)
            case Switch():
                self._switch(work)
            case Restore():
                self._restore(work)

    def _wait(self, seconds: float) -> None:
        """Sleep until a message comes, so long at most; sooner while copies are under way. An old
        state counts as stale, so it is told again."""
        self._stage(self._clock())
        if self._changed:
            self._tell_snapshot(self._clock())
        polling = self._scheduler.copying
        if polling:
            seconds = min(seconds, COPY_POLL_SECONDS)
        try:
            message = self._inbox.get(timeout=max(seconds, 0.0))
        except queue.Empty:
            self._changed = not polling
        else:
            self._deliver(message)

    def _deliver(self, message: Message) -> None:
        self._changed = True
        match message:
            case Submit():
                failed = self._scheduler.submit(message, self._clock())
                if failed is not None:
                    self._emit(failed)
                elif message.sampling.grammar:
                    self._engine.expect(message.model, message.sampling.grammar)
            case Cancel():
                progress = self._scheduler.cancel(message.call_id, self._clock())
                if progress is not None:
                    self._tell(progress, "")
            case Drain():
                self._scheduler.drain()
            case Stop():
                self._stopped = True
            case Welcome():
                # Whoever is at the other end of a new link knows of no block.
                for stored in self._scheduler.known():
                    self._emit(stored)

    def _iterate(self, run: Run) -> None:
        for started in run.started:
            self._emit(started)
        self._stage(self._clock())
        for _ in range(run.max_steps):
            begin = self._clock()
            try:
                sampled = self._engine.step(self._scheduler.rows(run))
            except EngineError as error:
                log.warning("a step of %s was refused: %s", run.model, error)
                at_fault = error.call_ids or run.call_ids
                self._tell(self._scheduler.fail(at_fault, str(error), self._clock()), run.model)
                return
            now = self._clock()
            progress = self._scheduler.stepped(run, sampled, (now - begin) / 1e9, now)
            self._tell(progress, run.model)
            if progress.over or not self._inbox.empty():
                return
            self._report_copies(self._engine.copied)
            self._stage(now)

    def _stage(self, now: int) -> None:
        """What is above the rows in use may hold weights of the model that is next."""
        if now >= self._next_staging:
            self._next_staging = now + STAGE_NS
            scheduler = self._scheduler
            staged = self._engine.stage(scheduler.upcoming(), scheduler.device_rows)
            progress = scheduler.staged(staged, now)
            if progress.removed or progress.stored:
                self._tell(progress, "")

    def _switch(self, work: Switch) -> None:
        begin = self._clock()
        self._begin(work.save)
        self._report_copies(self._engine.drain)
        seconds_saving = (self._clock() - begin) / 1e9
        try:
            report = self._engine.activate(work.model)
        except EngineError as error:
            log.error("model %s cannot be made active: %s", work.model, error)
            progress = self._scheduler.unswitched(work, str(error))
            if not progress.failed:
                raise
        else:
            progress = self._scheduler.switched(work, report, seconds_saving, self._clock())
        self._next_staging = 0
        self._tell(progress, work.model)

    def _restore(self, work: Restore) -> None:
        begin = self._clock()
        failed = False
        try:
            self._engine.copy_in(work.copies)
        except EngineError as error:
            log.warning("%d blocks were not restored: %s", len(work.copies), error)
            failed = True
        now = self._clock()
        self._tell(self._scheduler.restored(work, (now - begin) / 1e9, now, failed), "")

    def _begin(self, checkpoint: Checkpoint | None) -> None:
        if checkpoint is None:
            return
        try:
            self._engine.copy_out(checkpoint.ticket, checkpoint.copies)
        except EngineError as error:
            log.warning("%d blocks were not copied: %s", len(checkpoint.copies), error)
            self._tell(self._scheduler.uncopied(checkpoint, self._clock()), "")

    def _report_copies(self, ended: Callable[[], tuple[CopyEnd, ...]]) -> None:
        if not self._scheduler.copying:
            return
        ends = ended()
        if ends:
            self._tell(self._scheduler.copied(ends, self._clock()), "")

    def _tell(self, progress: Progress, model: str) -> None:
        for removed in progress.removed:
            self._emit(removed)
        for stored in progress.stored:
            self._emit(stored)
        if progress.drawn:
            self._emit(Tokens(model, progress.drawn))
        for finished in progress.finished:
            self._emit(finished)
        for failed in progress.failed:
            self._emit(failed)
        self._begin(progress.checkpoint)
        self._changed = True
        now = self._clock()
        if now >= self._next_snapshot:
            self._tell_snapshot(now)

    def _tell_snapshot(self, now: int) -> None:
        self._changed = False
        self._next_snapshot = now + SNAPSHOT_NS
        self._emit(self._scheduler.snapshot(now))

    def _abandon(self, failure: FailureClass, reason: str) -> None:
        """Give every call its last message, those not yet taken in included."""
        while not self._inbox.empty():
            message = self._inbox.get()
            if isinstance(message, Submit):
                refused = self._scheduler.submit(message, self._clock())
                if refused is not None:
                    self._emit(refused)
        for failed in self._scheduler.abandon(failure, reason):
            self._emit(failed)
