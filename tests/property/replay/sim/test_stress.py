"""Clusters under stress: every session ends, and everything adds up.

The simulator itself raises for a stall, a call that is nowhere or for which nobody waits, memory
that does not add up, a call whose parts are negative or not its latency, and a nanosecond of an
instance that went nowhere; here it looks after every event.
"""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings

from alipes.replay.records import CallRecord
from alipes.replay.sim.bounds import bounds
from alipes.replay.sim.cluster import Cluster
from alipes.replay.sim.costs import engine_costs

from .small import Case, cases


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(case=cases())
def test_whatever_happens_every_session_ends(case: Case) -> None:
    cluster = case.cluster()
    cluster.run(checked=True)
    records = {(r.session, r.branch, r.index): r for r in cluster.records}
    assert not [r.error for r in cluster.records if r.error]
    assert len(records) == len(cluster.records) == sum(s.calls for s in case.sessions)
    check_order(case, records)
    check_tokens(case, cluster)
    check_bounds(case, cluster)


def check_order(case: Case, records: dict[tuple[str, str, int], CallRecord]) -> None:
    """Every call was due its gap after what it waited for, and no earlier."""
    for session in case.sessions:
        lasts = {
            b.name: records[session.id, b.name, len(b.calls) - 1].finished for b in session.branches
        }
        for branch in session.branches:
            for index, call in enumerate(branch.calls):
                record = records[session.id, branch.name, index]
                waited = [lasts[name] for name in call.joins]
                if index:
                    waited.append(records[session.id, branch.name, index - 1].finished)
                elif branch.parent:
                    waited.append(records[session.id, branch.parent, branch.spawned_by].finished)
                else:
                    continue
                gap = call.gap if case.load.gap_cap is None else min(call.gap, case.load.gap_cap)
                assert record.intended == pytest.approx(max(waited) + gap, abs=1e-8)
                assert record.intended <= record.sent < record.finished


def check_tokens(case: Case, cluster: Cluster) -> None:
    """What was drawn is what was asked for; all that was not cached was computed."""
    counters = cluster.counters()
    drawn = sum(call.output for s in case.sessions for b in s.branches for call in b.calls)
    assert counters["decode_tokens"] == drawn
    assert counters["finished"] == len(cluster.records)
    new = sum((r.prompt_tokens or 0) - (r.cached_tokens or 0) for r in cluster.records)
    assert counters["prefill_tokens"] >= new
    if counters["preempted"] == 0:
        assert counters["prefill_tokens"] == new
    assert counters["restored_tokens"] == sum(r.restored_tokens or 0 for r in cluster.records)
    assert Counter(r.instance for r in cluster.records).total() == counters["placed"]


def check_bounds(case: Case, cluster: Cluster) -> None:
    hardware = case.fleet.hardware
    costs = {name: engine_costs(hardware, name) for name in hardware.models}
    least = bounds(
        case.sessions,
        costs,
        len(cluster.nodes),
        hardware.prefill_chunk,
        hardware.max_running,
        case.load.gap_cap,
        together=False,
    )
    for session in case.sessions:
        mine = [r for r in cluster.records if r.session == session.id]
        took = max(r.finished for r in mine) - min(r.intended for r in mine)
        assert took >= least.alone[session.id] - 1e-9
