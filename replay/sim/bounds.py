"""What no scheduler can beat: each session alone, and all of them on a fluid device.

Alone, a session has every token of its context cached and no other model to make way for. On the
fluid device, work of all sessions is done in the cheapest batches and nothing is ever switched:
at most so much of it can be over at any time.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from alipes.replay.sim.costs import EngineCosts
from alipes.replay.traces.form import Call, Session, reply_stream
from alipes.replay.traces.order import Place, causal_order, waits_for


@dataclass(frozen=True, slots=True)
class Bounds:
    """Seconds: by session, alone; of the sessions that arrive together the median and 95th
    percentile at least, of those that count; the whole run."""

    alone: dict[str, float]
    p50: float
    p95: float
    makespan: float


def bounds(
    sessions: Sequence[Session],
    costs: Mapping[str, EngineCosts],
    instances: int,
    chunk: int,
    max_running: int,
    gap_cap: float | None,
    together: bool,
    warmup: int = 0,
) -> Bounds:
    """On so many instances. All start ``together`` or not: only then does the fluid device bound
    percentiles. The first ``warmup`` sessions count in the whole run alone."""
    alone, work = [], []
    for session in sessions:
        again = _again(session)
        alone.append(_alone(session, again, costs, chunk, gap_cap))
        work.append(_work(session, again, costs, chunk, max_running) / instances)
    counted, ranked = sorted(alone[warmup:]), sorted(work[warmup:])
    total = math.fsum(work)

    def least(percent: float) -> float:
        rank = max(0, math.ceil(percent / 100 * len(counted)) - 1)
        fluid = math.fsum(ranked[: rank + 1]) if together else 0.0
        return max(counted[rank], fluid)

    return Bounds(
        {session.id: seconds for session, seconds in zip(sessions, alone, strict=True)},
        least(50),
        least(95),
        max(max(alone, default=0.0), total),
    )


def _model(session: Session, branch: int) -> str:
    return session.branches[branch].model or session.model


def _prefill(call: Call, again: frozenset[int], costs: EngineCosts, chunk: int) -> int:
    """ns of what neither the call's branch nor another session can have computed."""
    position = _cached(call, again)
    duration = costs.cold if position == 0 else 0
    while position < call.prompt:
        new = min(chunk, call.prompt - position)
        duration += costs.prefill([(new, position)])
        position += new
    return duration


def _cached(call: Call, again: frozenset[int]) -> int:
    """Tokens that may be cached: what the branch kept, and content after it which is in all
    sessions, or comes ``again`` in its own. One at least must be computed for there to be
    something to draw from."""
    known = itertools.takewhile(lambda s: s.stream >= 0 or s.stream in again, call.added)
    return min(call.kept + sum(span.length for span in known), call.prompt - 1)


def _again(session: Session) -> frozenset[int]:
    """Streams of the session's own that more than one call adds, as its sub-agents may, or that
    one drew and another adds."""
    seen: Counter[int] = Counter()
    for branch in session.branches:
        for index, call in enumerate(branch.calls):
            seen.update((reply_stream(branch.name, index), *(span.stream for span in call.added)))
    return frozenset(stream for stream, count in seen.items() if count > 1)


def _alone(
    session: Session,
    again: frozenset[int],
    costs: Mapping[str, EngineCosts],
    chunk: int,
    gap_cap: float | None,
) -> float:
    """Seconds from the first call's due time to the last end, with calls of several branches
    side by side at no cost to each other."""
    numbers = {b.name: i for i, b in enumerate(session.branches)}
    ends: dict[Place, float] = {}
    for number, index in causal_order(session):
        call, model = session.branches[number].calls[index], costs[_model(session, number)]
        before = waits_for(session, numbers, number, index)
        begin = max((ends[place] for place in before), default=0.0) + _gap(call, gap_cap)
        decode = model.decode(1, call.prompt + 1, max(call.output - 1, 0))
        ends[number, index] = begin + (_prefill(call, again, model, chunk) + decode) / 1e9
    return max(ends.values()) - _gap(session.branches[0].calls[0], gap_cap)


def _gap(call: Call, cap: float | None) -> float:
    return call.gap if cap is None else min(call.gap, cap)


def _work(
    session: Session,
    again: frozenset[int],
    costs: Mapping[str, EngineCosts],
    chunk: int,
    max_running: int,
) -> float:
    """Seconds of device time that the session takes in full batches."""
    total = 0.0
    for number, branch in enumerate(session.branches):
        model = costs[_model(session, number)]
        estimate = model.estimate()
        # Shares of the cheapest batch: of the fixed part what a full one leaves to each call.
        step = estimate.decode_base / max_running + estimate.decode_call
        for call in branch.calls:
            new = call.prompt - _cached(call, again)
            drawn = max(call.output - 1, 0)
            context = drawn * (call.prompt + 1) + drawn * (drawn - 1) / 2
            total += new * (estimate.prefill_base / chunk + estimate.prefill_token)
            total += new * max(call.prompt - new, 0) * estimate.prefill_context
            total += drawn * step + context * estimate.decode_context
    return total
