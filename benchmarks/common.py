"""The one form that every benchmark prints and writes: rows of measurements, and claims that
hold or do not."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from rich.console import Console, RenderableType
from rich.markup import escape

from alipes.cli.machine import cpu_name
from alipes.replay.tables import plain_table, titled

# A script here has the name of a distribution that transformers looks for: that one comes first.
if Path(sys.path[0]) == Path(__file__).parent:
    sys.path.append(sys.path.pop(0))

PACKAGES: Final = ("alipes", "torch", "transformers", "granian", "msgspec", "sglang-router")


@dataclass(frozen=True, slots=True)
class Claim:
    """``name`` says what is claimed and who says so; ``target`` what ``value`` is held against."""

    name: str
    value: float
    unit: str
    target: str
    holds: bool


def at_least(name: str, value: float, unit: str, target: float) -> Claim:
    return Claim(name, value, unit, f">= {target:g}", value >= target)


def arguments(description: str) -> argparse.ArgumentParser:
    """A parser with the two options that every benchmark has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="fewer repetitions, under 60 s")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report here too")
    return parser


def environment() -> dict[str, Any]:
    """What a reader needs to judge the numbers."""
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "load_1m": round(os.getloadavg()[0], 2),
        "packages": {name: _version(name) for name in PACKAGES},
    }


def write_report(
    name: str,
    rows: Sequence[Mapping[str, Any]],
    claims: Sequence[Claim],
    json_path: Path | None,
    notes: Mapping[str, Any] | None = None,
    parts: Mapping[str, Sequence[str]] | None = None,
) -> int:
    """Print tables, write the JSON form where asked to, and return the exit status: 1 when a
    claim does not hold. ``notes`` are more facts about the environment. Rows that are too wide
    for one table are printed in ``parts``: titles and the columns under each."""
    console = Console(width=None if sys.stdout.isatty() else 110)
    for title, columns in (parts or {name: _columns(rows)}).items():
        shown = [{key: row[key] for key in columns if key in row} for row in rows]
        shown = [row for row in shown if row]
        if shown:
            console.print(_table(title, shown))
    if claims:
        console.print(_table("claims", [_claim_row(claim) for claim in claims]))
    if json_path is not None:
        report = {
            "name": name,
            "environment": environment() | dict(notes or {}),
            "rows": [dict(row) for row in rows],
            "claims": [asdict(claim) for claim in claims],
        }
        json_path.write_text(json.dumps(report, indent=2) + "\n")
    return 0 if all(claim.holds for claim in claims) else 1


def _claim_row(claim: Claim) -> dict[str, str]:
    return {
        "claim": claim.name,
        "value": f"{claim.value:.4g} {claim.unit}",
        "target": claim.target,
        "holds": "yes" if claim.holds else "NO",
    }


def _table(title: str, rows: Sequence[Mapping[str, Any]]) -> RenderableType:
    """One column for every key that occurs, in order of appearance."""
    columns = _columns(rows)
    numbers = {
        key for key in columns if all(isinstance(row.get(key, 0), int | float) for row in rows)
    }
    table = plain_table(columns, set(columns) - numbers)
    for row in rows:
        table.add_row(*(escape(_cell(row.get(key, ""))) for key in columns))
    return titled(title, table)


def _columns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(key for row in rows for key in row))


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "missing"
