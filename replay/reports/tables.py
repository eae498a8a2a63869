"""The tables of a report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from alipes.replay.reports.form import Amount, Cell, Column, Table
from alipes.replay.reports.groups import Group
from alipes.replay.reports.measures import NAMES, cached_share, counters, measure
from alipes.replay.reports.paired import by_session_sct
from alipes.replay.stats import nearest_rank

SHOWN: Final = (
    "sct_p50",
    "sct_p95",
    "ttft_p50",
    "ttft_p95",
    "tpot_p50",
    "cached_share",
    "switch_share",
    "rounds",
    "sp_share",
)
HEADS: Final = {
    "cached_share": "cached",
    "switch_share": "switching",
    "sp_share": "SP let in",
}
TRIVIAL: Final[dict[str, tuple[Cell, ...]]] = {
    "runs": (1,),
    "failed": (0,),
    "SCT / bound": (None,),
}
"""What such a column may hold in every row and be left out."""
MOST_MODEL_ROWS: Final = 20
MOST_SESSIONS: Final = 500


def configuration_table(groups: Sequence[Group]) -> Table:
    found = [(group, measure(group)) for group in groups]
    shown = [name for name in SHOWN if any(name in numbers for _, numbers in found)]
    columns = [
        Column("configuration", "text"),
        Column("runs", "count"),
        Column("calls", "count"),
        Column("failed", "count"),
        Column("sessions", "text"),
        *(Column(HEADS.get(name, NAMES[name][0]), NAMES[name][1]) for name in shown),
        Column("SCT / bound", "ratio"),
    ]
    rows = [
        (
            group.label,
            len(group.runs),
            len(group.calls),
            group.failed,
            f"{len(group.whole)}/{len(group.sessions)}",
            *(numbers.get(name) for name in shown),
            over_bound(group),
        )
        for group, numbers in found
    ]
    return pruned(
        Table(
            "configurations",
            "Configurations",
            "Seconds and shares; p50 and p95 by nearest rank, TTFT from when a call was due."
            " Sessions: complete of all. SCT / bound is the median over sessions.",
            tuple(columns),
            tuple(rows),
        )
    )


def over_bound(group: Group) -> float | None:
    return nearest_rank(
        [one.sct / one.bound for one in group.whole if one.sct is not None and one.bound], 50
    )


def pruned(table: Table) -> Table:
    """Without those of the named columns that say nothing: see ``TRIVIAL``."""
    kept = [
        i
        for i, column in enumerate(table.columns)
        if column.name not in TRIVIAL
        or any(row[i] not in TRIVIAL[column.name] for row in table.rows)
    ]
    return Table(
        table.name,
        table.title,
        table.text,
        tuple(table.columns[i] for i in kept),
        tuple(tuple(row[i] for i in kept) for row in table.rows),
    )


def published_table(groups: Sequence[Group]) -> Table | None:
    """Ours beside what a paper says, for the figures that ``NAMES`` knows."""
    rows: list[tuple[Cell, ...]] = []
    for group in groups:
        numbers = measure(group)
        for name, theirs in group.runs[0].info.published.items():
            if name in NAMES:
                rows.append((group.label, *_beside(name, numbers.get(name), theirs)))
    if not rows:
        return None
    sources = sorted({group.runs[0].info.published_source for group in groups} - {""})
    return Table(
        "published",
        "Beside published numbers",
        f"Published: {'; '.join(sources)}." if sources else "Where they are published is not said.",
        (
            Column("configuration", "text"),
            Column("figure", "text"),
            Column("here", "number"),
            Column("published", "number"),
            Column("here / published", "ratio"),
        ),
        tuple(rows),
    )


def _beside(name: str, ours: float | None, theirs: float) -> tuple[Cell, ...]:
    words, kind = NAMES[name]
    return (
        words,
        None if ours is None else Amount(ours, kind),
        Amount(theirs, kind),
        ours / theirs if ours is not None and theirs else None,
    )


def model_table(groups: Sequence[Group]) -> Table | None:
    """A row for each model of each group; None where there is but one model."""
    models = sorted({call.model for group in groups for call in group.calls})
    if len(models) < 2:
        return None
    rows = [
        row for group in groups for model in models if (row := _model_row(group, model)) is not None
    ]
    return Table(
        "models",
        "By model",
        "As above, for each model alone.",
        (
            Column("configuration", "text"),
            Column("model", "text"),
            Column("calls", "count"),
            Column("sessions", "text"),
            Column("SCT p50", "seconds"),
            Column("SCT p95", "seconds"),
            Column("TTFT p50", "seconds"),
            Column("TTFT p95", "seconds"),
            Column("TPOT p50", "seconds"),
            Column("cached", "share"),
        ),
        tuple(rows),
        long=len(rows) > MOST_MODEL_ROWS,
    )


def _model_row(group: Group, model: str) -> tuple[Cell, ...] | None:
    calls = [call for call in group.calls if call.model == model]
    sessions = [one for one in group.sessions if one.model == model]
    if not calls:
        return None
    sct = [one.sct for one in sessions if one.sct is not None]
    ttft = [call.ttft for call in calls if call.ttft is not None]
    tpot = [call.tpot for call in calls if call.tpot is not None]
    return (
        group.label,
        model,
        len(calls),
        f"{len(sct)}/{len(sessions)}",
        *(nearest_rank(values, rank) for values in (sct, ttft) for rank in (50, 95)),
        nearest_rank(tpot, 50),
        cached_share(calls),
    )


def counter_table(groups: Sequence[Group]) -> Table | None:
    """What the clusters counted; a row each, a column for each group."""
    found = [counters(group) for group in groups]
    names = sorted({name for counts in found for name in counts})
    if not names:
        return None
    return Table(
        "counters",
        "Counters",
        "Totals of the cluster; of several runs the mean.",
        (Column("counter", "text"), *(Column(group.label, "count") for group in groups)),
        tuple((name, *(counts.get(name) for counts in found)) for name in names),
        long=True,
    )


def session_table(groups: Sequence[Group]) -> Table | None:
    """SCT of every session, a column for each group; of several runs the mean."""
    found = [by_session_sct(group) for group in groups]
    names = list(dict.fromkeys(name for values in found for name in values))
    if not names:
        return None
    rows = [(name, *(_mean(values.get(name, ())) for values in found)) for name in names]
    return Table(
        "sessions",
        "Every session",
        "SCT in seconds; of several runs the mean. Empty where the session was not completed.",
        (Column("session", "text"), *(Column(group.label, "seconds") for group in groups)),
        tuple(rows[:MOST_SESSIONS]),
        long=True,
    )


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
