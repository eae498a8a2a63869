"""What a call takes beside the engine: timed on a whole stack with one session a model."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from alipes.cli.output import CommandError
from alipes.cli.stack import Stack
from alipes.instance.contract import SNAPSHOT_SECONDS
from alipes.replay.endpoint import Endpoint
from alipes.replay.pacing import PacingSettings
from alipes.replay.plan import PlannedSession
from alipes.replay.records import CallRecord
from alipes.replay.runner import Replay
from alipes.replay.tokens import TokenPrompts, vocabulary
from alipes.replay.traces.content import Content, Vocabulary
from alipes.replay.traces.form import MAIN, Branch, Call, Session, Span, stream_id

FIRST: Final = 768
ADDED: Final = 48
SHORT_CALLS: Final = 6
LONG_CALLS: Final = 3
LONG: Final = 64
GAP: Final = 0.05


@dataclass(frozen=True, slots=True)
class CallTimings:
    """Seconds of a call beside its iterations, and between two iterations."""

    gateway: tuple[float, ...]
    loop: tuple[float, ...]


def time_calls(stack: Stack, instance: str, models: dict[str, int]) -> CallTimings:
    """One session on each model, one after another; ``models`` with their contexts."""
    gateway: list[float] = []
    loop: list[float] = []
    for model, context in models.items():
        records = play(stack, [planned(_session(model, context), vocabulary(Vocabulary().high))])
        # The state after the last call comes with the next report.
        time.sleep(2 * SNAPSHOT_SECONDS)
        estimate = stack.snapshot(instance)["estimates"][model]
        gateway += _beside(records, stack)
        loop += _between(records, estimate)
    return CallTimings(tuple(gateway), tuple(loop))


def play(stack: Stack, sessions: Sequence[PlannedSession]) -> list[CallRecord]:
    """Replay sessions, all from the start. Raises ``CommandError`` when a call fails."""

    async def whole() -> list[CallRecord]:
        endpoint = Endpoint(stack.url)
        replay = Replay(endpoint, time.monotonic_ns, tuple(sessions))
        try:
            await replay.run(lambda record: None, PacingSettings(gap_cap=None))
        finally:
            await endpoint.close()
        return replay.records

    records = asyncio.run(whole())
    failed = [record for record in records if record.error]
    if failed:
        raise CommandError(f"call {failed[0].request_id} failed: {failed[0].error}")
    return records


def planned(session: Session, known: Vocabulary) -> PlannedSession:
    """As it is sent: token ids, and completions that are forced."""
    models = tuple(branch.model or session.model for branch in session.branches)
    content = Content(session.id, known)
    return PlannedSession(session.id, models, session, TokenPrompts(session, content, True))


def _session(model: str, context: int) -> Session:
    """Short calls and then long ones, each going on from the one before."""
    outputs = [1] * SHORT_CALLS + [LONG] * LONG_CALLS
    room = context - sum(outputs) - len(outputs) * ADDED
    if room < ADDED:
        raise CommandError(f"a context of {context} tokens is too short to time calls of {model}")
    calls: list[Call] = []
    kept = 0
    for number, output in enumerate(outputs):
        added = ADDED if number else min(FIRST, room)
        spans = (Span(stream_id("timed", number, local=True), 0, added),)
        calls.append(Call(kept + added, output, kept, spans, GAP))
        kept += added + output
    return Session(f"timed-{model}", (Branch(MAIN, tuple(calls)),), model=model)


def _beside(records: Sequence[CallRecord], stack: Stack) -> Iterator[float]:
    """Of calls that draw one token: what the client saw, less the instance's prefill. The first
    call may have waited for a switch."""
    logged = stack.calls()
    for record in records:
        if record.expected_tokens == 1 and record.index:
            prefill = logged[record.request_id]["prefill_ms"] / 1e3
            yield max(0.0, record.finished - record.sent - prefill)


def _between(records: Sequence[CallRecord], estimate: dict[str, float]) -> Iterator[float]:
    """Of calls that draw many tokens: what one took at the client, less the step that the instance
    measured."""
    for record in records:
        if record.tpot is not None and record.prompt_tokens is not None:
            context = record.prompt_tokens + record.expected_tokens / 2
            step = (
                estimate["decode_base"]
                + estimate["decode_call"]
                + context * estimate["decode_context"]
            )
            yield max(0.0, record.tpot - step)
