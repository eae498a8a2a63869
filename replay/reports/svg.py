"""A figure as one SVG file for Markdown: its panels side by side over a legend."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

from alipes.replay.plots import Drawing
from alipes.replay.reports.form import Figure
from alipes.replay.reports.page import Entry, legend, shared_legend
from alipes.replay.reports.palette import LIGHT

COLUMNS: Final = 2
MARGIN: Final = 14
LINE: Final = 20
LETTER: Final = 6.6
"""Units that a letter of the legend takes at most, on average."""
SWATCH: Final = 26
DASHES: Final = {"dashed": ' stroke-dasharray="5 3"', "dotted": ' stroke-dasharray="2 2"'}


def svg_file(figure: Figure, drawings: Sequence[Drawing]) -> str:
    """In light colours on white, whatever the reader's mode."""
    columns = min(COLUMNS, len(drawings))
    cell = drawings[0].width + MARGIN
    shared = shared_legend(figure)
    placed, top = _legend(shared, MARGIN, MARGIN, columns * cell)
    for start in range(0, len(drawings), columns):
        below = top
        for place, drawing in enumerate(drawings[start : start + columns]):
            x, bottom = MARGIN + place * cell, top + drawing.height
            placed.append(_placed(drawing, x, top))
            if not shared:
                keys, bottom = _legend(legend(figure.panels[start + place]), x, bottom + 6, cell)
                placed += keys
            below = max(below, bottom + MARGIN)
        top = below
    width = columns * cell + MARGIN
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {top}"'
        f' width="{width}" height="{top}" font-family="system-ui, Arial, sans-serif"'
        f' stroke-linejoin="round" role="img" aria-label="{escape(figure.title)}">\n'
        f'<rect width="100%" height="100%" fill="{LIGHT["paper"]}"/>\n'
        + "\n".join(placed)
        + "\n</svg>\n"
    )


def _placed(drawing: Drawing, x: int, y: int) -> str:
    return (
        f'<svg x="{x}" y="{y}" width="{drawing.width}" height="{drawing.height}"'
        f' viewBox="0 0 {drawing.width} {drawing.height}">\n{drawing.body}\n</svg>'
    )


def _legend(entries: Sequence[Entry], left: int, top: int, width: int) -> tuple[list[str], int]:
    """Elements of the legend, broken into lines, and where what follows may begin."""
    elements: list[str] = []
    x, y = float(left), top
    for name, colour, shape in entries:
        needed = SWATCH + LETTER * len(name) + 16
        if x > left and x + needed > left + width:
            x, y = float(left), y + LINE
        elements.append(_swatch(x, y, LIGHT[colour], shape))
        elements.append(
            f'<text x="{x + SWATCH:.1f}" y="{y + 9}" font-size="12"'
            f' fill="{LIGHT["ink"]}">{escape(name)}</text>'
        )
        x += needed
    return elements, y + LINE if entries else top


def _swatch(x: float, y: int, colour: str, shape: str) -> str:
    if shape == "area":
        return f'<rect x="{x + 6:.1f}" y="{y - 1}" width="12" height="11" fill="{colour}"/>'
    if shape == "tick":
        return f'<rect x="{x + 11:.1f}" y="{y - 2}" width="3" height="13" fill="{colour}"/>'
    dashes = DASHES.get(shape, "")
    return (
        f'<line x1="{x:.1f}" y1="{y + 5}" x2="{x + 20:.1f}" y2="{y + 5}" stroke="{colour}"'
        f' stroke-width="3"{dashes}/>'
    )
