"""Every configuration beside a baseline, paired by session."""

from __future__ import annotations

from collections.abc import Sequence

from alipes.replay.compare import percentile_ratio, signs
from alipes.replay.reports.form import Cell, Column, Table
from alipes.replay.reports.groups import Group

Values = dict[str, list[float]]


def find_baseline(groups: Sequence[Group], wanted: str) -> str:
    """The configuration to compare with: the one wanted, where there is none the first."""
    names = [group.configuration for group in groups]
    return wanted if wanted in names else names[0]


def counterpart(group: Group, groups: Sequence[Group], baseline: str) -> Group | None:
    """The baseline's group that this one is compared with: of the same load, and where there are
    several of the same kind and lease; for groups of the baseline itself the first of them."""
    there = [one for one in groups if one.configuration == baseline and one.load == group.load]
    if group.configuration != baseline:
        there.sort(key=lambda one: (one.kind != group.kind, one.lease != group.lease))
    return there[0] if there and there[0] is not group else None


def paired_table(groups: Sequence[Group], baseline: str) -> Table | None:
    rows = []
    for group in groups:
        base = counterpart(group, groups, baseline)
        if base is not None:
            rows.append(_row(group, base))
    if not rows:
        return None
    return Table(
        "paired",
        "Paired by session",
        "How many times as fast as the baseline: its percentile over this configuration's, over"
        " the sessions that both completed (TTFT: that both served), above 1 is faster. In"
        " brackets 95 % intervals from a bootstrap over sessions.",
        (
            Column("configuration", "text"),
            Column("baseline", "text"),
            Column("SCT p50", "interval"),
            Column("SCT p95", "interval"),
            Column("TTFT p50", "interval"),
            Column("TTFT p95", "interval"),
            Column("sessions complete sooner", "text"),
        ),
        tuple(rows),
    )


def _row(group: Group, base: Group) -> tuple[Cell, ...]:
    seeds = shared_seeds(group, base)
    ours, theirs = by_session_sct(group, seeds), by_session_sct(base, seeds)
    first, their_first = by_session_ttft(group, seeds), by_session_ttft(base, seeds)
    told = signs(theirs, ours)
    return (
        group.label,
        base.label,
        percentile_ratio(theirs, ours, 50),
        percentile_ratio(theirs, ours, 95),
        percentile_ratio(their_first, first, 50),
        percentile_ratio(their_first, first, 95),
        f"{told.faster} of {told.pairs}" if told.pairs else None,
    )


def shared_seeds(one: Group, other: Group) -> frozenset[int] | None:
    """The seeds of both; None, which stands for all, where they have none in common."""
    shared = {run.info.seed for run in one.runs} & {run.info.seed for run in other.runs}
    return frozenset(shared) or None


def by_session_sct(group: Group, seeds: frozenset[int] | None = None) -> Values:
    """Completion times of each session, one for each run of these seeds that completed it."""
    found: Values = {}
    for session in group.sessions:
        if session.sct is not None and (seeds is None or session.seed in seeds):
            found.setdefault(session.session, []).append(session.sct)
    return found


def by_session_ttft(group: Group, seeds: frozenset[int] | None = None) -> Values:
    found: Values = {}
    for session in group.sessions:
        if seeds is None or session.seed in seeds:
            found.setdefault(session.session, []).extend(session.ttft)
    return found
