"""Every figure's numbers against a slow count of the runs they come from."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alipes.replay.records import Parts
from alipes.replay.reports.breakdown import WORDS, breakdown_figure
from alipes.replay.reports.form import Areas, Bars, Boxes, Figure, Lines
from alipes.replay.reports.groups import Group, group_runs
from alipes.replay.reports.latency import MOST_POINTS, box, cdf, first_token_figure, session_figure
from alipes.replay.reports.rounds import (
    admission_figure,
    composition_figure,
    memory_figure,
    moving_average,
    round_footprint,
    thinned,
    totals_figure,
)
from alipes.replay.reports.routing import lease_figures, router_figure
from alipes.replay.reports.switches import switch_figure
from alipes.replay.runs import MemoryRecord, RoundRecord, Run
from alipes.replay.stats import nearest_rank

GIB = 1 << 30
SECONDS = st.lists(st.floats(0.001, 1e4), min_size=1, max_size=1200)


@pytest.fixture(scope="module")
def groups(five_runs: list[Run]) -> tuple[Group, ...]:
    return group_runs(five_runs)


def panels(figure: Figure | None) -> tuple[object, ...]:
    assert figure is not None
    return figure.panels


# --- distributions -----------------------------------------------------------------------------


@given(values=SECONDS)
def test_cdf_is_the_share_of_values_up_to_each(values: list[float]) -> None:
    curve = cdf("a", "c0", values)
    assert (curve.x[0], curve.y[0]) == (min(values), 0.0)
    assert (curve.x[-1], curve.y[-1]) == (max(values), 1.0)
    assert len(curve.x) <= MOST_POINTS + 2
    for x, y in list(zip(curve.x, curve.y, strict=True))[1:]:
        rank = y * len(values)
        assert sum(value < x for value in values) < rank + 1e-6
        assert rank - 1e-6 <= sum(value <= x for value in values)


@given(values=SECONDS)
def test_a_cdf_of_few_values_has_them_all(values: list[float]) -> None:
    curve = cdf("a", "c0", values[:MOST_POINTS])
    assert list(curve.x[1:]) == sorted(values[:MOST_POINTS])


@given(values=SECONDS)
def test_boxes_have_nearest_ranks(values: list[float]) -> None:
    made = box("a", "c0", values)
    ranks = [nearest_rank(values, percent) for percent in (5, 25, 50, 75, 95)]
    assert [made.p5, made.p25, made.p50, made.p75, made.p95] == ranks
    assert made.values == tuple(sorted(values))


def test_completion_times(groups: tuple[Group, ...], five_runs: list[Run]) -> None:
    curves, boxes = panels(session_figure(groups))
    assert isinstance(curves, Lines)
    assert isinstance(boxes, Boxes)
    for run, curve, one in zip(five_runs, curves.series, boxes.boxes, strict=True):
        spans: dict[str, list[float]] = {}
        for call in run.calls:
            spans.setdefault(call.session, []).extend((call.intended, call.finished))
        times = sorted(max(found) - min(found) for found in spans.values())
        assert list(one.values) == list(curve.x[1:]) == times
        assert curve.name == one.name == run.info.configuration


def test_first_tokens_mark_the_95th_percentile(
    groups: tuple[Group, ...], five_runs: list[Run]
) -> None:
    (panel,) = panels(first_token_figure(groups))
    assert isinstance(panel, Lines)
    assert [mark.at for mark in panel.marks] == [
        nearest_rank([call.ttft or 0 for call in run.calls], 95) for run in five_runs
    ]
    assert [mark.colour for mark in panel.marks] == [one.colour for one in panel.series]


def test_loads_have_panels_of_their_own(run_maker: Callable[..., Run]) -> None:
    runs = [
        run_maker(configuration=name, sessions=2, settings={"load": load})
        for name in ("a", "b")
        for load in ("high", "low")
    ]
    shown = panels(first_token_figure(group_runs(runs)))
    assert [panel.title for panel in shown if isinstance(panel, Lines)] == ["Low load", "High load"]
    assert len(panels(session_figure(group_runs(runs)))) == 4


# --- rounds and memory -------------------------------------------------------------------------


@given(values=st.lists(st.floats(0, 1e3), max_size=60), window=st.sampled_from([1, 3, 11]))
def test_moving_average_is_that_of_each_window(values: list[float], window: int) -> None:
    half = window // 2
    expected = [
        sum(part) / len(part)
        for part in (values[max(0, i - half) : i + half + 1] for i in range(len(values)))
    ]
    assert moving_average(values, window) == pytest.approx(expected, abs=1e-6)


@given(values=st.lists(st.floats(-1e3, 1e3), max_size=100), most=st.integers(1, 20))
def test_thinning_keeps_the_order_and_the_mean(values: list[float], most: int) -> None:
    kept = thinned(values, most)
    assert len(kept) <= most
    if len(values) <= most:
        assert list(kept) == values
    if values and len(values) % len(kept) == 0:
        assert sum(kept) / len(kept) == pytest.approx(sum(values) / len(values), abs=1e-6)


def test_round_composition(groups: tuple[Group, ...], five_runs: list[Run]) -> None:
    shown = panels(composition_figure(groups))
    tops = []
    for run, panel in zip(five_runs, shown, strict=True):
        assert isinstance(panel, Areas)
        for layer in panel.layers:
            values = [getattr(one, layer.name) for one in run.rounds]
            assert list(layer.y) == pytest.approx(moving_average(values))
        assert sum(layer.y[0] for layer in panel.layers) == pytest.approx(
            moving_average([one.seconds for one in run.rounds])[0]
        )
        tops.append(max(map(sum, zip(*(layer.y for layer in panel.layers), strict=True))))
    assert {panel.top for panel in shown if isinstance(panel, Areas)} == {max(tops)}


def test_rounds_of_several_runs_are_averaged_by_number(run_maker: Callable[..., Run]) -> None:
    run = run_maker(sessions=1)
    lengths = ((1.0, 3.0), (3.0,))
    runs = [
        msgspec.structs.replace(
            run,
            rounds=tuple(
                RoundRecord("i", n, 0.0, long, decode=long) for n, long in enumerate(found)
            ),
        )
        for found in lengths
    ]
    (panel,) = panels(composition_figure(group_runs(runs)))
    assert isinstance(panel, Areas)
    assert panel.layers[0].x == (0.0, 1.0)
    assert panel.layers[0].y == (2.5, 2.5)


def test_round_totals(groups: tuple[Group, ...], five_runs: list[Run]) -> None:
    shares, seconds = panels(totals_figure(groups))
    assert isinstance(shares, Bars)
    assert isinstance(seconds, Bars)
    for place, run in enumerate(five_runs):
        whole = sum(one.seconds for one in run.rounds)
        for share, total in zip(shares.layers, seconds.layers, strict=True):
            expected = sum(getattr(one, total.name) for one in run.rounds)
            assert total.values[place] == pytest.approx(expected)
            assert share.values[place] == pytest.approx(expected / whole)


def test_session_prefill(groups: tuple[Group, ...], five_runs: list[Run]) -> None:
    shares, handled = panels(admission_figure(groups))
    assert isinstance(shares, Bars)
    assert isinstance(handled, Bars)
    admitted, parked = handled.layers
    for place, run in enumerate(five_runs):
        inside = sum(one.sp_admitted for one in run.rounds)
        out = sum(one.sp_parked for one in run.rounds)
        assert admitted.values[place] * len(run.rounds) == pytest.approx(inside)
        assert parked.values[place] * len(run.rounds) == pytest.approx(out)
        assert shares.layers[0].values[place] == pytest.approx(inside / ((inside + out) or 1))


def test_memory_by_round_with_its_capacity(groups: tuple[Group, ...], five_runs: list[Run]) -> None:
    (panel,) = panels(memory_figure(groups))
    assert isinstance(panel, Lines)
    assert [mark.at for mark in panel.marks] == [183.0]
    for run, curve in zip(five_runs, panel.series, strict=True):
        expected = slow_footprint(run)
        assert curve.x == tuple(expected)
        assert [y * GIB for y in curve.y] == pytest.approx(list(expected.values()))


def slow_footprint(run: Run) -> dict[float, float]:
    """For every round the mean of the records from its begin to the next one's."""
    found: dict[float, float] = {}
    last = None
    for one, after in pairwise([*run.rounds, None]):
        assert one is not None
        there = [
            record.weights + record.kv + record.staged + record.runtime
            for record in run.memory
            if one.at <= record.at and (after is None or record.at < after.at)
        ]
        last = there[-1] if there else last
        if last is not None:
            found[float(one.index)] = sum(there) / len(there) if there else float(last)
    return found


