"""Drives a plan against a live endpoint with the wall clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from alipes.replay.endpoint import Endpoint
from alipes.replay.pacing import NANOSECONDS, Pacing, PacingSettings, Send
from alipes.replay.plan import PlannedSession, Request
from alipes.replay.records import CallRecord
from alipes.replay.stats import Summary, summarise
from alipes.replay.stream import Answer

EVERYTHING_AT_ONCE = PacingSettings()


@dataclass(slots=True)
class Replay:
    """A replay under way: ``summary`` is right at any moment, an interruption included. With
    ``records`` of sessions that an earlier run completed, these are not sent again, and the clock
    of the records goes on from there."""

    endpoint: Endpoint
    clock: Callable[[], int]
    sessions: tuple[PlannedSession, ...] = ()
    records: list[CallRecord] = field(default_factory=list)
    complete: bool = field(default=False, init=False)

    async def run(
        self,
        on_call: Callable[[CallRecord], None],
        settings: PacingSettings = EVERYTHING_AT_ONCE,
    ) -> None:
        """Send every call of the sessions that are not complete; returns when the last one has
        ended. ``on_call`` gets each record as its call ends. Raises ``SessionError`` for a session
        that cannot be paced, before anything is sent."""
        now = self.clock()
        elapsed = _nanoseconds(max((record.finished for record in self.records), default=0.0))
        complete = complete_sessions(self.sessions, self.records)
        done = {i for i, session in enumerate(self.sessions) if session.session in complete}
        recorded = [session.recorded for session in self.sessions]
        pacing = Pacing(recorded, settings, now, elapsed, done)
        driver = _Driver(self, pacing, now - elapsed, on_call)
        try:
            while not pacing.done:
                driver.start(pacing.due(self.clock()))
                await driver.pause(pacing.next_wakeup())
            self.complete = True
        finally:
            await driver.cancel()

    def summary(self) -> Summary:
        """Warm-up counts in nothing."""
        how = "estimated from text length" if self.endpoint.counts_are_estimates else "exact"
        totals = [session.totals for session in self.sessions if not session.warmup]
        counted = [record for record in self.records if not record.warmup]
        return summarise(totals, counted, self.complete, how)


@dataclass(slots=True)
class _Driver:
    """The calls in flight, each a task."""

    replay: Replay
    pacing: Pacing
    begin: int
    on_call: Callable[[CallRecord], None]
    flying: set[asyncio.Task[None]] = field(default_factory=set)
    broken: list[BaseException] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def start(self, sends: Sequence[Send]) -> None:
        for send in sends:
            task = asyncio.create_task(self._send(send))
            self.flying.add(task)
            task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[None]) -> None:
        self.flying.discard(task)
        self.news.set()
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.broken.append(error)

    async def pause(self, wakeup: int | None) -> None:
        """Wait for a call to end or for the next one to be due. Raises what broke in a task."""
        left = None if wakeup is None else max(0, wakeup - self.replay.clock()) / NANOSECONDS
        try:
            async with asyncio.timeout(left):
                await self.news.wait()
        except TimeoutError:
            pass
        self.news.clear()
        if self.broken:
            raise self.broken[0]

    async def cancel(self) -> None:
        tasks = list(self.flying)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _send(self, send: Send) -> None:
        clock = self.replay.clock
        session = self.replay.sessions[send.session]
        request = session.request(send.branch, send.index, send.last)
        sent = clock()
        answer = await self.replay.endpoint.send(request, clock)
        now = clock()
        self.pacing.ended(send, not answer.error, now)
        record = self._record(session, send, request, answer, (sent, now))
        self.replay.records.append(record)
        self.on_call(record)

    def _record(
        self,
        session: PlannedSession,
        send: Send,
        request: Request,
        answer: Answer,
        instants: tuple[int, int],
    ) -> CallRecord:
        sent, finished = (_seconds(instant - self.begin) for instant in instants)
        branch = session.recorded.branches[send.branch]
        first = answer.first
        return CallRecord(
            session=session.session,
            request_id=request.request_id,
            model=request.model,
            index=send.index,
            gap=_seconds(send.gap),
            intended=_seconds(send.intended - self.begin),
            sent=sent,
            finished=finished,
            expected_tokens=request.expected,
            ttft=None if first is None else _seconds(first - send.intended),
            tpot=_tpot(answer),
            prompt_tokens=answer.prompt_tokens,
            cached_tokens=answer.cached_tokens,
            restored_tokens=answer.restored_tokens,
            completion_tokens=answer.completion_tokens,
            finish_reason=answer.finish_reason,
            instance=answer.instance,
            placement=answer.placement,
            output=answer.output,
            error=answer.error,
            branch=branch.name,
            returning=send.index > 0,
            warmup=session.warmup,
        )


def complete_sessions(
    sessions: Sequence[PlannedSession], records: Sequence[CallRecord]
) -> frozenset[str]:
    """The sessions of which every call succeeded."""
    good: dict[str, set[tuple[str, int]]] = {}
    for record in records:
        if not record.error:
            good.setdefault(record.session, set()).add((record.branch, record.index))
    return frozenset(
        session.session
        for session in sessions
        if len(good.get(session.session, ())) == session.recorded.calls
    )


def _tpot(answer: Answer) -> float | None:
    drawn = answer.completion_tokens or 0
    if answer.first is None or answer.last is None or drawn < 2:
        return None
    return _seconds(answer.last - answer.first) / (drawn - 1)


def _seconds(nanoseconds: int) -> float:
    return nanoseconds / NANOSECONDS


def _nanoseconds(seconds: float) -> int:
    return round(seconds * NANOSECONDS)
