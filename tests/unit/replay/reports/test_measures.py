from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from alipes.replay.reports.groups import group_runs
from alipes.replay.reports.measures import NAMES, counters, measure
from alipes.replay.runs import Run
from alipes.replay.stats import nearest_rank


def test_latency_of_one_run_is_that_of_its_calls(run_maker: Callable[..., Run]) -> None:
    run = run_maker("no-sp", sessions=9)
    (group,) = group_runs([run])
    found = measure(group)
    ttft = [call.ttft for call in run.calls if call.ttft is not None]
    back = [call.ttft for call in run.calls if call.returning and call.ttft is not None]
    assert found["ttft_p95"] == nearest_rank(ttft, 95)
    assert found["returning_ttft_p50"] == nearest_rank(back, 50)
    cached = sum(call.cached_tokens or 0 for call in run.calls)
    assert found["cached_share"] == cached / sum(call.prompt_tokens or 0 for call in run.calls)
    assert "restored_share" not in found


def test_calls_that_do_not_tell_what_was_cached_count_on_neither_side(
    run_maker: Callable[..., Run],
) -> None:
    run = run_maker(sessions=1)
    first, *rest = run.calls
    silent = msgspec.structs.replace(first, cached_tokens=None)
    (group,) = group_runs([msgspec.structs.replace(run, calls=(silent, *rest))])
    told = sum(call.cached_tokens or 0 for call in rest)
    assert measure(group)["cached_share"] == told / sum(call.prompt_tokens or 0 for call in rest)


def test_counts_are_the_mean_of_runs_and_shares_are_of_all(run_maker: Callable[..., Run]) -> None:
    runs = [run_maker(seed=seed, sessions=6) for seed in (1, 2)]
    (group,) = group_runs(runs)
    found = measure(group)
    rounds = [one for run in runs for one in run.rounds]
    assert found["rounds"] == len(rounds) / 2
    seconds = sum(one.seconds for one in rounds)
    assert found["switch_share"] == pytest.approx(sum(one.switch for one in rounds) / seconds)
    admitted = sum(one.sp_admitted for one in rounds)
    parked = sum(one.sp_parked for one in rounds)
    assert found["sp_share"] == admitted / (admitted + parked)
    assert found["sp_parked"] == parked / 2
    switches = [one for run in runs for one in run.switches]
    d2d = [one.seconds for one in switches if one.path == "d2d"]
    assert found["switches"] == len(switches) / 2
    assert found["switch_d2d_share"] == len(d2d) / len(switches)
    assert found["switch_d2d_p50"] == nearest_rank(d2d, 50)
    assert found["hbm_peak"] * 2**30 == max(
        one.weights + one.kv + one.staged + one.runtime for run in runs for one in run.memory
    )


def test_placement_comes_from_the_counters(run_maker: Callable[..., Run]) -> None:
    counted = {
        "placed": 120.0,
        "opens": 33.0,
        "avoidable_opens": 2.0,
        "returns": 96.0,
        "same_instance": 65.0,
        "leases_installed": 90.0,
        "leases_expired": 30.0,
        "leases_discarded": 15.0,
        "moved": 3.0,
        "resumed_streams": 1.0,
    }
    (group,) = group_runs([run_maker(sessions=1, counters=counted)])
    found = measure(group)
    assert found["same_instance"] == 65 / 96
    assert found["model_resident"] == 87 / 120
    assert found["unused_leases"] == 0.5
    assert (found["opens"], found["avoidable_opens"]) == (33, 2)
    assert (found["moved"], found["resumed_streams"]) == (3, 1)
    assert counters(group) == dict(sorted(counted.items()))


def test_returns_are_counted_from_instances_where_no_counter_tells(
    run_maker: Callable[..., Run],
) -> None:
    run = run_maker(sessions=2)
    moved = [
        msgspec.structs.replace(call, instance="cold-1" if call.index == 2 else "cold-0")
        for call in run.calls
    ]
    (group,) = group_runs([msgspec.structs.replace(run, calls=tuple(reversed(moved)))] * 2)
    returns = len(run.calls) - 2
    assert measure(group)["same_instance"] == (returns - 4) / returns


def test_only_what_there_is_data_for(run_maker: Callable[..., Run]) -> None:
    run = run_maker(sessions=1, counters={"cancelled": 0.0})
    bare = [
        msgspec.structs.replace(call, instance="", tpot=None, returning=False) for call in run.calls
    ]
    (group,) = group_runs([Run("folder", run.info, tuple(bare))])
    assert set(measure(group)) == {
        *("sct_p50", "sct_p95", "ttft_p50", "ttft_p95", "cached_share", "seconds")
    }
    assert set(measure(group)) <= set(NAMES)
