"""The pages: reproducible, well-formed, asking for nothing, and sound in a real browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Callable
from html import escape
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest

from alipes.replay.plots import draw
from alipes.replay.report import build_report
from alipes.replay.reports.form import Bars, Figure, Layer, Lines, Report, Series
from alipes.replay.reports.page import legend, shared_legend
from alipes.replay.reports.palette import CYCLE, DARK, LIGHT
from alipes.replay.reports.write import write_report
from alipes.replay.runs import Run

VOID = {"meta", "link", "br", "hr", "img", "input"}
REFERRING = {"src", "href", "srcset", "data", "action", "poster", "xlink:href"}
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
ODD = '<script>alert("x")</script> & $title | `b` [a](http://x.example) $$'


class Page(HTMLParser):
    """Raises on tags that do not match; keeps what a test asks about."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.references: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.ids += [value or "" for name, value in attrs if name == "id"]
        self.references += [value or "" for name, value in attrs if name in REFERRING]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


@pytest.fixture(scope="module")
def report(five_runs: list[Run], run_maker: Callable[..., Run]) -> Report:
    """Two scenarios: two configurations with everything, and an odd one with warnings."""
    odd = run_maker(configuration=ODD, scenario="odd", sessions=2)
    odd = msgspec.structs.replace(odd, folder=ODD, switches=(), rounds=(), memory=())
    return build_report([five_runs[0], five_runs[-1], odd], title=f"Report {ODD}")


@pytest.fixture(scope="module")
def written(report: Report, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("report")
    write_report(report, out)
    return out


@pytest.fixture(scope="module")
def page(written: Path) -> str:
    return (written / "report.html").read_text()


def test_the_same_report_is_the_same_bytes(report: Report, written: Path, tmp_path: Path) -> None:
    write_report(report, tmp_path)
    files = [path.relative_to(written) for path in written.rglob("*") if path.is_file()]
    assert len(files) > 10
    for name in files:
        assert (tmp_path / name).read_bytes() == (written / name).read_bytes(), name


def test_user_settings_of_matplotlib_change_nothing(report: Report) -> None:
    import matplotlib

    panel = report.sections[0].figures[0].panels[0]
    plain = draw(panel, "x")
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red", "svg.hashsalt": "y"}):
        assert draw(panel, "x") == plain


def test_the_page_is_well_formed_and_asks_for_nothing(page: str) -> None:
    read = Page(page)
    assert "script" not in read.tags
    assert not [one for one in read.references if not one.startswith(("#", "data:,"))]
    assert len(read.ids) == len(set(read.ids))
    targets = {one[1:] for one in read.references if one.startswith("#")}
    assert targets <= set(read.ids)
    assert "@import" not in page
    assert set(re.findall(r"url\((.)", page)) == {"#"}
    assert set(re.findall(r"url\(#([^)]*)\)", page)) <= set(read.ids)


def test_odd_words_stay_words(page: str, written: Path) -> None:
    assert ODD in "".join(Page(page).words)
    assert "<script" not in page
    text = (written / "report.md").read_text()
    assert "<script" not in text.replace("\\<script", "")
    assert "](http" not in text.replace("]\\(http", "")


def test_every_table_and_figure_is_on_the_page(page: str, report: Report) -> None:
    ids = set(Page(page).ids)
    for number, section in enumerate(report.sections):
        for part in section.tables:
            assert f"s{number}-{part.name}" in ids
        for figure in section.figures:
            assert f"s{number}-{figure.name}" in ids
    panels = sum(len(figure.panels) for s in report.sections for figure in s.figures)
    assert Page(page).tags.count("svg") == panels


def test_colours_follow_the_mode_of_the_page(page: str) -> None:
    drawn = page[page.index("<main>") :]
    assert "var(--c0)" in drawn
    assert not re.search(r"#[0-9a-f]{6}\b(?!-)", re.sub(r"#[mp][0-9a-f]{10}", "", drawn))


def test_markdown_names_figures_that_are_there(written: Path, report: Report) -> None:
    text = (written / "report.md").read_text()
    named = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text)
    assert sorted(named) == sorted(
        str(path.relative_to(written)) for path in (written / "figures").iterdir()
    )
    assert len(named) == sum(len(section.figures) for section in report.sections)
    assert "| round-only | all-on |" in text
    assert "> **Warning:**" in text
    for block in text.split("\n\n"):
        if block.startswith("|"):
            bars = {re.sub(r"\\.", "", line).count("|") for line in block.splitlines()}
            assert len(bars) == 1, block


def test_svg_files_are_whole_documents(written: Path) -> None:
    for path in (written / "figures").iterdir():
        root = ET.fromstring(path.read_text())
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        for element in root.iter():
            assert "href" not in str(element.attrib.get("href", "")).replace("#", "")
        assert "var(--" not in path.read_text()


