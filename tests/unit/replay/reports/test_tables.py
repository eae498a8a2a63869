from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from alipes.replay.compare import percentile_ratio
from alipes.replay.report import build_report
from alipes.replay.reports.form import Amount, Cell, Interval, ReportError, Section, Table
from alipes.replay.reports.groups import group_runs
from alipes.replay.reports.tables import model_table
from alipes.replay.reports.words import shown, three_digits
from alipes.replay.runs import Run
from alipes.replay.stats import nearest_rank


def table(section: Section, name: str) -> list[dict[str, Cell]]:
    (found,) = [one for one in section.tables if one.name == name]
    return rows(found)


def rows(found: Table) -> list[dict[str, Cell]]:
    return [
        {column.name: cell for column, cell in zip(found.columns, row, strict=True)}
        for row in found.rows
    ]


@pytest.fixture(scope="module")
def section(five_runs: list[Run]) -> Section:
    (only,) = build_report(five_runs, baseline="round-only").sections
    return only


def completion(run: Run) -> dict[str, list[float]]:
    spans: dict[str, list[float]] = {}
    for call in run.calls:
        spans.setdefault(call.session, []).extend((call.intended, call.finished))
    return {name: [max(times) - min(times)] for name, times in spans.items()}


def test_configurations(section: Section, five_runs: list[Run]) -> None:
    for row, run in zip(table(section, "configurations"), five_runs, strict=True):
        times = completion(run)
        assert row["configuration"] == run.info.configuration
        assert row["calls"] == len(run.calls)
        assert row["sessions"] == "30/30"
        assert row["SCT p95"] == nearest_rank([one for (one,) in times.values()], 95)
        ratios = [time / run.info.bound[name] for name, (time,) in times.items()]
        assert row["SCT / bound"] == nearest_rank(ratios, 50)
        assert "failed" not in row


def test_pairs_are_beside_the_baseline(section: Section, five_runs: list[Run]) -> None:
    base = completion(five_runs[-1])
    found = table(section, "paired")
    assert [row["configuration"] for row in found] == ["all-on", "no-sp", "no-hkvr", "h2d-only"]
    for row, run in zip(found, five_runs[:-1], strict=True):
        times = completion(run)
        assert row["baseline"] == "round-only"
        assert row["SCT p50"] == percentile_ratio(base, times, 50)
        faster = sum(times[name] < base[name] for name in base)
        assert row["sessions complete sooner"] == f"{faster} of 30"


def test_published_numbers_are_beside_ours(section: Section, five_runs: list[Run]) -> None:
    found = {(row["configuration"], row["figure"]): row for row in table(section, "published")}
    ours = nearest_rank([one for (one,) in completion(five_runs[0]).values()], 50)
    assert ours is not None
    row = found["all-on", "SCT p50"]
    assert row["here"] == Amount(ours, "seconds")
    assert row["published"] == Amount(189.0, "seconds")
    assert row["here / published"] == ours / 189
    assert ("round-only", "share of round time spent switching") in found
    assert len(found) == 7


def test_models_have_rows_that_add_up(section: Section, five_runs: list[Run]) -> None:
    found = table(section, "models")
    assert len(found) == 15
    mine = [row for row in found if row["configuration"] == "no-sp"]
    run = five_runs[1]
    assert sum(row["calls"] for row in mine if isinstance(row["calls"], int)) == len(run.calls)
    ttft = [call.ttft or 0 for call in run.calls if call.model == mine[0]["model"]]
    assert mine[0]["TTFT p95"] == nearest_rank(ttft, 95)


def test_one_model_needs_no_table_of_models(run_maker: Callable[..., Run]) -> None:
    assert model_table(group_runs([run_maker(sessions=1)])) is None


def test_every_session_and_every_counter(section: Section, five_runs: list[Run]) -> None:
    sessions = {row["session"]: row for row in table(section, "sessions")}
    for run in five_runs:
        for name, (time,) in completion(run).items():
            assert sessions[name][run.info.configuration] == time
    counters = {row["counter"]: row for row in table(section, "counters")}
    assert counters["opens"]["h2d-only"] == 33.0


def test_repetitions_are_paired_by_their_mean(run_maker: Callable[..., Run]) -> None:
    runs = [run_maker(seed=seed, sessions=6) for seed in (1, 2)]
    runs += [run_maker(configuration="b", seed=seed, sessions=6, slower=2) for seed in (1, 2, 3)]
    (only,) = build_report(runs).sections
    (row,) = table(only, "paired")
    assert row["configuration"] == "b"
    assert row["sessions complete sooner"] == "0 of 6"
    assert isinstance(row["SCT p50"], Interval)
    assert 0.3 < row["SCT p50"].value < 0.8
    assert any("different seeds" in warning for warning in only.warnings)


def test_a_lease_sweep_is_compared_with_its_first(run_maker: Callable[..., Run]) -> None:
    runs = [run_maker(sessions=2, settings={"lease_seconds": tau}) for tau in ("1", "0", "5")]
    (only,) = build_report(runs).sections
    assert [(row["configuration"], row["baseline"]) for row in table(only, "paired")] == [
        ("all-on, lease 1 s", "all-on, lease 0 s"),
        ("all-on, lease 5 s", "all-on, lease 0 s"),
    ]


