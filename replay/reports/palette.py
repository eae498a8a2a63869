"""Colours by key, for light and dark pages.

Eight for configurations: the nearest two stay 10 units of OKLab (of 100) apart under simulated
protanopia, deuteranopia and tritanopia, on white and on the dark ground. Parts of time have
colours by meaning: greys wait, warm ones are lost to sharing, blue and green ones compute.
"""

from __future__ import annotations

from typing import Final

from alipes.replay.reports.form import Stroke

CYCLE: Final = 8

LIGHT: Final = {
    "paper": "#ffffff",
    "ink": "#1d2329",
    "grid": "#d9dee3",
    "c0": "#1c3fd0",
    "c1": "#b0440c",
    "c2": "#0f9284",
    "c3": "#790075",
    "c4": "#9b9c05",
    "c5": "#079dfa",
    "c6": "#864777",
    "c7": "#464035",
    "prefill": "#2a6fbb",
    "decode": "#0d9b79",
    "switch": "#c4500f",
    "restore": "#e8a33d",
    "recompute": "#a3277f",
    "slot": "#6f7a85",
    "queue": "#98a2ac",
    "admission": "#b9c1c9",
    "linger": "#b0b9c2",
    "idle": "#dfe4e8",
    "gap": "#d3dce8",
}

DARK: Final = {
    "paper": "#14171a",
    "ink": "#e6e9ec",
    "grid": "#343b42",
    "c0": "#5a8fd8",
    "c1": "#ff7a1f",
    "c2": "#1cc29c",
    "c3": "#ec8ffa",
    "c4": "#f2d832",
    "c5": "#8fe3ee",
    "c6": "#b96a52",
    "c7": "#f6f6f0",
    "prefill": "#5aa0ea",
    "decode": "#2cc39c",
    "switch": "#f0762e",
    "restore": "#f3bd62",
    "recompute": "#d967b8",
    "slot": "#8e99a4",
    "queue": "#6c7680",
    "admission": "#4d565f",
    "linger": "#59626b",
    "idle": "#2b3137",
    "gap": "#39434f",
}


def series_colour(number: int) -> str:
    """The key of the ``number``-th configuration; after eight they begin anew."""
    return f"c{number % CYCLE}"


def series_stroke(number: int, live: bool) -> Stroke:
    """Live runs beside simulated ones are dashed; configurations after eight are dotted."""
    if live:
        return "dashed"
    return "line" if number < CYCLE else "dotted"
