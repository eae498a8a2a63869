"""Figures of session completion and time to first token (Talaria Figures 6, 7, 8a, 11)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from alipes.replay.reports.form import Box, Boxes, Figure, Lines, Mark, Panel, Series, Stroke
from alipes.replay.reports.groups import Group, load_words, loads_of
from alipes.replay.stats import nearest_rank

MOST_POINTS: Final = 500
"""A curve of more points than this looks the same with these."""
LEAST_SECONDS: Final = 1e-3
"""Where a logarithmic axis of seconds begins at the earliest."""
QUARTERS: Final = (5, 25, 50, 75, 95)


def cdf(name: str, colour: str, values: Sequence[float], stroke: Stroke = "line") -> Series:
    """The empirical distribution: at each value the share of values up to it."""
    ranked, count = sorted(values), len(values)
    ranks = range(1, count + 1)
    if count > MOST_POINTS:
        ranks_kept = {round(i * count / MOST_POINTS) for i in range(1, MOST_POINTS + 1)}
        kept = sorted(ranks_kept | {1, count})
    else:
        kept = list(ranks)
    return Series(
        name,
        colour,
        (ranked[0], *(ranked[rank - 1] for rank in kept)),
        (0.0, *(rank / count for rank in kept)),
        stroke,
    )


def session_figure(groups: Sequence[Group]) -> Figure | None:
    """CDF and boxes of SCT, a pair of panels for each load."""
    panels: list[Panel] = []
    for load in loads_of(groups):
        there = [group for group in groups if group.load == load and group.whole]
        if there:
            words = f", {load_words(load)}" if load else ""
            panels.append(_cdf_panel(f"All sessions{words}", "SCT, s", there, completion_times))
            panels.append(_boxes(f"Every session{words}", there))
    if not panels:
        return None
    return Figure(
        "sct",
        "Session completion time",
        "Left, the share of sessions that are complete after so many seconds from their first"
        " call; further left is faster. Right, a point for every session, boxes from the 25th to"
        " the 75th percentile, whiskers from the 5th to the 95th, the median in figures.",
        tuple(panels),
    )


def first_token_figure(groups: Sequence[Group]) -> Figure | None:
    """CDF of TTFT over all calls, p95 marked, a panel for each load."""
    panels = []
    for load in loads_of(groups):
        there = [g for g in groups if g.load == load and first_tokens(g)]
        if there:
            title = load_words(load).capitalize() if load else "All calls"
            panels.append(_cdf_panel(title, "TTFT, s", there, first_tokens, marked=95))
    if not panels:
        return None
    return Figure(
        "ttft",
        "Time to first token",
        "The share of calls that had their first token so many seconds after they were due;"
        " dotted lines are the 95th percentiles.",
        tuple(panels),
    )


def completion_times(group: Group) -> list[float]:
    return [session.sct for session in group.whole if session.sct is not None]


def first_tokens(group: Group) -> list[float]:
    return [call.ttft for call in group.calls if call.ttft is not None]


def _cdf_panel(
    title: str,
    label: str,
    groups: Sequence[Group],
    values: Callable[[Group], list[float]],
    marked: float | None = None,
) -> Lines:
    series, marks = [], []
    for group in groups:
        shown = [max(value, LEAST_SECONDS) for value in values(group)]
        series.append(cdf(group.name, group.colour, shown, group.stroke))
        rank = nearest_rank(shown, marked) if marked else None
        if rank is not None:
            marks.append(Mark("x", rank, "", group.colour))
    return Lines(
        title,
        f"{label} (logarithmic)",
        "share",
        tuple(series),
        log_x=True,
        stepped=True,
        marks=tuple(marks),
        y_range=(0.0, 1.0),
    )


def _boxes(title: str, groups: Sequence[Group]) -> Boxes:
    return Boxes(title, "SCT, s", tuple(box(g.name, g.colour, completion_times(g)) for g in groups))


def box(name: str, colour: str, values: Sequence[float]) -> Box:
    """Percentiles by nearest rank. ``values`` are not empty."""
    ranked = sorted(values)
    p5, p25, p50, p75, p95 = (nearest_rank(ranked, percent) or 0.0 for percent in QUARTERS)
    return Box(name, colour, p5, p25, p50, p75, p95, tuple(ranked))
