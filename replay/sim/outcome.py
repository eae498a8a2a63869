"""What a scenario's runs came to: rows beside published numbers and bounds, and claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from alipes.replay.reports.breakdown import mean_parts
from alipes.replay.reports.groups import group_runs
from alipes.replay.reports.measures import measure
from alipes.replay.runs import Run
from alipes.replay.sim.hardware import unit
from alipes.replay.sim.scenario import Comparison, Scenario
from alipes.replay.sim.sensitivity import Variant

BOUNDS: Final = {"bound_p50": "sct_p50", "bound_p95": "sct_p95", "bound_seconds": "seconds"}


class Row(msgspec.Struct, frozen=True):
    """One run: every measure that it has; what a paper prints, by the same names; unless calls
    failed the least that any scheduler needs; where a mean session's seconds went (``Parts``), if
    its calls say so; what the first call that failed says."""

    case: str
    calls: int
    failed: int
    measures: dict[str, float]
    published: dict[str, float]
    bounds: dict[str, float]
    parts: dict[str, float]
    error: str = ""


class Claim(msgspec.Struct, frozen=True):
    """``value`` against ``target``, in the words of ``name``. ``holds`` is false of runs in which
    calls failed, whose sessions are in no figure, and None where only a part of the sessions ran,
    by which nothing is judged."""

    name: str
    value: float
    unit: str
    target: str
    holds: bool | None


class VariedRow(msgspec.Struct, frozen=True):
    """A case with one number of the hardware at an end of its range; ``ratio`` is its median SCT
    over that with the number as given, None where one of both has none."""

    case: str
    number: str
    unit: str
    end: str
    given: float
    tried: float
    measures: dict[str, float]
    ratio: float | None


class Outcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """The form that every benchmark writes, and what variants of the hardware came to, if any
    were run."""

    name: str
    environment: dict[str, str]
    rows: tuple[Row, ...]
    claims: tuple[Claim, ...]
    sensitivity: tuple[VariedRow, ...] = ()

    @property
    def holds(self) -> bool:
        """No claim fails, and no call did."""
        told = [claim.holds for claim in self.claims]
        return False not in told and not any(row.failed for row in self.rows)


def row_of(run: Run) -> Row:
    """Raises ValueError for a run of which no call counts."""
    group = group_runs([run])[0]
    counters = run.info.counters
    told = [session for session in group.whole if session.parts is not None]
    return Row(
        case=run.folder,
        calls=len(run.counted),
        failed=group.failed,
        measures=measure(group),
        published=run.info.published,
        bounds={} if group.failed else {n: counters[k] for k, n in BOUNDS.items() if k in counters},
        parts=mean_parts(told) if told else {},
        error=next((call.error for call in run.counted if call.error), ""),
    )


def varied_row(variant: Variant, run: Run, rows: Sequence[Row]) -> VariedRow:
    """``rows`` are those of the runs as given."""
    row = row_of(run)
    base = next((one.measures.get("sct_p50") for one in rows if one.case == row.case), None)
    sct = row.measures.get("sct_p50")
    return VariedRow(
        row.case,
        variant.number,
        unit(variant.number),
        variant.end,
        variant.given,
        variant.tried,
        row.measures,
        sct / base if sct is not None and base else None,
    )


def outcome(
    scenario: Scenario, runs: Sequence[Run], environment: Mapping[str, str], judged: bool = True
) -> Outcome:
    """Rows of all runs, in their order, and the scenario's claims about those that ran, unless
    ``judged`` with nothing said of whether they hold."""
    rows = tuple(row_of(run) for run in runs)
    found = {row.case: row for row in rows} | best(scenario, rows)
    claims = [
        _claim(wanted, found, judged)
        for wanted in scenario.claims
        if wanted.of in found and wanted.to in found
    ]
    return Outcome(scenario.name, dict(environment), rows, tuple(claims))


def _claim(wanted: Comparison, rows: Mapping[str, Row], judged: bool) -> Claim:
    over = rows[wanted.of].measures.get(wanted.figure, float("nan"))
    under = rows[wanted.to].measures.get(wanted.figure, float("nan"))
    value = over / under if under else float("inf" if over else "nan")
    failed = rows[wanted.of].failed + rows[wanted.to].failed
    return Claim(
        name=f"{wanted.name}: {wanted.figure} of {wanted.of} over {wanted.to} ({wanted.source})",
        value=value,
        unit="ratio",
        target=f"<= {wanted.at_most:g}" + (f", but {failed} calls failed" if failed else ""),
        holds=value <= wanted.at_most and not failed if judged else None,
    )


def best(scenario: Scenario, rows: Sequence[Row]) -> dict[str, Row]:
    """Of each group in ``best_of`` that has run whole, under each load, the row with the least
    median SCT, by the group's name."""
    found: dict[str, Row] = {}
    for name, members in scenario.best_of.items():
        for load in scenario.loads:
            labels = {f"{load}.{member}" if load else member for member in members}
            told = [row for row in rows if row.case in labels and "sct_p50" in row.measures]
            if len(told) == len(labels):
                label = f"{load}.{name}" if load else name
                found[label] = min(told, key=lambda row: row.measures["sct_p50"])
    return found