def test_loads_and_kinds_are_compared_with_their_like(run_maker: Callable[..., Run]) -> None:
    runs = [
        run_maker(configuration=name, kind=kind, sessions=1, settings={"load": load})
        for name in ("base", "other")
        for kind in ("live", "simulated")
        for load in ("low", "high")
    ]
    (only,) = build_report(runs).sections
    pairs = [(row["configuration"], row["baseline"]) for row in table(only, "paired")]
    assert ("other (live), low load", "base (live), low load") in pairs
    assert ("other (simulated), high load", "base (simulated), high load") in pairs
    assert ("base (simulated), high load", "base (live), high load") in pairs
    assert len(pairs) == 6


# --- the whole report --------------------------------------------------------------------------


def test_one_section_for_each_scenario(run_maker: Callable[..., Run]) -> None:
    runs = [run_maker(scenario=name, sessions=1) for name in ("x", "y", "x")]
    report = build_report(runs)
    assert [(one.scenario, len(one.runs)) for one in report.sections] == [("x", 2), ("y", 1)]
    assert report.title == "x, y"
    assert build_report(runs, title="T").title == "T"


def test_the_baseline_must_exist(run_maker: Callable[..., Run]) -> None:
    runs = [run_maker(configuration="a", sessions=1), run_maker(configuration="b", sessions=1)]
    assert build_report(runs).sections[0].baseline == "a"
    assert build_report(runs, baseline="b").sections[0].baseline == "b"
    with pytest.raises(ReportError, match=r"--baseline c: .* there are a, b"):
        build_report(runs, baseline="c")


def test_a_scenario_without_the_baseline_takes_its_first(run_maker: Callable[..., Run]) -> None:
    runs = [
        run_maker(configuration=name, scenario=scenario, sessions=1)
        for scenario, name in (("x", "a"), ("x", "b"), ("y", "c"))
    ]
    report = build_report(runs, baseline="b")
    assert [section.baseline for section in report.sections] == ["b", "c"]


def test_runs_that_say_nothing_are_refused(run_maker: Callable[..., Run]) -> None:
    with pytest.raises(ReportError, match="no runs"):
        build_report([])
    run = run_maker(sessions=1)
    with pytest.raises(ReportError, match=r"runs/all-on: the run has no calls that count"):
        build_report([msgspec.structs.replace(run, calls=())])
    failed = tuple(msgspec.structs.replace(call, error="HTTP 503") for call in run.calls)
    with pytest.raises(ReportError, match=r"runs/all-on: none of its \d+ calls .* HTTP 503"):
        build_report([run, msgspec.structs.replace(run, calls=failed)])


def test_no_completed_session_still_gives_first_tokens(run_maker: Callable[..., Run]) -> None:
    run = run_maker(sessions=6)
    last = {call.session: call.index for call in run.calls}
    cut = tuple(call for call in run.calls if call.index < last[call.session])
    info = msgspec.structs.replace(run.info, complete=False)
    (only,) = build_report([msgspec.structs.replace(run, info=info, calls=cut)]).sections
    assert [figure.name for figure in only.figures][:2] == ["ttft", "rounds"]
    assert [line for line in only.warnings if "no session is complete" in line]
    assert "SCT p50" not in table(only, "configurations")[0]


def test_warnings(run_maker: Callable[..., Run]) -> None:
    run, few = run_maker(sessions=6), run_maker(configuration="few", sessions=3)
    first, *rest = few.calls
    wrong = msgspec.structs.replace(first, completion_tokens=first.expected_tokens + 1)
    broken = msgspec.structs.replace(rest[-1], error="HTTP 500")
    info = msgspec.structs.replace(few.info, complete=False, published={"nothing": 1.0})
    few = msgspec.structs.replace(few, info=info, calls=(wrong, *rest[:-1], broken))
    (only,) = build_report([run, few]).sections
    assert list(only.warnings) == [
        "few: the run was interrupted; it counts the calls that had ended and 2 sessions that are"
        " known to be complete.",
        "few: 1 call failed, the first with: HTTP 500.",
        "few: only 2 sessions; percentiles and intervals say little.",
        "not all configurations served the same sessions (all-on 6, few 3; 3 in common): only"
        " paired figures compare like with like.",
        "few: 1 calls gave another number of tokens than recorded.",
        "published numbers without a figure of ours: nothing.",
    ]


def test_a_sound_set_of_runs_has_no_warnings(section: Section) -> None:
    assert section.warnings == ()


# --- words -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (0.00612, "0.00612"),
        (0.55, "0.550"),
        (9.996, "10.00"),
        (13.44, "13.4"),
        (189.2, "189"),
        (2296.0, "2,296"),
        (1e-9, "0.000000"),
    ],
)
def test_three_digits(value: float, text: str) -> None:
    assert three_digits(value) == text


def test_cells() -> None:
    assert shown(None, "seconds") == "-"
    assert shown("a", "text") == "a"
    assert shown(0.346, "share") == "34.6%"
    assert shown(960, "count") == "960"
    assert shown(7.5, "count") == "7.50"
    assert shown(5.288, "ratio") == "5.29"
    assert shown(Interval(5.29, 4.0, float("inf")), "interval") == "5.29 [4.00, ∞]"
    assert shown(Amount(189.0, "seconds"), "number") == "189 s"
    assert shown(Amount(0.517, "share"), "number") == "51.7%"
