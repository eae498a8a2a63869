"""What a report holds, before anything is drawn or written: figures, tables, remarks.

Everything in it is numbers and words, so that it is tested without a picture, and ``report.json``
is these structs as they are.
"""

from __future__ import annotations

from typing import Literal

import msgspec


class Interval(msgspec.Struct, frozen=True, array_like=True):
    """An estimate and its 95 % interval."""

    value: float
    low: float
    high: float


Stroke = Literal["line", "dashed", "dotted"]


class Series(msgspec.Struct, frozen=True):
    """Points to be joined in their order. ``colour`` is a key of ``palette.LIGHT``."""

    name: str
    colour: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    stroke: Stroke = "line"


class Mark(msgspec.Struct, frozen=True):
    """A thin line across the panel at ``at`` of an axis, with words beside it."""

    axis: Literal["x", "y"]
    at: float
    text: str
    colour: str = "ink"


class Lines(msgspec.Struct, frozen=True, tag="lines"):
    """Curves; ``stepped`` ones hold a value until the next. ``dots`` marks every point."""

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    log_x: bool = False
    stepped: bool = False
    dots: bool = False
    marks: tuple[Mark, ...] = ()
    y_range: tuple[float, float] | None = None


class Areas(msgspec.Struct, frozen=True, tag="areas"):
    """Layers stacked upward; all have the same ``x``. The y axis ends at ``top``."""

    title: str
    x_label: str
    y_label: str
    layers: tuple[Series, ...]
    top: float


class Layer(msgspec.Struct, frozen=True):
    """One part of every bar: a value for each category."""

    name: str
    colour: str
    values: tuple[float, ...]


class Bars(msgspec.Struct, frozen=True, tag="bars"):
    """Horizontal bars, one a category, its layers stacked to the right; ``grouped``: beside each
    other. ``ticks`` has where on each bar a mark is, None for none. ``colours`` are those of the
    categories where there is but one layer."""

    title: str
    label: str
    categories: tuple[str, ...]
    layers: tuple[Layer, ...]
    grouped: bool = False
    ticks: tuple[float | None, ...] = ()
    tick_name: str = ""
    colours: tuple[str, ...] = ()


class Box(msgspec.Struct, frozen=True):
    """Quartiles and 5th and 95th percentile by nearest rank, and every value."""

    name: str
    colour: str
    p5: float
    p25: float
    p50: float
    p75: float
    p95: float
    values: tuple[float, ...]


class Boxes(msgspec.Struct, frozen=True, tag="boxes"):
    title: str
    label: str
    boxes: tuple[Box, ...]


Panel = Lines | Areas | Bars | Boxes


class Figure(msgspec.Struct, frozen=True):
    """Panels under one heading; ``text`` says in a line what they show."""

    name: str
    title: str
    text: str
    panels: tuple[Panel, ...]


Kind = Literal["text", "count", "number", "seconds", "share", "ratio", "interval"]


class Amount(msgspec.Struct, frozen=True):
    """A number in a column where every row has another unit."""

    value: float
    kind: Kind


Cell = str | float | Interval | Amount | None


class Column(msgspec.Struct, frozen=True):
    name: str
    kind: Kind


class Table(msgspec.Struct, frozen=True):
    """Cells hold numbers as they are: seconds, shares of 1; columns say how to write them.
    ``long`` ones are folded away on the page and left out of Markdown."""

    name: str
    title: str
    text: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    long: bool = False


class RunLine(msgspec.Struct, frozen=True):
    """One run that went into the report."""

    folder: str
    configuration: str
    kind: str
    hardware: str
    trace: str
    seed: int
    settings: dict[str, str]
    complete: bool
    calls: int


class Section(msgspec.Struct, frozen=True):
    """All of one scenario. ``warnings`` are what a reader must know before believing it."""

    scenario: str
    baseline: str
    runs: tuple[RunLine, ...]
    warnings: tuple[str, ...]
    tables: tuple[Table, ...]
    figures: tuple[Figure, ...]


class Report(msgspec.Struct, frozen=True):
    title: str
    sections: tuple[Section, ...]


class ReportError(Exception):
    """No report can be made of these runs; one line says why and what to do."""
