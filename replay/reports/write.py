"""A report on disk: ``report.md``, ``report.html``, ``report.json`` and the figures of Markdown."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from alipes.replay.plots import draw
from alipes.replay.reports.form import Report
from alipes.replay.reports.markdown import FIGURES, figure_file, markdown
from alipes.replay.reports.page import page
from alipes.replay.reports.svg import svg_file

HTML_FILE: Final = "report.html"
MARKDOWN_FILE: Final = "report.md"
JSON_FILE: Final = "report.json"


def write_report(report: Report, out: Path) -> None:
    """Everything is drawn before anything is written. Raises OSError."""
    drawn = {
        (number, figure.name): [
            draw(panel, f"{number}.{figure.name}.{place}")
            for place, panel in enumerate(figure.panels)
        ]
        for number, section in enumerate(report.sections)
        for figure in section.figures
    }
    texts = {
        figure_file(number, figure.name): svg_file(figure, drawn[number, figure.name])
        for number, section in enumerate(report.sections)
        for figure in section.figures
    }
    texts[MARKDOWN_FILE] = markdown(report)
    texts[HTML_FILE] = page(report, drawn)
    texts[JSON_FILE] = msgspec.json.format(msgspec.json.encode(report)).decode() + "\n"
    (out / FIGURES).mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (out / name).write_text(text, encoding="utf-8")
