"""The one form that every benchmark prints and writes: rows of measurements, and claims that
hold or do not."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Claim:
    """``value`` is held against ``target``: at least it, or at most it where ``at_most``.
    ``source`` says who claims it."""

    name: str
    value: float
    unit: str
    target: float
    source: str
    at_most: bool = False

    @property
    def holds(self) -> bool:
        return self.value <= self.target if self.at_most else self.value >= self.target


@dataclass(slots=True)
class Report:
    """Filled by a benchmark, then given to ``finish``."""

    name: str
    rows: list[Mapping[str, Any]] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)

    def as_json(self, packages: Sequence[str]) -> dict[str, Any]:
        return {
            "name": self.name,
            "environment": environment(packages) | self.notes,
            "rows": [dict(row) for row in self.rows],
            "claims": [asdict(claim) | {"holds": claim.holds} for claim in self.claims],
        }


def environment(packages: Sequence[str]) -> dict[str, Any]:
    """What a reader needs to judge the numbers."""
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "load_1m": round(os.getloadavg()[0], 2),
        "packages": {name: _version(name) for name in packages},
    }


def arguments(description: str) -> argparse.ArgumentParser:
    """A parser with the two options that every benchmark has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="fewer repetitions, under 60 s")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report here too")
    return parser


def finish(report: Report, json_path: Path | None, packages: Sequence[str] = ()) -> int:
    """Print tables, write the JSON form, and return the exit status: 1 when a claim fails."""
    console = Console(width=None if sys.stdout.isatty() else 110)
    if report.rows:
        console.print(_table(report.name, report.rows))
    if report.claims:
        console.print(_table("claims", [_claim_row(claim) for claim in report.claims]))
    if json_path is not None:
        json_path.write_text(json.dumps(report.as_json(packages), indent=2) + "\n")
    return 0 if all(claim.holds for claim in report.claims) else 1


def _claim_row(claim: Claim) -> dict[str, Any]:
    return {
        "claim": claim.name,
        "value": f"{claim.value:.4g} {claim.unit}",
        "target": f"{'<=' if claim.at_most else '>='} {claim.target:g}",
        "holds": "yes" if claim.holds else "NO",
        "source": claim.source,
    }


def _table(title: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    """One column for every key that occurs, in order of appearance."""
    keys = list(dict.fromkeys(key for row in rows for key in row))
    table = Table(title=title, title_justify="left")
    for key in keys:
        numeric = all(isinstance(row.get(key, 0), int | float) for row in rows)
        table.add_column(key, justify="right" if numeric else "left")
    for row in rows:
        table.add_row(*(_cell(row.get(key, "")) for key in keys))
    return table


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "missing"


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((s.split(":", 1)[1].strip() for s in lines if s.startswith("model name")), "")
