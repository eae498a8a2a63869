"""How the outcome of a simulation is printed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from alipes.cli.output import print_table, say
from alipes.replay.reports.measures import NAMES
from alipes.replay.sim.outcome import Outcome, Row, VariedRow, best
from alipes.replay.sim.scenario import Scenario
from alipes.replay.sim.study import Study

# Short enough for a line of 80 characters; latencies are seconds.
MAIN: Final = {
    "sct_p50": "SCT p50",
    "sct_p95": "p95",
    "ttft_p50": "TTFT p50",
    "ttft_p95": "p95",
    "cached_share": "cached",
    "switch_share": "switching",
    "rounds": "rounds",
}
MARKS: Final = {True: "holds", False: "DOES NOT HOLD", None: "not judged on a subset"}
PARTS: Final = (
    ("admission", "client"),
    ("queue", "gateway"),
    ("slot", "slot"),
    ("switch", "switch"),
    ("restore", "restore"),
    ("recompute", "recompute"),
    ("prefill", "prefill"),
    ("decode", "decode"),
    ("gap", "tools"),
)


def show(study: Study, found: Outcome) -> None:
    """Tables to stdout: each case, the papers' numbers, where the time goes, claims."""
    rows = [*found.rows, *_best_rows(study.scenario, found)]
    table = [(row.case, *(number(name, row.measures.get(name)) for name in MAIN)) for row in rows]
    title = (
        f"{found.name} on {found.environment['hardware']}: SCT and TTFT in seconds, cached of"
        " prompt tokens, switching of the time of rounds"
    )
    print_table(title, ("case", *MAIN.values()), table, ("case",))
    _show_calls(study, found)
    _show_bounds(found)
    _show_parts(rows)
    if study.whole:
        _show_published(found)
    else:
        told = f"{len(study.workload.sessions)} of {study.of} sessions, as many of each model as is"
        say(f"a subset: {told} its share; published numbers are of all of them")
    for claim in found.claims:
        mark = MARKS[claim.holds]
        say(f"{mark}: {claim.name}: {claim.value:.3g} (target {claim.target})")
    if found.sensitivity:
        _show_variants(study, found)
    for assumption in study.scenario.assumptions:
        say(f"assumed: {assumption}")


def _show_calls(study: Study, found: Outcome) -> None:
    calls = sum(row.calls for row in found.rows)
    each = sum(study.seconds.values()) / calls if calls else 0.0
    took = f"{study.elapsed:.1f} s, {study.elapsed / max(calls, 1) * 1e3:.2f} ms a call"
    alone = f", {each * 1e3:.2f} of one process" if study.processes > 1 else ""
    say(f"{calls:,} calls in {len(found.rows)} runs, simulated in {took}{alone}")
    for row in found.rows:
        if row.failed:
            say(f"FAILED: {row.failed} of {row.calls} calls of {row.case}, the first: {row.error}")


def _show_variants(study: Study, found: Outcome) -> None:
    """A table for each load: median SCT of each varied configuration with one number of the
    hardware at an end of its range, and how many times that is what it is as given."""
    base = {row.case: row.measures.get("sct_p50") for row in found.rows}
    lines: dict[tuple[str, str], dict[str, VariedRow]] = {}
    for row in found.sensitivity:
        lines.setdefault((row.number, row.end), {})[row.case] = row
    for load in dict.fromkeys(case.load for case in study.varied):
        cases = {case.label: case.configuration for case in study.varied if case.load == load}
        given = [cell for case in cases for cell in (number("sct_p50", base[case]), "1.00")]
        table = [("all as given", "", "", *given, *_over(base, list(cases)))]
        table += [_line(varied, list(cases)) for varied in lines.values()]
        heads = [head for name in cases.values() for head in (name, "times")]
        title = (
            f"{found.name}{f', load {load}' if load else ''}: sensitivity of SCT p50, seconds;"
            " times is the ratio to that with all numbers as given"
        )
        columns = ("number", "given", "tried", *heads, *["last / first"] * (len(cases) > 1))
        print_table(title, columns, table, ("number",))


def _line(varied: Mapping[str, VariedRow], cases: Sequence[str]) -> tuple[str, ...]:
    one = next(iter(varied.values()))
    own = one.number.removeprefix("models.")
    name = f"{own}, {one.unit}" if one.unit else own
    cells = [cell for case in cases for cell in _varied(varied.get(case))]
    medians = {case: row.measures.get("sct_p50") for case, row in varied.items()}
    return name, f"{one.given:g}", f"{one.tried:g}", *cells, *_over(medians, cases)


def _over(values: Mapping[str, float | None], cases: Sequence[str]) -> tuple[str, ...]:
    """The last case over the first, where there are several."""
    first, last = values.get(cases[0]), values.get(cases[-1])
    ratio = f"{last / first:.2f}" if first and last else ""
    return (ratio,) if len(cases) > 1 else ()


def _varied(row: VariedRow | None) -> tuple[str, str]:
    if row is None:
        return "", ""
    ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
    return number("sct_p50", row.measures.get("sct_p50")), ratio


def _best_rows(scenario: Scenario, found: Outcome) -> list[Row]:
    from msgspec.structs import replace

    chosen = best(scenario, found.rows)
    return [replace(row, case=f"{name} (best: {row.case})") for name, row in chosen.items()]


def _show_bounds(found: Outcome) -> None:
    """One line for all cases that have the same bounds: those under the same load."""
    cases: dict[str, list[str]] = {}
    for row in found.rows:
        told = ", ".join(
            f"{NAMES[name][0]} {number(name, value)} s" for name, value in row.bounds.items()
        )
        cases.setdefault(told or f"unknown, as {row.failed} calls failed", []).append(row.case)
    for told, names in cases.items():
        where = f" ({', '.join(names)})" if len(cases) > 1 else ""
        say(f"no scheduler is below: {told}{where}")


def _show_parts(rows: Sequence[Row]) -> None:
    told = [row for row in rows if row.parts]
    columns = ("case", *(title for _, title in PARTS))
    table = [
        (row.case, *(number("seconds", row.parts.get(name)) for name, _ in PARTS)) for row in told
    ]
    print_table("where the seconds of a mean session go", columns, table, ("case",))


def _show_published(found: Outcome) -> None:
    table = []
    for row in found.rows:
        for name, value in row.published.items():
            ours = row.measures.get(name)
            ratio = f"{ours / value:.2f}" if ours is not None and value else ""
            words, kind = NAMES[name]
            figure = f"{words}, s" if kind == "seconds" else words
            table.append((row.case, figure, number(name, value), number(name, ours), ratio))
    if table:
        columns = ("case", "figure", "published", "simulated", "times")
        print_table("beside the paper", columns, table, ("case", "figure"))


def number(name: str, value: float | None) -> str:
    """A measure by the kind that it has."""
    if value is None:
        return ""
    kind = NAMES[name][1]
    if kind == "share":
        return f"{value:.1%}"
    return f"{value:,.0f}" if kind == "count" or value >= 1000 else f"{value:.3g}"