def test_a_round_without_a_record_has_the_bytes_before_it(five_runs: list[Run]) -> None:
    run = five_runs[0]
    few = msgspec.structs.replace(run, memory=run.memory[1::7])
    assert len(few.memory) < len(run.rounds)
    assert dict(round_footprint(few)) == pytest.approx(slow_footprint(few))
    early = MemoryRecord("cold-0", -1.0, 5, 0, 0, 0, 9)
    assert round_footprint(msgspec.structs.replace(run, memory=(early,))) == [
        (float(one.index), 5.0) for one in run.rounds
    ]


def test_memory_without_rounds_is_over_time(run_maker: Callable[..., Run]) -> None:
    records = [(0.0, "a", 4), (1.0, "b", 2), (2.0, "a", 6), (5.0, "b", 8)]
    memory = tuple(MemoryRecord(name, at, size * GIB, 0, 0, 0, GIB) for at, name, size in records)
    run = msgspec.structs.replace(run_maker(sessions=1), rounds=(), memory=memory)
    (panel,) = panels(memory_figure(group_runs([run])))
    assert isinstance(panel, Lines)
    assert panel.x_label == "seconds"
    assert panel.series[0].x == (0.0, 1.0, 2.0, 5.0)
    assert panel.series[0].y == (4.0, 3.0, 4.0, 7.0)


