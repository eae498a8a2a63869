"""What a trace holds, in the figures that papers on serving agents print.

Percentiles are nearest rank. A continuation is a call of a branch after its first one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from alipes.replay.stats import nearest_place
from alipes.replay.traces.columns import split
from alipes.replay.traces.form import Branch, Call, Session, Trace
from alipes.replay.traces.order import active_branches
from alipes.replay.traces.unlimited import unlimited_hits


class Spread(msgspec.Struct, frozen=True):
    """Of no values, ``count`` is 0 and the rest too."""

    count: int
    mean: float
    p50: float
    p95: float
    p99: float
    max: float


class Gaps(msgspec.Struct, frozen=True):
    """Seconds that calls of one kind of wait waited, and the share of them above the cap."""

    seconds: Spread
    above_cap: float


class Reuse(msgspec.Struct, frozen=True):
    """``continuations`` and the share of them that kept more than half of the previous prompt
    (Talaria 2.1); ``rewrites``, those that did not keep it whole (Evolving Infra E.1); the mean
    share of a prompt that was kept, after each kind of wait and by a rewrite (Figure 2c)."""

    continuations: int
    over_half: float
    rewrites: int
    kept_after: dict[str, float]
    kept_by_rewrites: float


class Cache(msgspec.Struct, frozen=True):
    """Shares of the prompt tokens: computed by an earlier call, with unlimited cache of every
    model (the ideal hit rate of Evolving Infra D.4); and first computed by another session."""

    hit_rate: float
    shared: float


class Statistics(msgspec.Struct, frozen=True):
    """``depth`` is calls a session. ``pause`` is the seconds all calls waited over the number of
    calls (Evolving Infra Eq. C.1). ``uncached`` is prompt tokens a call that an unlimited cache
    misses; over the mean output it tells prefill- from decode-heavy. ``active_branches`` (most,
    mean) count as if every call took one step and gaps none."""

    source: str
    sessions: int
    branches: int
    calls: int
    models: dict[str, int]
    depth: Spread
    branches_a_session: Spread
    gap_cap: float
    gaps: dict[str, Gaps]
    pause: float
    prompt: Spread
    output: Spread
    uncached: float
    reuse: Reuse
    cache: Cache
    input_output: float
    uncached_output: float
    sub_agent_calls: float
    active_branches_max: int
    active_branches_mean: float
    prompt_tokens: int
    output_tokens: int


def spread(values: Iterable[float]) -> Spread:
    return _spread(np.array(sorted(values)))


def _spread(ranked: NDArray[Any]) -> Spread:
    """Of values that rise."""
    count = len(ranked)
    if not count:
        return Spread(0, 0, 0, 0, 0, 0)
    p50, p95, p99 = (ranked[nearest_place(count, percent)].item() for percent in (50, 95, 99))
    return Spread(count, ranked.sum().item() / count, p50, p95, p99, ranked[-1].item())


def _lengths(values: Iterable[int], columns: Iterable[NDArray[np.int32]]) -> NDArray[np.int32]:
    """All of these, rising."""
    all_of = np.concatenate((np.fromiter(values, np.int32), *columns), dtype=np.int32)
    all_of.sort()
    return all_of


def statistics(trace: Trace, gap_cap: float = 10.0) -> Statistics:
    """``gap_cap`` in seconds. Raises ValueError if a call waits for ever."""
    # Columns are requests that share nothing and wait for nothing; each is a session of one call.
    sessions, columns = split(trace.sessions)
    more = sum(map(len, columns))
    ones = [np.broadcast_to(np.int32(1), more)]
    branches = [branch for session in sessions for branch in session.branches]
    calls = [call for branch in branches for call in branch.calls]
    prompt = _spread(_lengths((c.prompt for c in calls), (one.prompts for one in columns)))
    output = _spread(_lengths((c.output for c in calls), (one.outputs for one in columns)))
    prompts = sum(c.prompt for c in calls) + sum(one.prompts.sum().item() for one in columns)
    outputs = sum(c.output for c in calls) + sum(one.outputs.sum().item() for one in columns)
    count = len(calls) + more
    hits = unlimited_hits(sessions)
    missed = prompts - sum(hit.total for hit in hits)
    active = [active_branches(session) for session in sessions]
    waits = list(_waits(sessions))
    return Statistics(
        source=trace.source,
        sessions=len(sessions) + more,
        branches=len(branches) + more,
        calls=count,
        models=_models(sessions, more),
        depth=_spread(_lengths((session.calls for session in sessions), ones)),
        branches_a_session=_spread(_lengths((len(one.branches) for one in sessions), ones)),
        gap_cap=gap_cap,
        gaps=_gaps(waits, gap_cap),
        pause=_share(sum(call.gap for call in waits), count),
        prompt=prompt,
        output=output,
        uncached=_share(missed, count),
        reuse=_reuse(branches),
        cache=Cache(
            _share(prompts - missed, prompts), _share(sum(hit.shared for hit in hits), prompts)
        ),
        input_output=_share(prompts, outputs),
        uncached_output=_share(missed, outputs),
        sub_agent_calls=_share(
            sum(len(b.calls) for session in sessions for b in session.branches[1:]), count
        ),
        active_branches_max=max((most for most, _, _ in active), default=min(more, 1)),
        active_branches_mean=_share(
            more + sum(busy for _, busy, _ in active), more + sum(whole for _, _, whole in active)
        ),
        prompt_tokens=prompts,
        output_tokens=outputs,
    )


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _models(sessions: Sequence[Session], without: int) -> dict[str, int]:
    """Calls by model; those of no model, ``without`` more of them, under the empty name."""
    calls: dict[str, int] = defaultdict(int)
    if without:
        calls[""] = without
    for session in sessions:
        for branch in session.branches:
            calls[branch.model or session.model] += len(branch.calls)
    return dict(calls)


def _waits(sessions: Sequence[Session]) -> Iterator[Call]:
    """All calls but those that begin a session, which wait for nothing."""
    for session in sessions:
        for number, branch in enumerate(session.branches):
            yield from branch.calls[0 if number else 1 :]


def _gaps(waits: Sequence[Call], cap: float) -> dict[str, Gaps]:
    by_wait: dict[str, list[float]] = defaultdict(list)
    for call in waits:
        by_wait[call.wait.value].append(call.gap)
    return {
        wait: Gaps(spread(gaps), _share(sum(gap > cap for gap in gaps), len(gaps)))
        for wait, gaps in sorted(by_wait.items())
    }


def _reuse(branches: Sequence[Branch]) -> Reuse:
    kept: dict[str, list[float]] = defaultdict(list)
    by_rewrites = []
    over_half = 0
    for branch in branches:
        for previous, call in zip(branch.calls, branch.calls[1:], strict=False):
            over_half += 2 * call.kept > previous.prompt
            if call.kept < previous.prompt:
                by_rewrites.append(call.kept / call.prompt)
            else:
                kept[call.wait.value].append(call.kept / call.prompt)
    continuations = len(by_rewrites) + sum(map(len, kept.values()))
    return Reuse(
        continuations=continuations,
        over_half=_share(over_half, continuations),
        rewrites=len(by_rewrites),
        kept_after={wait: _share(sum(of), len(of)) for wait, of in sorted(kept.items())},
        kept_by_rewrites=_share(sum(by_rewrites), len(by_rewrites)),
    )
