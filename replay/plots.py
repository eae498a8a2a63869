"""Figures drawn by matplotlib, as the inside of SVG elements.

The same panel gives the same bytes: ids come from a fixed salt, no date is written, no setting of
the user's counts. Text stays text, without a font, so that the page's own is used. Colours are
those of ``palette.LIGHT``; a page may replace them.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import (
    FixedLocator,
    FuncFormatter,
    LogLocator,
    MaxNLocator,
    NullFormatter,
    NullLocator,
)

from alipes.replay.reports.bars import paint_bars, paint_boxes, tick, wrapped
from alipes.replay.reports.form import Areas, Bars, Boxes, Lines, Panel
from alipes.replay.reports.palette import LIGHT

WIDTH: Final = 400
"""Units of a panel; a phone shows about as many pixels."""
HEIGHT: Final = 270
ROW: Final = 27
"""Height that a bar or box takes."""
FRAME: Final = 68
"""Height of the title, the axis and its label; BOTTOM of the latter two."""
BOTTOM: Final = 44
LEFT: Final = 56
STROKES: Final[dict[str, Any]] = {"line": "-", "dashed": (0, (4, 2)), "dotted": (0, (1.2, 1.2))}
LETTER: Final = 6.4
"""Units that a letter takes on average, at most."""
POINTS_A_UNIT: Final = 72
STYLE: Final[dict[Any, Any]] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "alipes",
    "font.size": 11.0,
    "axes.titlesize": 12.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.edgecolor": LIGHT["ink"],
    "axes.labelcolor": LIGHT["ink"],
    "axes.titlecolor": LIGHT["ink"],
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "xtick.color": LIGHT["ink"],
    "ytick.color": LIGHT["ink"],
    "text.color": LIGHT["ink"],
    "grid.color": LIGHT["grid"],
    "grid.linewidth": 0.7,
    "lines.linewidth": 1.8,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "path.simplify": False,
    "text.parse_math": False,
}


@dataclass(frozen=True, slots=True)
class Drawing:
    """What goes into an ``<svg viewBox="0 0 width height">``."""

    width: int
    height: int
    body: str


def draw(panel: Panel, salt: str) -> Drawing:
    """``salt`` is unique among the drawings of one page: it goes into the ids."""
    height = _height(panel)
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({**STYLE, "svg.hashsalt": salt})
        canvas = Canvas(figsize=(WIDTH / POINTS_A_UNIT, height / POINTS_A_UNIT))
        axes = canvas.add_axes(_frame(panel, height))
        axes.set_title(panel.title)
        _paint(panel, axes)
        written = io.StringIO()
        # `savefig` would lay everything out once more, for nothing.
        backend: Any = FigureCanvasSVG(canvas)
        backend.print_svg(written, metadata=_NO_METADATA)
    return Drawing(WIDTH, height, _inside(written.getvalue()))


_NO_METADATA: Final = {"Date": None, "Creator": None, "Format": None, "Type": None}


def _height(panel: Panel) -> int:
    match panel:
        case Boxes(boxes=boxes):
            return max(HEIGHT // 2, FRAME + (ROW + 8) * len(boxes))
        case Bars(grouped=True, categories=categories, layers=layers):
            return FRAME + len(categories) * (ROW // 2 * len(layers) + 10)
        case Bars(categories=categories):
            return FRAME + ROW * len(categories)
    return HEIGHT


def _frame(panel: Panel, height: int) -> tuple[float, float, float, float]:
    """Left, bottom, width and height of the axes, as shares: room for the names of categories."""
    left: float = LEFT
    if isinstance(panel, Bars | Boxes):
        lines = [line for name in _names(panel) for line in wrapped(name).splitlines()]
        left = 10 + LETTER * max(map(len, lines), default=0)
    return left / WIDTH, BOTTOM / height, (WIDTH - left - 10) / WIDTH, (height - FRAME) / height


def _names(panel: Bars | Boxes) -> tuple[str, ...]:
    if isinstance(panel, Bars):
        return panel.categories
    return tuple(box.name for box in panel.boxes)


def _inside(svg: str) -> str:
    """The elements of a whole SVG file; without ids that nothing refers to, fonts, metadata."""
    body = svg[svg.index(">", svg.index("<svg")) + 1 : svg.rindex("</svg>")]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r"<style[^>]*>.*?</style>", "", body, flags=re.DOTALL)
    body = re.sub(r"<!--.*?-->", "", body, flags=re.DOTALL)
    body = body.replace("xlink:href", "href")
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', body))
    body = re.sub(
        r' id="([^"]*)"', lambda found: found.group(0) if found.group(1) in used else "", body
    )
    body = re.sub(r" font-family: [^;\"]*;", "", body)
    body = re.sub(r"\d+\.\d{3,}", lambda found: f"{float(found.group()):.2f}", body)
    body = re.sub(r' transform="rotate\(-0 [^"]*"', "", body)
    body = re.sub(r"<defs>\s*</defs>", "", body)
    return re.sub(r"\s*\n\s*", "\n", body).strip()


def _paint(panel: Panel, axes: Axes) -> None:
    match panel:
        case Lines():
            _lines(panel, axes)
        case Areas():
            _areas(panel, axes)
        case Bars():
            paint_bars(panel, axes)
        case Boxes():
            paint_boxes(panel, axes)


def _lines(panel: Lines, axes: Axes) -> None:
    for one in panel.series:
        axes.plot(
            one.x,
            one.y,
            color=LIGHT[one.colour],
            linestyle=STROKES[one.stroke],
            drawstyle="steps-post" if panel.stepped else "default",
            marker="o" if panel.dots else "",
            markersize=4.5,
            clip_on=not panel.dots,
        )
    _axes(panel.x_label, panel.y_label, axes)
    axes.grid(True)
    for mark in panel.marks:
        _mark(axes, mark.axis, mark.at, mark.text, LIGHT[mark.colour])
    if panel.log_x:
        _logarithmic(axes, [x for one in panel.series for x in one.x])
    else:
        axes.xaxis.set_major_formatter(FuncFormatter(tick))
        axes.set_xlim(left=min(0.0, *(x for one in panel.series for x in one.x)))
    if panel.y_range:
        axes.set_ylim(panel.y_range[0], panel.y_range[1] * 1.01)
    else:
        _y_range(axes, [y for one in panel.series for y in one.y])
        axes.yaxis.set_major_formatter(FuncFormatter(tick))


def _y_range(axes: Axes, values: Sequence[float]) -> None:
    """From 0, unless all is so far above it that nothing could be told apart."""
    low, high = min(values), axes.get_ylim()[1]
    axes.set_ylim(max(0.0, low - (high - low) * 0.3) if low > 0.6 * high else 0.0, high)


def _mark(axes: Axes, axis: str, at: float, text: str, colour: str) -> None:
    if axis == "x":
        axes.axvline(at, color=colour, linewidth=1.1, linestyle=(0, (1, 1.5)))
        return
    axes.axhline(at, color=colour, linewidth=1.1, linestyle=(0, (1, 1.5)))
    axes.annotate(
        text,
        (1.0, at),
        xycoords=axes.get_yaxis_transform(),
        xytext=(0, 2),
        textcoords="offset points",
        ha="right",
        va="bottom",
    )


def _logarithmic(axes: Axes, values: Sequence[float]) -> None:
    low, high = min(values), max(values)
    axes.set_xlim(low / 1.15, high * 1.15)
    axes.set_xscale("log")
    narrow = high < 30 * low
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if narrow else (1.0,)))
    axes.xaxis.set_minor_locator(NullLocator() if narrow else LogLocator(subs=range(2, 10)))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter(FuncFormatter(tick))


def _areas(panel: Areas, axes: Axes) -> None:
    x = panel.layers[0].x
    only = len(x) == 1
    axes.stackplot(
        # A single point would have no width.
        (x[0] - 0.5, x[0] + 0.5) if only else x,
        [layer.y * 2 if only else layer.y for layer in panel.layers],
        colors=[LIGHT[layer.colour] for layer in panel.layers],
        linewidth=0,
    )
    _axes(panel.x_label, panel.y_label, axes)
    axes.margins(x=0)
    axes.set_ylim(0, panel.top * 1.03)
    axes.grid(True, axis="y")
    axes.xaxis.set_major_locator(FixedLocator(x) if only else MaxNLocator(6, integer=True))
    axes.yaxis.set_major_formatter(FuncFormatter(tick))


def _axes(x_label: str, y_label: str, axes: Axes) -> None:
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
