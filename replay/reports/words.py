"""Cells of tables as a reader sees them."""

from __future__ import annotations

import math
from typing import Final

from alipes.replay.reports.form import Amount, Cell, Interval, Kind

NOTHING: Final = "-"


def shown(cell: Cell, kind: Kind) -> str:
    """Seconds and numbers to three digits, shares in percent, ratios to two decimals."""
    if cell is None:
        return NOTHING
    if isinstance(cell, str):
        return cell
    if isinstance(cell, Amount):
        unit = " s" if cell.kind == "seconds" else ""
        return f"{shown(cell.value, cell.kind)}{unit}"
    if isinstance(cell, Interval):
        return f"{_ratio(cell.value)} [{_ratio(cell.low)}, {_ratio(cell.high)}]"
    if kind == "share":
        return f"{cell:.1%}"
    if kind == "ratio":
        return _ratio(cell)
    if kind == "count" and cell == round(cell):
        return f"{cell:,.0f}"
    return three_digits(cell)


def three_digits(value: float) -> str:
    """Not in powers of ten, with commas."""
    if value == 0:
        return "0"
    decimals = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(decimals, 6)}f}"


def _ratio(value: float) -> str:
    if not math.isfinite(value):
        return "∞"
    return f"{value:.2f}" if value >= 0.1 else three_digits(value)
