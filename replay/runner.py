"""Closed-loop replay against a live endpoint: sizes the sessions, then drives the plan."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from alipes.replay.closed_loop import ClosedLoop, Send
from alipes.replay.endpoint import Endpoint, EndpointError
from alipes.replay.plan import NANOSECONDS, Assignment, Session, plan_session
from alipes.replay.records import CallRecord
from alipes.replay.shorten import (
    shorten_trajectory,
    smaller_share,
    texts_of,
    tokens_needed,
)
from alipes.replay.stats import Summary, summarise
from alipes.replay.stream import Answer


@dataclass(slots=True)
class Replay:
    """A replay under way: ``summary`` is right at any moment, an interruption included."""

    endpoint: Endpoint
    clock: Callable[[], int]
    sessions: tuple[Session, ...] = field(default=(), init=False)
    records: list[CallRecord] = field(default_factory=list, init=False)
    complete: bool = field(default=False, init=False)

    async def prepare(self, assignments: Sequence[Assignment], gap_cap: float) -> None:
        """Fix every session: counts tokens, shortens what a model's context cannot hold.
        Raises ``EndpointError``."""
        models = dict.fromkeys(assignment.model for assignment in assignments)
        contexts = await self.endpoint.contexts(models)
        sessions = []
        for assignment in assignments:
            context = contexts[assignment.model]
            sessions.append(await self._session(assignment, context, gap_cap))
        self.sessions = tuple(sessions)

    async def _session(
        self, assignment: Assignment, context: int | None, gap_cap: float
    ) -> Session:
        share: float | None = 1.0
        while share is not None:
            trajectory = shorten_trajectory(assignment.trajectory, share)
            counts = await self.endpoint.counts(assignment.model, texts_of(trajectory))
            needed = tokens_needed(trajectory, counts)
            if context is None or needed <= context:
                return plan_session(assignment, trajectory, share, counts, gap_cap)
            share = smaller_share(share, needed, context)
        raise EndpointError(
            f"{assignment.trajectory.path}: cannot be shortened to the {context} tokens of"
            f" {assignment.model}; replay it on a model with a longer context"
        )

    async def run(self, on_call: Callable[[CallRecord], None]) -> None:
        """Send every call; returns when the last one has ended. ``on_call`` gets each record as
        its call ends."""
        begin = self.clock()
        loop = ClosedLoop(self.sessions, begin)
        flying: set[asyncio.Task[None]] = set()
        try:
            while not loop.done:
                for send in loop.due(self.clock()):
                    flying.add(asyncio.create_task(self._send(loop, send, begin, on_call)))
                flying -= await self._wait(flying, loop.next_wakeup())
            self.complete = True
        finally:
            for task in flying:
                task.cancel()
            await asyncio.gather(*flying, return_exceptions=True)

    async def _wait(
        self, flying: set[asyncio.Task[None]], wakeup: int | None
    ) -> set[asyncio.Task[None]]:
        """Wait for a call to end or for the next one to be due; returns the calls that ended."""
        seconds = None if wakeup is None else max(0, wakeup - self.clock()) / NANOSECONDS
        if not flying:
            await asyncio.sleep(seconds or 0)
            return set()
        over, _ = await asyncio.wait(flying, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for task in over:
            task.result()
        return over

    async def _send(
        self, loop: ClosedLoop, send: Send, begin: int, on_call: Callable[[CallRecord], None]
    ) -> None:
        session = self.sessions[send.session]
        body, headers = session.body(send.index), session.headers(send.index)
        sent = self.clock()
        answer = await self.endpoint.chat(body, headers, self.clock)
        now = self.clock()
        loop.ended(send, not answer.error, now)
        record = _record(session, send, answer, (begin, sent, now))
        self.records.append(record)
        on_call(record)

    def summary(self) -> Summary:
        how = "estimated from text length" if self.endpoint.counts_are_estimates else "exact"
        totals = [session.totals for session in self.sessions]
        return summarise(totals, self.records, self.complete, how)


def _record(
    session: Session, send: Send, answer: Answer, instants: tuple[int, int, int]
) -> CallRecord:
    begin, sent, finished = instants
    call = session.calls[send.index]
    drawn = answer.completion_tokens or 0
    tpot = None
    if answer.first is not None and answer.last is not None and drawn > 1:
        tpot = (answer.last - answer.first) / NANOSECONDS / (drawn - 1)
    return CallRecord(
        session=session.session,
        request_id=call.request_id,
        model=session.model,
        index=send.index,
        gap=call.gap / NANOSECONDS,
        intended=(send.intended - begin) / NANOSECONDS,
        sent=(sent - begin) / NANOSECONDS,
        finished=(finished - begin) / NANOSECONDS,
        expected_tokens=call.max_tokens,
        ttft=None if answer.first is None else (answer.first - send.intended) / NANOSECONDS,
        tpot=tpot,
        prompt_tokens=answer.prompt_tokens,
        cached_tokens=answer.cached_tokens,
        completion_tokens=answer.completion_tokens,
        finish_reason=answer.finish_reason,
        instance=answer.instance,
        placement=answer.placement,
        output=answer.output,
        error=answer.error,
    )
