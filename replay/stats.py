"""The one place that defines the figures a replay reports."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from alipes.replay.records import CallRecord, PlannedTotals


def nearest_rank(values: Iterable[float], percent: float) -> float | None:
    """The smallest value that at least ``percent`` (0 to 100) of the values do not exceed; None
    of no values."""
    ranked = sorted(values)
    return ranked[nearest_place(len(ranked), percent)] if ranked else None


def nearest_place(count: int, percent: float) -> int:
    """Where that value stands among ``count`` rising ones."""
    return max(0, math.ceil(percent / 100 * count) - 1)


class SessionRow(msgspec.Struct, frozen=True):
    """One session. ``sct`` is the session completion time: seconds from the first intended
    enqueue to the last completion, None unless every call succeeded. TTFT counts from a call's
    intended enqueue."""

    session: str
    model: str
    calls: int
    planned: int
    failed: int
    sct: float | None
    ttft_p50: float | None
    ttft_p95: float | None
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    shortened: float
    error: str


class ModelRow(msgspec.Struct, frozen=True):
    """All sessions of one model, or of all models (``model`` "all"). ``tpot`` is the time per
    output token after the first. ``other_length`` counts calls that succeeded with another
    number of completion tokens than recorded."""

    model: str
    sessions: int
    complete: int
    calls: int
    failed: int
    other_length: int
    sct_p50: float | None
    sct_p95: float | None
    ttft_p50: float | None
    ttft_p95: float | None
    tpot_p50: float | None
    tpot_p95: float | None
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


class Summary(msgspec.Struct, frozen=True):
    """The result of a replay. ``complete`` is false when it was interrupted. ``errors`` counts
    failed calls by their message."""

    complete: bool
    seconds: float
    token_counts: str
    models: tuple[ModelRow, ...]
    sessions: tuple[SessionRow, ...]
    errors: dict[str, int]

    @property
    def failed(self) -> int:
        return sum(self.errors.values())


def summarise(
    planned: Sequence[PlannedTotals],
    records: Sequence[CallRecord],
    complete: bool,
    token_counts: str,
) -> Summary:
    """Rows for every planned session, in plan order, and for every model."""
    of_session: defaultdict[str, list[CallRecord]] = defaultdict(list)
    for record in records:
        of_session[record.session].append(record)
    sessions = tuple(_session_row(plan, of_session[plan.session]) for plan in planned)
    # Branches may have models of their own.
    used = [*(plan.model for plan in planned), *(record.model for record in records)]
    models = tuple(dict.fromkeys(used))
    rows = [
        _model_row(
            model,
            [row for row in sessions if row.model == model],
            [record for record in records if record.model == model],
        )
        for model in models
    ]
    if len(models) > 1:
        rows.append(_model_row("all", sessions, records))
    errors = Counter(record.error for record in records if record.error)
    seconds = max((record.finished for record in records), default=0.0)
    return Summary(complete, seconds, token_counts, tuple(rows), sessions, dict(errors))


def _session_row(plan: PlannedTotals, records: Sequence[CallRecord]) -> SessionRow:
    good = [record for record in records if not record.error]
    whole = len(good) == plan.calls
    ttft = [record.ttft for record in good if record.ttft is not None]
    return SessionRow(
        session=plan.session,
        model=plan.model,
        calls=len(good),
        planned=plan.calls,
        failed=len(records) - len(good),
        sct=_spanned(good) if whole else None,
        ttft_p50=nearest_rank(ttft, 50),
        ttft_p95=nearest_rank(ttft, 95),
        prompt_tokens=sum(record.prompt_tokens or 0 for record in good),
        cached_tokens=sum(record.cached_tokens or 0 for record in good),
        completion_tokens=sum(record.completion_tokens or 0 for record in good),
        shortened=plan.share,
        error=next((record.error for record in records if record.error), ""),
    )


def _spanned(records: Sequence[CallRecord]) -> float:
    """Calls of branches may overlap: neither the first nor the last to end need be the ends."""
    return max(r.finished for r in records) - min(r.intended for r in records)


def _model_row(
    model: str, sessions: Sequence[SessionRow], records: Sequence[CallRecord]
) -> ModelRow:
    good = [record for record in records if not record.error]
    sct = [row.sct for row in sessions if row.sct is not None]
    ttft = [record.ttft for record in good if record.ttft is not None]
    tpot = [record.tpot for record in good if record.tpot is not None]
    return ModelRow(
        model=model,
        sessions=len(sessions),
        complete=len(sct),
        calls=len(good),
        failed=len(records) - len(good),
        other_length=sum(
            record.completion_tokens not in (None, record.expected_tokens) for record in good
        ),
        sct_p50=nearest_rank(sct, 50),
        sct_p95=nearest_rank(sct, 95),
        ttft_p50=nearest_rank(ttft, 50),
        ttft_p95=nearest_rank(ttft, 95),
        tpot_p50=nearest_rank(tpot, 50),
        tpot_p95=nearest_rank(tpot, 95),
        prompt_tokens=sum(record.prompt_tokens or 0 for record in good),
        cached_tokens=sum(record.cached_tokens or 0 for record in good),
        completion_tokens=sum(record.completion_tokens or 0 for record in good),
    )
