"""docs/scenarios.md: its example runs, and its tables are those of the fields that there are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from alipes.cli.main import app
from alipes.replay.reports.measures import NAMES
from alipes.replay.sim import hardware as hw
from alipes.replay.sim import scenario as sc
from alipes.replay.sim.study import prepare

PAGE = Path(__file__).parents[3] / "docs" / "scenarios.md"
TEXT = PAGE.read_text()
DEFAULTS = {
    "{}": ({}, sc.Setup()),
    "[]": ((),),
    "none": ("", None),
    "nothing": (hw.NOTHING,),
    "one without a name": ({"": sc.Load()},),
}
"""What the page says of defaults that are no numbers, words or truths."""
UNITS = {"seconds": "s", "share": "share of 1", "count": "count", "number": "GiB"}


@pytest.fixture
def example(tmp_path: Path) -> Path:
    """The scenario of the page, beside its profile."""
    blocks = re.findall(r"`(\S+\.yaml)`[^`]*\n\n```yaml\n(.*?)```", TEXT, re.DOTALL)
    for name, text in blocks:
        (tmp_path / name).write_text(text)
    assert [name for name, _ in blocks] == ["two-models.yaml", "small-server.yaml"]
    return tmp_path / "two-models.yaml"


def test_the_example_runs(example: Path) -> None:
    result = CliRunner().invoke(app, ["simulate", str(example), "--jobs", "2"])
    assert result.exit_code == 0, result.output
    assert "busy.all-on" in result.output
    assert "holds: all mechanisms beat round-only" in result.output
    assert "beside the paper" in result.output


def test_the_example_says_all_that_a_scenario_can(example: Path) -> None:
    found = sc.load_scenario(example)
    given = {
        field.name
        for field in msgspec.structs.fields(sc.Scenario)
        if getattr(found, field.name) != field.default
    }
    # Those two are numbers that every reader knows.
    assert set(sc.Scenario.__struct_fields__) - given == {"seed", "warmup"}
    prepare(found, example.parent).check_variants()


def section(title: str) -> list[list[str]]:
    """The rows of the table below a heading, the one with the columns' names first."""
    body = re.split(r"^#+ ", TEXT.split(f"# {title}\n", 1)[1], flags=re.MULTILINE)[0]
    lines = [line for line in body.splitlines() if line.startswith("|")]
    return [
        [cell.strip() for cell in line.strip("|").split(" |")]
        for line in lines
        if "---" not in line
    ]


def rows(title: str) -> Iterator[tuple[str, dict[str, str]]]:
    """By field the rest of its row; a row may be of several fields."""
    head, *lines = section(title)
    for line in lines:
        told = dict(zip(head, line, strict=True))
        for name in re.findall(r"`(\w+)`", line[0]):
            yield name, told


def default_of(field: msgspec.structs.FieldInfo) -> Any:
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return field.default


def means(told: str, value: Any) -> bool:
    if value is msgspec.NODEFAULT or told == "required":
        return (told == "required") == (value is msgspec.NODEFAULT)
    if told in DEFAULTS:
        return value in DEFAULTS[told]
    return told == f"`{str(value).lower() if isinstance(value, bool) else plain(value)}`"


def plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


@pytest.mark.parametrize(
    ("title", "kind"),
    [
        ("The scenario file", sc.Scenario),
        ("trace", sc.TraceSpec),
        ("instances", sc.InstanceSpec),
        ("faults", sc.FaultSpec),
        ("loads", sc.Load),
        ("setup and configurations", sc.Setup),
        ("published", sc.Published),
        ("claims", sc.Comparison),
        ("Hardware profiles", hw.Hardware),
        ("A number with source", hw.Quantity),
        ("rates", hw.Rates),
        ("fixed", hw.Fixed),
        ("models", hw.ModelCosts),
        ("targets", hw.ServiceTargets),
    ],
)
def test_the_tables_are_those_of_the_fields(title: str, kind: type[msgspec.Struct]) -> None:
    told = dict(rows(title))
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    assert sorted(told) == sorted(fields)
    for name, field in fields.items():
        default = told[name]["default"].replace("`{}`", "{}").replace("`[]`", "[]")
        assert means(default, default_of(field)), (name, told[name]["default"], default_of(field))
        if field.type is hw.Quantity:
            part = "rates" if kind is hw.Rates else title
            assert told[name]["unit"] == hw.unit(f"{part}.{name}"), name


def test_the_figures_are_those_there_are() -> None:
    told = {name: row["unit"] for name, row in rows("figures")}
    assert told == {name: UNITS[kind] for name, (_, kind) in NAMES.items()}


def test_a_setup_names_every_policy() -> None:
    told = dict(rows("setup and configurations"))["policy"]["meaning"]
    known = msgspec.structs.fields(sc.Setup)[sc.Setup.__struct_fields__.index("policy")].type
    assert set(known.__args__) <= set(re.findall(r"`([a-z-]+)`", told))
