"""The numbers that a group of runs has, by name; a paper's numbers are given by the same names.

Seconds and shares of 1. What was counted (rounds, switches, opens, parked calls, ...) is the mean
of the group's runs, so that seeds do not add up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final

from alipes.replay.records import CallRecord
from alipes.replay.reports.form import Kind
from alipes.replay.reports.groups import Group
from alipes.replay.runs import RoundRecord, Run, SwitchRecord
from alipes.replay.stats import nearest_rank

GIB: Final = 1 << 30
PATHS: Final = ("d2d", "remap", "partial", "h2d")

NAMES: Final[Mapping[str, tuple[str, Kind]]] = {
    "sct_p50": ("SCT p50", "seconds"),
    "sct_p95": ("SCT p95", "seconds"),
    "ttft_p50": ("TTFT p50", "seconds"),
    "ttft_p95": ("TTFT p95", "seconds"),
    "returning_ttft_p50": ("TTFT of returning calls, p50", "seconds"),
    "returning_ttft_p95": ("TTFT of returning calls, p95", "seconds"),
    "tpot_p50": ("TPOT p50", "seconds"),
    "tpot_p95": ("TPOT p95", "seconds"),
    "cached_share": ("prompt tokens cached", "share"),
    "restored_share": ("prompt tokens restored from the host", "share"),
    "seconds": ("whole run", "seconds"),
    "rounds": ("rounds", "count"),
    "round_seconds": ("rounds, summed", "seconds"),
    "switch_seconds": ("switching in rounds, summed", "seconds"),
    "active_seconds": ("active in rounds, summed", "seconds"),
    "switch_share": ("share of round time spent switching", "share"),
    "switches": ("model switches", "count"),
    "switch_p50": ("switch p50", "seconds"),
    "switch_p95": ("switch p95", "seconds"),
    "switch_mean": ("switch, mean", "seconds"),
    "switch_d2d_share": ("switches on the device alone", "share"),
    "switch_remap_share": ("switches by remapping", "share"),
    "switch_partial_share": ("switches partly from the host", "share"),
    "switch_h2d_share": ("switches wholly from the host", "share"),
    "switch_d2d_p50": ("switch on the device alone, p50", "seconds"),
    "switch_remap_p50": ("switch by remapping, p50", "seconds"),
    "switch_partial_p50": ("switch partly from the host, p50", "seconds"),
    "switch_h2d_p50": ("switch wholly from the host, p50", "seconds"),
    "sp_admitted": ("returns let into the open slot", "count"),
    "sp_parked": ("returns parked", "count"),
    "sp_share": ("returns let in, of those handled", "share"),
    "hbm_peak": ("device memory at most, GiB", "number"),
    "opens": ("model opens", "count"),
    "avoidable_opens": ("avoidable opens", "count"),
    "same_instance": ("returns to the same instance", "share"),
    "model_resident": ("placements where the model was resident", "share"),
    "unused_leases": ("leases not used", "share"),
    "moved": ("calls that left an instance unfinished", "count"),
    "resumed_streams": ("those of them that had drawn tokens", "count"),
}


def measure(group: Group) -> dict[str, float]:
    """Every number of ``NAMES`` for which the group has data."""
    found: dict[str, float | None] = {
        **_latency(group),
        **_rounds(group),
        **_switches(group),
        **_memory(group),
        **_placement(group),
    }
    return {name: value for name in NAMES if (value := found.get(name)) is not None}


def _latency(group: Group) -> dict[str, float | None]:
    sct = [session.sct for session in group.whole if session.sct is not None]
    ttft = [call.ttft for call in group.calls if call.ttft is not None]
    tpot = [call.tpot for call in group.calls if call.tpot is not None]
    back = returning_ttft(group.calls)
    return {
        **_ranks("sct", sct),
        **_ranks("ttft", ttft),
        **_ranks("returning_ttft", back),
        **_ranks("tpot", tpot),
        "cached_share": cached_share(group.calls),
        "restored_share": _restored_share(group.calls),
        "seconds": _mean([run.info.seconds for run in group.runs if run.info.seconds]),
    }


def returning_ttft(calls: Iterable[CallRecord]) -> list[float]:
    return [call.ttft for call in calls if call.returning and call.ttft is not None]


def cached_share(calls: Iterable[CallRecord]) -> float | None:
    """Of the prompt tokens of calls that tell what was cached."""
    told = [
        (call.cached_tokens, call.prompt_tokens)
        for call in calls
        if call.cached_tokens is not None and call.prompt_tokens is not None
    ]
    return _share(sum(cached for cached, _ in told), sum(prompt for _, prompt in told))


def _restored_share(calls: Iterable[CallRecord]) -> float | None:
    told = [
        (call.restored_tokens, call.prompt_tokens)
        for call in calls
        if call.restored_tokens is not None and call.prompt_tokens is not None
    ]
    return _share(sum(restored for restored, _ in told), sum(prompt for _, prompt in told))


def _rounds(group: Group) -> dict[str, float | None]:
    rounds = [one for run in group.runs for one in run.rounds]
    runs = sum(bool(run.rounds) for run in group.runs)
    if not runs:
        return {}
    whole, switching = _total(rounds, "seconds"), _total(rounds, "switch")
    admitted = sum(one.sp_admitted for one in rounds)
    parked = sum(one.sp_parked for one in rounds)
    return {
        "rounds": len(rounds) / runs,
        "round_seconds": whole / runs,
        "switch_seconds": switching / runs,
        "active_seconds": sum(one.active for one in rounds) / runs,
        "switch_share": _share(switching, whole),
        "sp_admitted": admitted / runs,
        "sp_parked": parked / runs,
        "sp_share": _share(admitted, admitted + parked),
    }


def _total(rounds: Sequence[RoundRecord], part: str) -> float:
    return float(sum(getattr(one, part) for one in rounds))


def _switches(group: Group) -> dict[str, float | None]:
    switches = [one for run in group.runs for one in run.switches]
    runs = sum(bool(run.switches) for run in group.runs)
    if not runs:
        return {}
    seconds = [one.seconds for one in switches]
    found: dict[str, float | None] = {
        "switches": len(switches) / runs,
        **_ranks("switch", seconds),
        "switch_mean": _mean(seconds),
    }
    for path in PATHS:
        took = seconds_on(switches, path)
        found[f"switch_{path}_share"] = len(took) / len(switches)
        found[f"switch_{path}_p50"] = nearest_rank(took, 50)
    return found


def seconds_on(switches: Iterable[SwitchRecord], path: str) -> list[float]:
    return [one.seconds for one in switches if one.path == path]


def _memory(group: Group) -> dict[str, float | None]:
    used = [
        record.weights + record.kv + record.staged + record.runtime
        for run in group.runs
        for record in run.memory
    ]
    return {"hbm_peak": max(used) / GIB if used else None}


def _placement(group: Group) -> dict[str, float | None]:
    """What the router counted; where it did not count returns, the calls' instances tell."""
    total = counters(group)
    placed, opens = total.get("placed", 0), total.get("opens")
    returns = total.get("returns", 0)
    lost = total.get("leases_expired", 0) + total.get("leases_discarded", 0)
    same = _share(total.get("same_instance", 0), returns)
    return {
        "opens": opens,
        "avoidable_opens": total.get("avoidable_opens"),
        "same_instance": _same_instance(group.runs) if same is None else same,
        "model_resident": None if opens is None else _share(placed - opens, placed),
        "unused_leases": _share(lost, total.get("leases_installed", 0)),
        "moved": total.get("moved"),
        "resumed_streams": total.get("resumed_streams"),
    }


def counters(group: Group) -> dict[str, float]:
    """Counters, the mean of the runs that have them."""
    found: dict[str, list[float]] = {}
    for run in group.runs:
        for name, value in run.info.counters.items():
            found.setdefault(name, []).append(value)
    return {name: sum(values) / len(values) for name, values in sorted(found.items())}


def _same_instance(runs: Iterable[Run]) -> float | None:
    branches: dict[tuple[int, str, str], list[CallRecord]] = {}
    for number, run in enumerate(runs):
        for call in run.counted:
            if call.instance and not call.error:
                branches.setdefault((number, call.session, call.branch), []).append(call)
    same = returns = 0
    for records in branches.values():
        records.sort(key=lambda call: call.index)
        returns += len(records) - 1
        same += sum(a.instance == b.instance for a, b in pairwise(records))
    return _share(same, returns)


def _ranks(name: str, values: Sequence[float]) -> dict[str, float | None]:
    return {f"{name}_p{percent}": nearest_rank(values, percent) for percent in (50, 95)}


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
