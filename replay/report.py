"""Runs in, a report out: which tables and figures there are, for each scenario.

Nothing here draws or writes; ``plots`` draws figures, ``reports.page`` and ``reports.markdown``
write them down.
"""

from __future__ import annotations

from collections.abc import Sequence

from alipes.replay.reports.breakdown import breakdown_figure
from alipes.replay.reports.form import Figure, Report, ReportError, RunLine, Section
from alipes.replay.reports.groups import Group, group_runs
from alipes.replay.reports.latency import first_token_figure, session_figure
from alipes.replay.reports.paired import find_baseline, paired_table
from alipes.replay.reports.rounds import (
    admission_figure,
    composition_figure,
    memory_figure,
    totals_figure,
)
from alipes.replay.reports.routing import lease_figures, router_figure
from alipes.replay.reports.switches import switch_figure
from alipes.replay.reports.tables import (
    configuration_table,
    counter_table,
    model_table,
    published_table,
    session_table,
)
from alipes.replay.reports.warnings import warnings_of
from alipes.replay.runs import Run


def build_report(runs: Sequence[Run], title: str = "", baseline: str = "") -> Report:
    """One section for each scenario, in the order of the runs. ``baseline`` names the
    configuration that others are compared with, by default the first of each scenario. Raises
    ``ReportError`` for no runs, a run without a successful call, or an unknown baseline."""
    if not runs:
        raise ReportError("no runs; give folders that `alipes replay` or `alipes simulate` wrote")
    for run in runs:
        _check(run)
    scenarios: dict[str, list[Run]] = {}
    for run in runs:
        scenarios.setdefault(run.info.scenario, []).append(run)
    known = {run.info.configuration for run in runs}
    if baseline and baseline not in known:
        raise ReportError(
            f"--baseline {baseline}: no run has this configuration; there are"
            f" {', '.join(sorted(known))}"
        )
    sections = tuple(_section(name, found, baseline) for name, found in scenarios.items())
    return Report(title or ", ".join(scenarios), sections)


def _check(run: Run) -> None:
    if not run.counted:
        raise ReportError(
            f"{run.folder}: the run has no calls that count; let it go on until some have ended,"
            " or leave it out"
        )
    errors = [call.error for call in run.counted if call.error]
    if len(errors) == len(run.counted):
        raise ReportError(
            f"{run.folder}: none of its {len(errors)} calls succeeded, the first says:"
            f" {errors[0]}; mend that and run it anew, or leave it out"
        )


def _section(scenario: str, runs: Sequence[Run], wanted: str) -> Section:
    groups = group_runs(runs)
    baseline = find_baseline(groups, wanted)
    tables = (
        configuration_table(groups),
        paired_table(groups, baseline),
        published_table(groups),
        model_table(groups),
        session_table(groups),
        counter_table(groups),
    )
    return Section(
        scenario,
        baseline,
        tuple(_line(run) for run in runs),
        warnings_of(groups),
        tuple(table for table in tables if table is not None),
        tuple(_figures(groups)),
    )


def _figures(groups: Sequence[Group]) -> list[Figure]:
    figures = [
        session_figure(groups),
        first_token_figure(groups),
        breakdown_figure(groups),
        router_figure(groups),
        *lease_figures(groups),
        composition_figure(groups),
        totals_figure(groups),
        switch_figure(groups),
        admission_figure(groups),
        memory_figure(groups),
    ]
    return [figure for figure in figures if figure is not None]


def _line(run: Run) -> RunLine:
    info = run.info
    return RunLine(
        run.folder,
        info.configuration,
        info.kind,
        info.hardware,
        info.trace,
        info.seed,
        info.settings,
        info.complete,
        len(run.counted),
    )