def test_memory_of_an_instance_without_rounds_is_in_no_round(run_maker: Callable[..., Run]) -> None:
    run = run_maker(sessions=1)
    other = MemoryRecord("other", 0.0, GIB, 0, 0, 0, GIB)
    assert memory_figure(group_runs([msgspec.structs.replace(run, memory=(other,))])) is None


# --- switches, time, placement -----------------------------------------------------------------


def test_switches(groups: tuple[Group, ...], five_runs: list[Run]) -> None:
    latency, paths = panels(switch_figure(groups))
    assert isinstance(latency, Lines)
    assert isinstance(paths, Bars)
    shares = {layer.name: layer.values for layer in paths.layers}
    for place, (run, curve) in enumerate(zip(five_runs, latency.series, strict=True)):
        assert list(curve.x[1:]) == sorted(one.seconds * 1000 for one in run.switches)
        d2d = sum(one.path == "d2d" for one in run.switches) / len(run.switches)
        assert shares["on the device"][place] == d2d
        assert sum(values[place] for values in shares.values()) == pytest.approx(1)
    assert "remapped" not in shares


def test_where_the_time_goes(groups: tuple[Group, ...], five_runs: list[Run]) -> None:
    (panel,) = panels(breakdown_figure(groups))
    assert isinstance(panel, Bars)
    keys = {words: key for key, words in WORDS.items()}
    for place, run in enumerate(five_runs):
        count = len(run.info.planned)
        for layer in panel.layers:
            key = keys[layer.name]
            if key != "gap":
                expected = sum(getattr(call.parts, key) for call in run.calls)
                assert layer.values[place] == pytest.approx(expected / count)
        sct = sum(session.sct or 0 for session in groups[place].sessions)
        assert sum(layer.values[place] for layer in panel.layers) == pytest.approx(sct / count)
        assert panel.ticks[place] == pytest.approx(sum(run.info.bound.values()) / count)


def test_no_bound_no_tick(run_maker: Callable[..., Run]) -> None:
    run = run_maker(sessions=2)
    one = dict(list(run.info.bound.items())[:1])
    for bound, ticks in (({}, ()), (one, ())):
        info = msgspec.structs.replace(run.info, bound=bound)
        (panel,) = panels(breakdown_figure(group_runs([msgspec.structs.replace(run, info=info)])))
        assert isinstance(panel, Bars)
        assert panel.ticks == ticks


