"""The calls by which ``alipes profile`` makes an instance do all that it does.

Each model serves alone, one session whose context grows and then as many as may run at once, up to
eight; at last all of them together, so that they are switched, saved and restored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from alipes.cli.output import CommandError
from alipes.cli.stack import Stack, play
from alipes.instance.contract import InstanceSettings
from alipes.replay.plan import PlannedSession
from alipes.replay.records import CallRecord
from alipes.replay.tokens import TokenPrompts, vocabulary
from alipes.replay.traces.content import Content, Vocabulary
from alipes.replay.traces.form import Session
from alipes.replay.traces.synth.branches import BranchBuilder

Step = tuple[int, int]
"""Tokens that a call adds to the context, and tokens that it draws."""

PREFILL_SECONDS: Final = 4.0
DECODE_SECONDS: Final = 0.3
DEPTH: Final = (256, 3_000)
DRAWN: Final = (16, 64)
ALONE: Final = (0.05, 0.25, 0.5, 0.01, 0.06, 0.13)
"""Parts of the depth that the calls of a session on its own add."""
TOGETHER: Final = (0.1, 0.9)
MOST_TOGETHER: Final = 8
SHORT: Final[Sequence[Step]] = ((40, 1),) * 6
SHARED_CALLS: Final = 5
SHARED_SESSIONS: Final = 2
SHARED: Final[Step] = (64, 16)
GAP: Final = 0.05


@dataclass(frozen=True, slots=True)
class Pace:
    """How much a model is given to do: tokens of context, and tokens that a call draws."""

    depth: int
    drawn: int


def pace(estimate: Mapping[str, float], chunk: int, context: int) -> Pace:
    """As much as takes some seconds by the instance's own estimate. Raises ``CommandError`` where
    the context is too short."""
    rate = chunk / (
        estimate["prefill_base"]
        + chunk * estimate["prefill_token"]
        + chunk * chunk * estimate["prefill_context"]
    )
    step = estimate["decode_base"] + estimate["decode_call"]
    drawn = min(max(round(DECODE_SECONDS / step), DRAWN[0]), DRAWN[1])
    room = context - len(ALONE) * drawn - sum(map(sum, SHORT))
    depth = min(max(round(PREFILL_SECONDS * rate), DEPTH[0]), DEPTH[1], room)
    if depth < DEPTH[0]:
        raise CommandError(f"a context of {context} tokens is too short to be timed")
    return Pace(depth, drawn)


def stages(models: Mapping[str, Pace], max_running: int) -> Iterator[list[Session]]:
    """What is sent at once, one after another."""
    calls = min(max_running, MOST_TOGETHER)
    for model, own in models.items():
        grow = [(_part(own.depth, part), own.drawn) for part in ALONE]
        yield [_session(f"alone-{model}", model, [*grow, *SHORT])]
        yield [
            _session(
                f"together-{model}-{number}",
                model,
                # Replies of various length, so that batches become smaller and smaller.
                [
                    (_part(own.depth / calls, part), _part(own.drawn, (number + 1) / calls))
                    for part in TOGETHER
                ],
            )
            for number in range(calls)
        ]
    yield [
        _session(
            f"shared-{model}-{number}", model, [(own.depth // 8, 16), *[SHARED] * SHARED_CALLS]
        )
        for number in range(SHARED_SESSIONS)
        for model, own in models.items()
    ]


def _part(whole: float, part: float) -> int:
    return max(1, round(whole * part))


def _session(name: str, model: str, steps: Sequence[Step]) -> Session:
    """Every call goes on from the one before."""
    branch = BranchBuilder()
    for added, output in steps:
        branch.append(added, output, GAP)
    return Session(name, (branch.branch(),), model=model)


def time_calls(stack: Stack, settings: InstanceSettings) -> tuple[float, ...]:
    """Send all stages; the seconds of calls beside their iterations."""
    known = vocabulary(Vocabulary().high)
    estimates, contexts = stack.snapshot(settings.name)["estimates"], stack.contexts()
    chunk = settings.prefill_chunk
    models = {
        model.name: pace(estimates[model.name], chunk, contexts[model.name])
        for model in settings.models
    }
    beside: list[float] = []
    for sessions in stages(models, settings.max_running):
        records = play(stack.url, [planned(session, known) for session in sessions]).records
        if len(sessions) == 1:
            beside += _beside(records, stack)
    return tuple(beside)


def _beside(records: Sequence[CallRecord], stack: Stack) -> Iterator[float]:
    """Of calls that draw one token after another such call: what the client saw, less the
    instance's prefill."""
    logged = stack.calls(record.request_id for record in records)
    for before, record in pairwise(records):
        if before.expected_tokens == record.expected_tokens == 1:
            prefill = logged[record.request_id]["prefill_ms"] / 1e3
            yield max(0.0, record.finished - record.sent - prefill)


def planned(session: Session, known: Vocabulary) -> PlannedSession:
    """As it is sent: token ids, and completions that are forced."""
    models = tuple(branch.model or session.model for branch in session.branches)
    content = Content(session.id, known)
    return PlannedSession(session.id, models, session, TokenPrompts(session, content, True))
