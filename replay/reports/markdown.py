"""A report as Markdown, with its figures beside it as SVG files."""

from __future__ import annotations

from collections.abc import Iterator

from alipes.replay.reports.form import Column, Report, Section, Table
from alipes.replay.reports.words import shown

FIGURES: str = "figures"


def figure_file(section: int, name: str) -> str:
    """Where, relative to the report, the figure of a section is."""
    return f"{FIGURES}/{name}.svg" if section == 0 else f"{FIGURES}/{section + 1}-{name}.svg"


def markdown(report: Report) -> str:
    lines = [f"# {_plain(report.title)}", ""]
    for number, section in enumerate(report.sections):
        if len(report.sections) > 1:
            lines += [f"## {_plain(section.scenario)}", ""]
        lines += _section(section, number)
    return "\n".join(lines).rstrip("\n") + "\n"


def _section(section: Section, number: int) -> Iterator[str]:
    yield from (_plain(line) for line in about(section))
    yield ""
    for warning in section.warnings:
        yield f"> **Warning:** {_plain(warning)}"
        yield ""
    for table in section.tables:
        if not table.long:
            yield from _table(table)
    for figure in section.figures:
        yield from (f"### {_plain(figure.title)}", "", _plain(figure.text), "")
        yield f"![{_plain(figure.title)}]({figure_file(number, figure.name)})"
        yield ""


def about(section: Section) -> Iterator[str]:
    """What ran, in a sentence."""
    kinds = sorted({run.kind for run in section.runs})
    hardware = sorted({run.hardware for run in section.runs} - {""})
    traces = sorted({run.trace for run in section.runs} - {""})
    count = len(section.runs)
    words = f"{count} {' and '.join(kinds)} {'run' if count == 1 else 'runs'}"
    words += f" of {', '.join(traces)}" if traces else ""
    words += f" on {', '.join(hardware)}" if hardware else ""
    yield f"{words}. Baseline: {section.baseline}."


def _table(table: Table) -> Iterator[str]:
    yield from (f"### {_plain(table.title)}", "", _plain(table.text), "")
    yield _row([column.name for column in table.columns])
    yield _row([_rule(column) for column in table.columns], escape=False)
    for row in table.rows:
        cells = zip(row, table.columns, strict=True)
        yield _row([shown(cell, column.kind) for cell, column in cells])
    yield ""


def _rule(column: Column) -> str:
    return "---" if column.kind == "text" else "---:"


def _row(cells: list[str], escape: bool = True) -> str:
    return f"| {' | '.join(_plain(cell) if escape else cell for cell in cells)} |"


def _plain(text: str) -> str:
    """The text with what Markdown would take for marks escaped, on one line."""
    line = " ".join(text.split())
    escaped = "".join(f"\\{mark}" if mark in "\\`*_<>|#" else mark for mark in line)
    return escaped.replace("](", "]\\(")
