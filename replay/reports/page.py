"""A report as one HTML page that asks for nothing else, and figures as SVG files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from importlib.resources import files
from string import Template
from typing import Final

from alipes.replay.plots import Drawing
from alipes.replay.reports.form import (
    Areas,
    Bars,
    Boxes,
    Figure,
    Lines,
    Panel,
    Report,
    RunLine,
    Section,
    Table,
)
from alipes.replay.reports.markdown import about
from alipes.replay.reports.palette import DARK, LIGHT
from alipes.replay.reports.words import shown

Entry = tuple[str, str, str]
"""Name, colour, and shape: a stroke, area or tick."""
Drawn = Mapping[tuple[int, str], Sequence[Drawing]]
_KEYS: Final = {colour: key for key, colour in LIGHT.items()}
_ANY: Final = re.compile("|".join(map(re.escape, _KEYS)))


def page(report: Report, drawn: Drawn) -> str:
    """``drawn`` has the panels of each figure by section number and name."""
    template = Template((files("alipes.replay") / "data" / "report.html").read_text("utf-8"))
    sections = enumerate(report.sections)
    return template.substitute(
        title=escape(report.title),
        light=_variables(LIGHT),
        dark=_variables(DARK),
        contents="\n".join(_contents(report)),
        body="\n".join(_section(section, i, report, drawn) for i, section in sections),
    )


def _variables(palette: Mapping[str, str]) -> str:
    return " ".join(f"--{key}: {colour};" for key, colour in palette.items())


def _contents(report: Report) -> Iterator[str]:
    for number, section in enumerate(report.sections):
        if len(report.sections) > 1:
            yield f'<a class="scenario" href="#s{number}">{escape(section.scenario)}</a>'
        parts = [(part.name, part.title) for part in section.tables if not part.long]
        parts += [(part.name, part.title) for part in section.figures]
        parts += [(part.name, part.title) for part in section.tables if part.long]
        for name, title in parts:
            yield f'<a href="#s{number}-{name}">{escape(title)}</a>'


def _section(section: Section, number: int, report: Report, drawn: Drawn) -> str:
    parts = [f'<section id="s{number}">']
    if len(report.sections) > 1:
        parts.append(f"<h2>{escape(section.scenario)}</h2>")
    parts += [f'<p class="about">{escape(line)}</p>' for line in about(section)]
    if section.warnings:
        lines = "\n".join(f"<li>{escape(warning)}</li>" for warning in section.warnings)
        parts.append(f'<ul class="warnings" aria-label="Warnings">\n{lines}\n</ul>')
    parts += [_table(table, number) for table in section.tables if not table.long]
    for figure in section.figures:
        parts.append(_figure(figure, number, drawn[number, figure.name]))
    parts += [_table(table, number) for table in section.tables if table.long]
    parts += [_runs(section.runs), "</section>"]
    return "\n".join(parts)


# --- tables ------------------------------------------------------------------------------------


def _table(table: Table, number: int) -> str:
    head = "".join(
        f'<th scope="col"{_side(column.kind)}>{escape(column.name)}</th>'
        for column in table.columns
    )
    rows = "\n".join(
        "<tr>"
        + "".join(
            _cell(shown(cell, column.kind), column.kind, first=not place)
            for place, (cell, column) in enumerate(zip(row, table.columns, strict=True))
        )
        + "</tr>"
        for row in table.rows
    )
    grid = (
        f'<div class="scroll" tabindex="0"><table>\n<thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{rows}\n</tbody></table></div>"
    )
    text = f'<p class="text">{escape(table.text)}</p>'
    place = f"s{number}-{table.name}"
    title = escape(table.title)
    if table.long:
        return f'<details id="{place}"><summary>{title}</summary>{text}{grid}</details>'
    return f'<div class="part" id="{place}"><h3>{title}</h3>{text}{grid}</div>'


def _cell(text: str, kind: str, first: bool) -> str:
    if first:
        return f'<th scope="row"{_side(kind)}>{escape(text)}</th>'
    return f"<td{_side(kind)}>{escape(text)}</td>"


def _side(kind: str) -> str:
    return "" if kind == "text" else ' class="n"'


def _runs(runs: Sequence[RunLine]) -> str:
    items = "\n".join(f"<li>{escape(_run(run))}</li>" for run in runs)
    return f"<details><summary>Runs</summary><ul>\n{items}\n</ul></details>"


def _run(run: RunLine) -> str:
    words = [run.configuration, run.kind, f"seed {run.seed}", f"{run.calls:,} calls"]
    words += [f"{name} {value}" for name, value in sorted(run.settings.items())]
    words += [] if run.complete else ["interrupted"]
    return f"{run.folder}: {', '.join(words)}"


# --- figures -----------------------------------------------------------------------------------


def _figure(figure: Figure, number: int, drawings: Sequence[Drawing]) -> str:
    shared = shared_legend(figure)
    panels = "\n".join(
        f'<div><svg role="img" aria-label="{escape(f"{figure.title}: {panel.title}")}"'
        f' viewBox="0 0 {drawing.width} {drawing.height}">{variable_colours(drawing.body)}</svg>'
        + ("" if shared else _keys(legend(panel)))
        + "</div>"
        for panel, drawing in zip(figure.panels, drawings, strict=True)
    )
    pairs = any(isinstance(panel, Boxes) for panel in figure.panels)
    few = " few" if pairs or len(figure.panels) <= 2 else ""
    return (
        f'<figure class="part" id="s{number}-{figure.name}"><h3>{escape(figure.title)}</h3>'
        f'<figcaption class="text">{escape(figure.text)}</figcaption>'
        f'{_keys(shared)}<div class="panels{few}">\n{panels}\n</div></figure>'
    )


def _keys(entries: Sequence[Entry]) -> str:
    items = "".join(
        f'<li><i class="{shape}" style="--key: var(--{colour})"></i>{escape(name)}</li>'
        for name, colour, shape in entries
    )
    return f'<ul class="legend">{items}</ul>' if items else ""


def shared_legend(figure: Figure) -> list[Entry]:
    """The legend of all panels, empty where they need different ones."""
    legends = [entries for panel in figure.panels if (entries := legend(panel))]
    merged = list(dict.fromkeys(entry for entries in legends for entry in entries))
    return merged if all(set(entries) & set(legends[0]) for entries in legends) else []


def legend(panel: Panel) -> list[Entry]:
    """What is drawn in a colour of its own and not named on an axis."""
    match panel:
        case Lines(series=series):
            return [(one.name, one.colour, one.stroke) for one in series]
        case Areas(layers=layers):
            return [(one.name, one.colour, "area") for one in layers]
        case Bars(layers=bars, tick_name=tick):
            entries = [(bar.name, bar.colour, "area") for bar in bars if bar.name]
            return [*entries, (tick, "ink", "tick")] if tick else entries
    return []


def variable_colours(body: str) -> str:
    """Colours of the light palette as the page's variables, so that they follow its mode."""
    return _ANY.sub(lambda hit: f"var(--{_KEYS[hit.group()]})", body)
