from __future__ import annotations

from collections.abc import Callable

import msgspec

from alipes.replay.reports.groups import group_runs, loads_of
from alipes.replay.reports.measures import measure
from alipes.replay.runs import Run


def small(make: Callable[..., Run], configuration: str, **more: object) -> Run:
    return make(configuration=configuration, sessions=1, **more)


def test_seeds_are_pooled_and_other_settings_are_not(run_maker: Callable[..., Run]) -> None:
    runs = [small(run_maker, "a", seed=seed, settings={"seed": str(seed)}) for seed in (1, 2)]
    runs.append(small(run_maker, "a", settings={"slot": "3"}))
    groups = group_runs(runs)
    assert [len(group.runs) for group in groups] == [2, 1]
    assert [group.label for group in groups] == ["a", "a, slot 3"]


def test_configurations_keep_their_order_and_colours_over_loads(
    run_maker: Callable[..., Run],
) -> None:
    runs = [
        small(run_maker, name, settings={"load": load})
        for load in ("high", "low", "medium")
        for name in ("sticky", "full")
    ]
    groups = group_runs(runs)
    assert loads_of(groups) == ("low", "medium", "high")
    assert [group.label for group in groups] == [
        f"{name}, {load} load" for load in ("low", "medium", "high") for name in ("sticky", "full")
    ]
    assert {(group.name, group.colour) for group in groups} == {("sticky", "c0"), ("full", "c1")}


def test_loads_that_are_numbers_are_ordered_as_numbers(run_maker: Callable[..., Run]) -> None:
    runs = [small(run_maker, "a", settings={"load": load}) for load in ("10", "0.6", "2")]
    assert loads_of(group_runs(runs)) == ("0.6", "2", "10")
    assert group_runs(runs)[2].label == "a, load 10"


def test_one_load_is_not_told(run_maker: Callable[..., Run]) -> None:
    runs = [small(run_maker, name, settings={"load": "high"}) for name in ("a", "b")]
    assert [(group.label, group.load) for group in group_runs(runs)] == [("a", ""), ("b", "")]


def test_leases_make_a_sweep_only_where_they_differ(run_maker: Callable[..., Run]) -> None:
    runs = [small(run_maker, "full", settings={"lease_seconds": tau}) for tau in ("5", "0.5")]
    runs.append(small(run_maker, "sticky", settings={"lease_seconds": "0"}))
    groups = group_runs(runs)
    assert [(group.label, group.lease) for group in groups] == [
        ("full, lease 0.5 s", 0.5),
        ("full, lease 5 s", 5.0),
        ("sticky", 0.0),
    ]
    assert len({group.sweep for group in groups}) == 1


def test_a_sweep_goes_over_configurations_that_differ_in_nothing_else(
    run_maker: Callable[..., Run],
) -> None:
    settings = [
        ("tau-1", {"lease_seconds": "1"}),
        ("tau-0", {"lease_seconds": "0"}),
        ("sticky", {"lease_seconds": "0", "policy": "session-sticky"}),
    ]
    groups = group_runs([small(run_maker, name, settings=found) for name, found in settings])
    assert [group.name for group in groups] == ["tau-1", "tau-0", "sticky"]
    assert groups[0].sweep == groups[1].sweep != ""
    assert groups[2].sweep == ""


def test_live_and_simulated_share_a_colour_and_are_marked(run_maker: Callable[..., Run]) -> None:
    runs = [small(run_maker, "a", kind=kind) for kind in ("live", "simulated")]
    live, simulated = group_runs(runs)
    assert (live.label, simulated.label) == ("a (live)", "a (simulated)")
    assert live.colour == simulated.colour
    assert (live.stroke, simulated.stroke) == ("dashed", "line")


def test_more_configurations_than_colours_are_told_by_their_stroke(
    run_maker: Callable[..., Run],
) -> None:
    groups = group_runs([small(run_maker, f"c{number}") for number in range(10)])
    assert len({(group.colour, group.stroke) for group in groups}) == 10
    assert groups[8].colour == groups[0].colour


def test_hardware_that_differs_is_told(run_maker: Callable[..., Run]) -> None:
    run = small(run_maker, "a")
    other = msgspec.structs.replace(run.info, hardware="h200-tp4")
    groups = group_runs([run, msgspec.structs.replace(run, info=other)])
    assert [group.label for group in groups] == ["a, hardware b200-tp8", "a, hardware h200-tp4"]


def test_failed_and_warmup_calls_are_not_among_the_calls(run_maker: Callable[..., Run]) -> None:
    run = small(run_maker, "a")
    first, second, *rest = run.calls
    changed = [
        msgspec.structs.replace(first, warmup=True),
        msgspec.structs.replace(second, error="x"),
        *rest,
    ]
    (group,) = group_runs([msgspec.structs.replace(run, calls=tuple(changed))])
    assert (len(group.calls), group.failed) == (len(rest), 1)


def test_no_figure_counts_what_was_before_the_end_of_the_warm_up(
    run_maker: Callable[..., Run],
) -> None:
    run = small(run_maker, "a")
    middle = run.rounds[len(run.rounds) // 2].at
    early = {call.session for call in run.calls[:1]}
    calls = tuple(
        msgspec.structs.replace(call, warmup=True, finished=min(call.finished, middle))
        if call.session in early
        else call
        for call in run.calls
    )
    planned = {name: of for name, of in run.info.planned.items() if name not in early}
    info = msgspec.structs.replace(run.info, planned=planned)
    run = msgspec.structs.replace(run, calls=calls, info=info)
    numbers = measure(group_runs([run])[0])
    end = max(call.finished for call in calls if call.warmup)
    assert 0 < end <= middle
    assert numbers["rounds"] == sum(one.at >= end for one in run.rounds) < len(run.rounds)
    assert numbers["switches"] == sum(one.at >= end for one in run.switches) < len(run.switches)


def test_runs_of_more_sessions_are_not_pooled_with_those_of_fewer(
    run_maker: Callable[..., Run],
) -> None:
    runs = []
    for planned in ({"s0": 1}, {"s0": 1, "s1": 1}):
        run = small(run_maker, "a")
        info = msgspec.structs.replace(run.info, planned=planned)
        runs.append(msgspec.structs.replace(run, info=info))
    groups = group_runs(runs)
    assert [group.label for group in groups] == ["a, sessions 1", "a, sessions 2"]
    assert [len(group.runs) for group in groups] == [1, 1]
