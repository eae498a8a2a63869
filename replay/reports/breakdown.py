"""Where the time of sessions goes, beside the least it could take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from alipes.replay.reports.form import Bars, Figure, Layer
from alipes.replay.reports.groups import Group
from alipes.replay.reports.sessions import PART_NAMES, SessionResult

ORDER: Final = ("gap", "decode", "prefill", "restore", "recompute", "switch", "slot", "queue")
"""What must be comes first, what sharing costs after it."""
BAR_ORDER: Final = (*ORDER, *(name for name in PART_NAMES if name not in ORDER))
WORDS: Final = {
    "gap": "tools",
    "decode": "decode",
    "prefill": "prefill",
    "restore": "restore",
    "recompute": "recompute",
    "switch": "switch",
    "slot": "wait for a slot",
    "queue": "queue at the gateway",
    "admission": "admission",
}


def breakdown_figure(groups: Sequence[Group]) -> Figure | None:
    """Mean seconds a session by part; a tick at the mean lower bound of the same sessions."""
    there = [(group, found) for group in groups if (found := _told(group))]
    if not there:
        return None
    rows = [mean_parts(sessions) for _, sessions in there]
    layers = tuple(
        Layer(WORDS[part], part, tuple(row[part] for row in rows))
        for part in BAR_ORDER
        if any(row[part] for row in rows)
    )
    bounds = tuple(mean_bound(sessions) for _, sessions in there)
    known = any(bound is not None for bound in bounds)
    return Figure(
        "time",
        "Where the time goes",
        "Mean seconds of a session: those of its calls (branches that run side by side add up),"
        " and those of tools, in which no call was due."
        + (" The dark tick is the least that the sessions could take." if known else ""),
        (
            Bars(
                "A session, on average",
                "s",
                tuple(group.label for group, _ in there),
                layers,
                ticks=bounds if known else (),
                tick_name="lower bound" if known else "",
            ),
        ),
    )


def _told(group: Group) -> list[SessionResult]:
    return [session for session in group.whole if session.parts is not None]


def mean_parts(sessions: Sequence[SessionResult]) -> dict[str, float]:
    """Mean seconds of these sessions by part, tool gaps too."""
    count = len(sessions)
    means = {
        name: sum(float(getattr(session.parts, name)) for session in sessions) / count
        for name in PART_NAMES
    }
    return {**means, "gap": sum(session.gap for session in sessions) / count}


def mean_bound(sessions: Sequence[SessionResult]) -> float | None:
    """None unless every one of the sessions has a bound."""
    bounds = [session.bound for session in sessions if session.bound is not None]
    return sum(bounds) / len(bounds) if bounds and len(bounds) == len(sessions) else None
