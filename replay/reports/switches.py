"""Figure of model switches: how long, and by which path (Talaria Figure 12)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from alipes.replay.reports.form import Bars, Figure, Layer, Lines
from alipes.replay.reports.groups import Group
from alipes.replay.reports.latency import cdf
from alipes.replay.reports.measures import PATHS, seconds_on
from alipes.replay.runs import SwitchRecord

MILLISECONDS: Final = 1000.0
LEAST_MILLISECONDS: Final = 0.1
PATH_WORDS: Final = {
    "d2d": ("on the device", "decode"),
    "remap": ("remapped", "prefill"),
    "partial": ("partly from the host", "restore"),
    "h2d": ("from the host", "switch"),
}


def switch_figure(groups: Sequence[Group]) -> Figure | None:
    there = [(group, switches) for group in groups if (switches := _switches(group))]
    if not there:
        return None
    curves = tuple(
        cdf(
            group.label,
            group.colour,
            [max(one.seconds * MILLISECONDS, LEAST_MILLISECONDS) for one in switches],
            group.stroke,
        )
        for group, switches in there
    )
    layers = tuple(
        Layer(
            *PATH_WORDS[path],
            tuple(len(seconds_on(switches, path)) / len(switches) for _, switches in there),
        )
        for path in PATHS
        if any(one.path == path for _, switches in there for one in switches)
    )
    return Figure(
        "switches",
        "Model switches",
        "Left, the share of switches that took so many milliseconds at most; right, where the"
        " weights came from.",
        (
            Lines(
                "Latency",
                "ms (logarithmic)",
                "share",
                curves,
                log_x=True,
                stepped=True,
                y_range=(0.0, 1.0),
            ),
            Bars("Paths", "share of switches", tuple(g.label for g, _ in there), layers),
        ),
    )


def _switches(group: Group) -> list[SwitchRecord]:
    return [one for run in group.runs for one in run.switches]