def test_json_has_every_figure(written: Path, report: Report) -> None:
    read = json.loads((written / "report.json").read_text())
    assert [one["scenario"] for one in read["sections"]] == ["fixed-replay", "odd"]
    figure = read["sections"][0]["figures"][0]
    assert figure["panels"][0]["type"] == "lines"
    first = report.sections[0].figures[0].panels[0]
    assert isinstance(first, Lines)
    assert figure["panels"][0]["series"][0]["x"] == list(first.series[0].x)


def test_palettes_have_the_same_keys_and_no_colour_twice() -> None:
    assert LIGHT.keys() == DARK.keys()
    assert len(set(LIGHT.values())) == len(LIGHT)
    assert {f"c{number}" for number in range(CYCLE)} <= LIGHT.keys()


def test_a_legend_is_shared_where_panels_have_the_same_entries() -> None:
    lines = Lines("l", "x", "y", (Series("a", "c0", (0.0,), (0.0,)),))
    bars = Bars("b", "x", ("a",), (Layer("p", "prefill", (1.0,)), Layer("q", "decode", (1.0,))))
    assert legend(bars) == [("p", "prefill", "area"), ("q", "decode", "area")]
    assert shared_legend(Figure("f", "t", "", (lines, lines))) == [("a", "c0", "line")]
    assert shared_legend(Figure("f", "t", "", (lines, bars))) == []


PROBE = """<script>
window.addEventListener('load', () => {
  const sizes = [...document.querySelectorAll('svg')].map(
    one => { const r = one.getBoundingClientRect(); return [r.width, r.height]; });
  const texts = [...document.querySelectorAll('svg')].map(one => {
    const frame = one.getBoundingClientRect();
    return [...one.querySelectorAll('text')].every(text => {
      const r = text.getBoundingClientRect();
      return r.left >= frame.left - 3 && r.right <= frame.right + 3;
    });
  });
  parent.document.body.dataset.probe = JSON.stringify({
    sizes, texts, width: document.documentElement.scrollWidth, seen: window.innerWidth,
    requests: performance.getEntriesByType('resource').length,
  });
});
</script>"""


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium")
@pytest.mark.parametrize("width", [1280, 390])
def test_in_a_browser(page: str, width: int, tmp_path: Path) -> None:
    """At the width of a desktop and of a phone: nothing in the console, nothing requested,
    every drawing has a size and its texts inside, and nothing but tables is wider than the page."""
    assert CHROMIUM is not None
    probed, inner = tmp_path / "page.html", escape(page.replace("</head>", f"{PROBE}</head>"))
    # A window cannot be as narrow as a phone, a frame can.
    frame = f'<iframe srcdoc="{inner}" style="width:{width}px; height:2000px; border:0"></iframe>'
    probed.write_text(f'<!DOCTYPE html><meta charset="utf-8"><body>{frame}</body>')
    flags = (
        "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --hide-scrollbars"
        " --disable-background-networking --disable-component-update --disable-sync"
        f" --enable-logging=stderr --window-size=1400,2000 --user-data-dir={tmp_path}/profile"
    )
    command = [CHROMIUM, *flags.split(), "--dump-dom", probed.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "CONSOLE" not in done.stderr
    found = re.search(r'data-probe="([^"]*)"', done.stdout)
    assert found is not None
    told = json.loads(found.group(1).replace("&quot;", '"'))
    assert told["requests"] == 0
    assert len(told["sizes"]) == page.count("<svg ")
    assert all(wide > 250 and high > 80 for wide, high in told["sizes"])
    assert all(told["texts"])
    assert told["seen"] == width
    assert told["width"] <= width


@pytest.mark.filterwarnings("error")
def test_runs_with_next_to_nothing_are_drawn(run_maker: Callable[..., Run], tmp_path: Path) -> None:
    """One call, one round, all of it 0; names that are empty, and longer than any axis."""
    run = run_maker(sessions=1)
    call = msgspec.structs.replace(run.calls[0], finished=run.calls[0].intended, ttft=0.0)
    still = {"prefill": 0.0, "decode": 0.0, "switch": 0.0, "restore": 0.0, "idle": 0.0}
    for rounds in (run.rounds[:1], (msgspec.structs.replace(run.rounds[0], **still),)):
        bare = msgspec.structs.replace(
            run,
            calls=(call,),
            rounds=rounds,
            memory=run.memory[:1],
            switches=(msgspec.structs.replace(run.switches[0], seconds=0.0),),
        )
        named = [
            msgspec.structs.replace(
                bare, info=msgspec.structs.replace(run.info, configuration=name, planned={})
            )
            for name in ("", "x" * 300)
        ]
        write_report(build_report(named), tmp_path)
        Page((tmp_path / "report.html").read_text())
        assert "nan" not in (tmp_path / "report.json").read_text().lower().replace("name", "")
