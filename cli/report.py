"""``alipes report``: runs side by side, as Markdown, one HTML page and JSON."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from alipes.cli.output import USAGE, complain, remark
from alipes.replay.reports.form import Report, ReportError
from alipes.replay.runs import RUN_FILE, RunError, read_run


def report(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="DIR", help="Folders of runs, or folders that hold such"),
    ],
    out: Annotated[
        Path, typer.Option(help="Folder for report.html, report.md, report.json")
    ] = Path("report"),
    title: Annotated[str, typer.Option(help="Heading; by default the scenarios' names")] = "",
    baseline: Annotated[
        str, typer.Option(help="Configuration that others are compared with; by default the first")
    ] = "",
) -> None:
    """Compare runs that `alipes replay` and `alipes simulate` wrote."""
    from alipes.replay.report import build_report
    from alipes.replay.reports.write import HTML_FILE, write_report

    try:
        made = build_report([read_run(folder) for folder in run_folders(folders)], title, baseline)
        write_report(made, out)
    except (RunError, ReportError, OSError) as error:
        complain(str(error))
        raise typer.Exit(USAGE) from None
    for section in made.sections:
        for warning in section.warnings:
            remark(warning)
    typer.echo(_told(made, out / HTML_FILE))


def run_folders(folders: list[Path]) -> Iterator[Path]:
    """Each folder that is a run; of one that is none all those below it, by name. Raises
    ``RunError`` where there is none either."""
    seen = set()
    for folder in folders:
        found = [folder]
        if folder.is_dir() and not (folder / RUN_FILE).exists():
            found = sorted(path.parent for path in folder.rglob(RUN_FILE)) or found
        for one in found:
            if one.resolve() not in seen:
                seen.add(one.resolve())
                yield one


def _told(made: Report, page: Path) -> str:
    runs = sum(len(section.runs) for section in made.sections)
    figures = sum(len(section.figures) for section in made.sections)
    return f"{runs} {'run' if runs == 1 else 'runs'}, {figures} figures: {page}"
