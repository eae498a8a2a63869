"""What became of each session of a run: completion time, first tokens, where its seconds went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from alipes.replay.records import CallRecord, Parts
from alipes.replay.runs import Run

PARTS: Final = msgspec.structs.fields(Parts)
PART_NAMES: Final = tuple(field.name for field in PARTS)


@dataclass(frozen=True, slots=True)
class SessionResult:
    """``sct`` is seconds from the first intended enqueue to the last completion, None unless
    every planned call succeeded. ``gap`` is the time in which no call of it was due or under way,
    ``parts`` sums what its calls waited for and did (None where a call does not say). ``bound`` is
    the least SCT possible."""

    seed: int
    session: str
    model: str
    calls: int
    failed: int
    sct: float | None
    ttft: tuple[float, ...]
    gap: float
    parts: Parts | None
    bound: float | None


def planned_calls(runs: Sequence[Run]) -> dict[tuple[int, str], int]:
    """How many calls each session of (seed, id) has when it is whole, as far as these runs tell:
    as planned, or what a complete run did of it."""
    planned: dict[tuple[int, str], int] = {}
    for run in runs:
        known = dict(run.info.planned)
        if run.info.complete and not known:
            for call in run.counted:
                known[call.session] = known.get(call.session, 0) + 1
        for session, count in known.items():
            place = (run.info.seed, session)
            planned[place] = max(planned.get(place, 0), count)
    return planned


def session_results(run: Run, planned: Mapping[tuple[int, str], int]) -> tuple[SessionResult, ...]:
    """Every session of the run, those it planned first, in their order."""
    calls: dict[str, list[CallRecord]] = {session: [] for session in run.info.planned}
    for call in run.counted:
        calls.setdefault(call.session, []).append(call)
    return tuple(
        _result(run, session, records, planned.get((run.info.seed, session)))
        for session, records in calls.items()
    )


def _result(
    run: Run, session: str, records: Sequence[CallRecord], planned: int | None
) -> SessionResult:
    good = [call for call in records if not call.error]
    whole = bool(good) and len(good) == len(records) == planned
    return SessionResult(
        seed=run.info.seed,
        session=session,
        model=records[0].model if records else "",
        calls=len(good),
        failed=len(records) - len(good),
        sct=max(c.finished for c in good) - min(c.intended for c in good) if whole else None,
        ttft=tuple(call.ttft for call in good if call.ttft is not None),
        gap=_gaps(good),
        parts=_sum(good),
        bound=run.info.bound.get(session),
    )


def _gaps(calls: Sequence[CallRecord]) -> float:
    """Measured, not as recorded in the trace: replays cap gaps."""
    gaps, until = 0.0, float("inf")
    for call in sorted(calls, key=lambda call: call.intended):
        gaps += max(0.0, call.intended - until)
        until = call.finished if until == float("inf") else max(until, call.finished)
    return gaps


def _sum(calls: Sequence[CallRecord]) -> Parts | None:
    parts = [call.parts for call in calls if call.parts is not None]
    if not parts or len(parts) < len(calls):
        return None
    return Parts(**{name: sum(getattr(part, name) for part in parts) for name in PART_NAMES})