def test_every_part_of_a_call_has_words_and_a_place() -> None:
    assert {field.name for field in msgspec.structs.fields(Parts)} | {"gap"} == set(WORDS)


def placed(opens: float, avoidable: float) -> dict[str, float]:
    return {"placed": 100.0, "opens": opens, "avoidable_opens": avoidable}


def test_router_bars_are_the_counters(run_maker: Callable[..., Run]) -> None:
    runs = [
        run_maker(
            configuration=name,
            sessions=2,
            instances=2,
            settings={"load": load, "lease_seconds": lease, "policy": name},
            counters=placed(40.0, opens),
        )
        for name, load, lease, opens in (
            ("least", "low", "0", 9.0),
            ("least", "high", "0", 37.0),
            ("full", "low", "1", 0.0),
            ("full", "high", "1", 1.0),
        )
    ]
    ttft, bars = panels(router_figure(group_runs(runs)))
    assert isinstance(ttft, Lines)
    assert isinstance(bars, Bars)
    assert ttft.title == "TTFT, high load"
    assert bars.categories == ("low load", "high load")
    assert {layer.name: layer.values for layer in bars.layers} == {
        "least": (9.0, 37.0),
        "full": (0.0, 1.0),
    }


def test_a_router_figure_needs_policies_counts_and_a_choice(run_maker: Callable[..., Run]) -> None:
    def run(name: str, instances: int, counted: bool) -> Run:
        counters = placed(2.0, 1.0) if counted else {}
        more = {"instances": instances, "counters": counters, "settings": {"policy": name}}
        return run_maker(configuration=name, sessions=2, **more)

    assert router_figure(group_runs([run("a", 2, True)])) is None
    assert router_figure(group_runs([run("a", 2, True), run("b", 2, False)])) is None
    assert router_figure(group_runs([run("a", 1, True), run("b", 1, True)])) is None
    assert router_figure(group_runs([run("a", 2, True), run("b", 2, True)])) is not None


def test_lease_sweep(run_maker: Callable[..., Run]) -> None:
    runs = [
        run_maker(
            sessions=3,
            slower=1 + float(tau),
            settings={"lease_seconds": tau},
            counters={
                **placed(40.0 + float(tau), 1.0),
                "returns": 50.0,
                "same_instance": 30.0 + float(tau),
                "leases_installed": 10.0 if tau != "0" else 0.0,
                "leases_expired": 3.0,
                "leases_discarded": 1.0,
            },
        )
        for tau in ("2", "0", "0.5")
    ]
    (figure,) = lease_figures(group_runs(runs))
    rates, returning = figure.panels
    assert isinstance(rates, Lines)
    assert isinstance(returning, Lines)
    curves = {one.name: dict(zip(one.x, one.y, strict=True)) for one in rates.series}
    assert curves["same instance"] == pytest.approx({0.0: 60.0, 0.5: 61.0, 2.0: 64.0})
    assert curves["model resident"] == pytest.approx({0.0: 60.0, 0.5: 59.5, 2.0: 58.0})
    assert curves["leases not used"] == pytest.approx({0.5: 40.0, 2.0: 40.0})
    p50 = [one for one in returning.series if one.name == "p50"]
    back = [call.ttft or 0 for call in runs[0].calls if call.returning]
    assert dict(zip(p50[0].x, p50[0].y, strict=True))[2.0] == nearest_rank(back, 50)


def test_figures_appear_only_where_there_is_data(run_maker: Callable[..., Run]) -> None:
    run = run_maker(sessions=1)
    bare = [msgspec.structs.replace(call, parts=None, ttft=None) for call in run.calls]
    groups = group_runs([Run("folder", run.info, tuple(bare))])
    for make in (
        first_token_figure,
        breakdown_figure,
        router_figure,
        composition_figure,
        totals_figure,
        switch_figure,
        admission_figure,
        memory_figure,
    ):
        assert make(groups) is None
    assert lease_figures(groups) == []
    assert session_figure(groups) is not None
    no_sp = group_runs([run_maker("no-sp", sessions=1)])
    assert admission_figure(no_sp) is None
    assert composition_figure(no_sp) is not None
