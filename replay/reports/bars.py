"""Panels of which one axis holds names: bars and boxes, drawn on matplotlib axes."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Final

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from alipes.replay.reports.form import Bars, Box, Boxes
from alipes.replay.reports.palette import LIGHT
from alipes.replay.reports.words import three_digits

NAME_WIDTH: Final = 18
NAME_LINES: Final = 3


def wrapped(name: str) -> str:
    """A name in as many lines as a bar has room for."""
    return textwrap.fill(name, NAME_WIDTH, max_lines=NAME_LINES, placeholder=" …")


def paint_bars(panel: Bars, axes: Axes) -> None:
    ends = _grouped(panel, axes) if panel.grouped else _stacked(panel, axes)
    for place, tick in enumerate(panel.ticks):
        if tick is not None:
            axes.plot([tick, tick], [place - 0.45, place + 0.45], color=LIGHT["ink"], linewidth=2.4)
    _categories(axes, panel.categories, panel.label)
    shares = len(panel.layers) > 1 and all(abs(end - 1) < 1e-9 for _, end in ends)
    if not shares:
        _end_values(axes, ends)


def _grouped(panel: Bars, axes: Axes) -> list[tuple[float, float]]:
    """Where each bar ends: (place, value)."""
    thick = 0.8 / len(panel.layers)
    ends: list[tuple[float, float]] = []
    for number, layer in enumerate(panel.layers):
        shift = (number - (len(panel.layers) - 1) / 2) * thick
        places = [place + shift for place in range(len(layer.values))]
        axes.barh(places, layer.values, thick * 0.92, color=LIGHT[layer.colour])
        ends += zip(places, layer.values, strict=True)
    return ends


def _stacked(panel: Bars, axes: Axes) -> list[tuple[float, float]]:
    lefts = [0.0 for _ in panel.categories]
    for layer in panel.layers:
        axes.barh(
            range(len(lefts)),
            layer.values,
            0.68,
            left=lefts,
            color=[LIGHT[colour] for colour in panel.colours] or LIGHT[layer.colour],
            edgecolor=LIGHT["paper"],
            linewidth=0.6,
        )
        lefts = [left + value for left, value in zip(lefts, layer.values, strict=True)]
    return [(float(place), left) for place, left in enumerate(lefts)]


def _end_values(axes: Axes, ends: Sequence[tuple[float, float]]) -> None:
    """The value at the end of each bar, and room for it."""
    for place, value in ends:
        axes.annotate(
            _value(value),
            (value, place),
            xytext=(3, 0),
            textcoords="offset points",
            va="center",
            fontsize=10,
        )
    axes.set_xlim(0, max(value for _, value in ends) * 1.16 or 1.0)


def paint_boxes(panel: Boxes, axes: Axes) -> None:
    for place, box in enumerate(panel.boxes):
        _box(axes, place, box)
    _categories(axes, [box.name for box in panel.boxes], panel.label)
    axes.set_xlim(left=0, right=max(box.values[-1] for box in panel.boxes) * 1.05 or 1.0)


def _box(axes: Axes, place: int, box: Box) -> None:
    colour = LIGHT[box.colour]
    # Neighbours in rank lie on different lines, always on the same ones.
    heights = [place + 0.3 * ((i * 0.618034) % 1 - 0.5) for i in range(len(box.values))]
    axes.plot(box.values, heights, "o", color=colour, markersize=3.2, alpha=0.45, mew=0)
    axes.plot([box.p5, box.p25], [place, place], color=colour, linewidth=1.3)
    axes.plot([box.p75, box.p95], [place, place], color=colour, linewidth=1.3)
    axes.barh(
        [place],
        [box.p75 - box.p25],
        0.56,
        left=[box.p25],
        facecolor="none",
        edgecolor=colour,
        linewidth=1.5,
    )
    axes.plot([box.p50, box.p50], [place - 0.28, place + 0.28], color=LIGHT["ink"], linewidth=2.0)
    axes.annotate(
        _value(box.p50),
        (box.p50, place - 0.28),
        xytext=(0, 2),
        textcoords="offset points",
        ha="center",
        va="bottom",
        fontsize=10,
    )


def _categories(axes: Axes, names: Sequence[str], label: str) -> None:
    """Names beside horizontal bars, the first on top."""
    axes.set_yticks(range(len(names)), [wrapped(name) for name in names])
    axes.set_ylim(len(names) - 0.4, -0.7)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(label)
    axes.grid(True, axis="x")
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(FuncFormatter(tick))


def tick(value: float, position: int | None = None) -> str:
    """A number on an axis."""
    del position
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.6g}"


def _value(value: float) -> str:
    return f"{value:,.0f}" if value == round(value) else three_digits(value)
