"""Twenty sessions, one after the other, on two equal hot instances that can hold them together."""

from __future__ import annotations

import pytest
from tests.property.replay.sim.small import BLOCK, hardware_of

from alipes.instance.contract import Pool
from alipes.replay.sim.build import Fleet, build
from alipes.replay.sim.cluster import Cluster
from alipes.replay.sim.scenario import InstanceSpec, Load, Setup
from alipes.replay.traces.form import MAIN, Branch, Call, Session, Span, stream_id

PROMPT, REPLY, NEW = 10 * BLOCK, BLOCK, 4
SESSIONS = 20
BLOCKS = 130
"""On the device, and on the host; twenty sessions leave 220."""


def session(number: int, shared: int) -> Session:
    """The second turn comes once all have had their first; so many tokens all have in common."""
    system = Span(stream_id("system"), 0, shared)
    first = Span(stream_id("first", number), 0, PROMPT - shared)
    second = Span(stream_id("second", number), 0, NEW)
    context = PROMPT + REPLY
    calls = (
        Call(PROMPT, REPLY, 0, (system, first) if shared else (first,), 0.0),
        Call(context + NEW, REPLY, context, (second,), 60.0),
    )
    return Session(f"s{number}", (Branch(MAIN, calls),), start=2.0 * number, model="small")


def play(eviction_cost: bool, host_kv: bool, shared: int = 0) -> Cluster:
    hardware = hardware_of(["small"], blocks=BLOCKS, host_blocks=BLOCKS)
    setup = Setup(eviction_cost=eviction_cost, host_kv=host_kv)
    fleet = Fleet(hardware, setup, [InstanceSpec(("small",), Pool.HOT, 2)])
    sessions = [session(number, shared) for number in range(SESSIONS)]
    cluster = build(fleet, sessions, Load(recorded=True, gap_cap=None), 1, 0)
    cluster.run()
    return cluster


def cached_share(cluster: Cluster) -> float:
    """Of the tokens that second turns had in common with the first."""
    back = [record for record in cluster.records if record.index == 1]
    assert len(back) == SESSIONS
    return sum(record.cached_tokens or 0 for record in back) / (SESSIONS * (PROMPT + REPLY - BLOCK))


@pytest.mark.parametrize("host_kv", [True, False], ids=["host", "device alone"])
def test_room_for_kv_is_used_wherever_it_is(host_kv: bool) -> None:
    with_cost, without = (play(eviction_cost, host_kv) for eviction_cost in (True, False))
    assert {record.instance for record in without.records} == {"i0"}
    assert cached_share(without) == 0
    assert {record.instance for record in with_cost.records} == {"i0", "i1"}
    assert cached_share(with_cost) >= 0.95


def test_a_common_beginning_does_not_draw_all_to_one_instance() -> None:
    """Going where three of ten blocks are saves less than what has to make room is worth."""
    shared = 3 * BLOCK
    with_cost, without = (play(eviction_cost, True, shared) for eviction_cost in (True, False))
    assert cached_share(without) == pytest.approx(0.3)
    assert cached_share(with_cost) >= 0.75
