"""What a call pushes out of an instance, tier by tier, and what that adds to its cost."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alipes.gateway.routing.decision import RouterSettings
from alipes.gateway.routing.eviction import Eviction, eviction
from alipes.gateway.routing.instances import InstanceState
from alipes.gateway.routing.overlay import Charge
from alipes.instance.contract import (
    Counters,
    Estimate,
    Hello,
    Load,
    ModelReport,
    Occupancy,
    Pool,
    Snapshot,
    Targets,
)

BLOCK, TOKEN_BYTES = 64, 10
"""A block of ``a`` has 640 bytes; ``b`` takes twice as much."""
CALL = Charge("a", 900, 100)


def evicts(
    charge: Charge = CALL,
    pool: Pool = Pool.HOT,
    active: str = "a",
    loads: dict[str, Load] | None = None,
    device: tuple[int, int] = (0, 50),
    host: tuple[int, int, int] = (100, 100, 0),
) -> Eviction:
    """``device`` is free and cached, ``host`` used, total and held, all in blocks of ``a``."""
    reports = tuple(
        ModelReport(name, "kv", 32768, 1, 1, size * BLOCK, 200)
        for name, size in (("a", TOKEN_BYTES), ("b", 2 * TOKEN_BYTES))
    )
    hello = Hello(1, "i", "i", pool, "fake", "cpu", BLOCK, 4, 64, 512, Targets(), reports, 1)
    free, cached = device
    size = BLOCK * TOKEN_BYTES
    used, total, held = (blocks * size for blocks in host)
    occupancy = Occupancy(200, free, cached, 200 - free - cached, used, total, held)
    state = Snapshot(1, active, "P", 0.0, 0.0, False, {}, {}, occupancy, Counters())
    instance = InstanceState("i")
    instance.connected(hello, 0)
    instance.updated(state, 0)
    return eviction(instance, charge, loads or {})


def test_nothing_goes_while_there_is_room_in_both_tiers() -> None:
    assert evicts(device=(20, 30), host=(30, 100, 0)) == Eviction(0, 0, 20 * BLOCK + 70 * BLOCK)


def test_what_the_host_keeps_is_only_moved() -> None:
    """Ten free blocks are 640 tokens; 360 more leave the device."""
    assert evicts(device=(10, 30), host=(30, 100, 0)) == Eviction(0, 360, 80 * BLOCK)


def test_what_falls_out_of_the_larger_tier_is_lost() -> None:
    full_host = evicts(device=(0, 50), host=(98, 100, 0))
    assert full_host == Eviction(1000 - 2 * BLOCK, 1000, 2 * BLOCK)
    assert evicts(device=(5, 50), host=(20, 20, 0)) == Eviction(1000 - 5 * BLOCK, 0, 5 * BLOCK)
    assert evicts(device=(0, 50), host=(0, 0, 0)) == Eviction(1000, 0, 0)


def test_no_more_goes_than_is_idle() -> None:
    assert evicts(device=(0, 3), host=(100, 100, 96)) == Eviction(4 * BLOCK, 3 * BLOCK, 0)


def test_what_is_there_of_the_prompt_takes_no_new_room_and_does_not_go() -> None:
    near = Charge("a", 900, 100, device_tokens=640, host_tokens=128)
    # The host has all 768 tokens; on the device 128 are to be copied.
    assert evicts(near, device=(0, 50), host=(100, 100, 0)) == Eviction(232, 360, 0)
    own = evicts(Charge("a", 900, 400, device_tokens=640), device=(0, 12), host=(12, 12, 0))
    assert own == Eviction(2 * BLOCK, 0, 0), "the other ten blocks are its own"


def test_what_is_to_come_has_the_room_first() -> None:
    coming = {"a": Load(2, 300, 1, 5000, 200)}
    assert evicts(loads=coming, device=(10, 30), host=(30, 100, 0)).moved == 1000 - 140
    # Beyond what is free it has taken idle KV.
    more = {"a": Load(1, 2000, 0, 0, 0)}
    assert evicts(loads=more, device=(10, 30), host=(30, 40, 0)).lost == 30 * BLOCK - 1360
    others = {"b": Load(1, 320, 0, 0, 0)}
    assert evicts(loads=others, host=(90, 100, 0)).lost == 1000


def test_a_cold_instance_keeps_what_the_host_does() -> None:
    for active in ("a", "b", ""):
        cold = evicts(pool=Pool.COLD, active=active, device=(0, 50), host=(90, 100, 0))
        assert cold == Eviction(360, 0, 640)


def test_the_host_is_shared_by_models_of_any_size() -> None:
    wide = Charge("b", 900, 100)
    assert evicts(wide, Pool.COLD, host=(90, 100, 0)) == Eviction(1000 - 320, 0, 320)


def test_seconds_are_those_of_computing_and_copying_for_who_comes_back() -> None:
    cost = Estimate(0.01, 0.001, 0.0, 0.02, 0.005, 0.0, 0.5, 0.002, 0.0001, 9)
    seconds = Eviction(1000, 500, 0).seconds(cost, 512, 0.25)
    assert seconds == pytest.approx(0.25 * (2 * 0.01 + 1.0 + 0.002 + 0.05))
    assert Eviction(0, 0, 9).seconds(cost, 512, 0.25) == 0


@given(
    before=st.integers(0, 60),
    after=st.integers(1, 20),
    device=st.integers(0, 40),
    host=st.integers(0, 40),
)
def test_against_two_tiers_that_keep_what_came_last(
    before: int, after: int, device: int, host: int
) -> None:
    """Blocks come one after the other; each tier holds the last ones that fit."""
    there, then = (
        [set(range(max(0, count - size), count)) for size in (device, host)]
        for count in (before, before + after)
    )
    found = evicts(
        Charge("a", after * BLOCK - 1, 1),
        device=(device - len(there[0]), len(there[0])),
        host=(len(there[1]), host, 0),
    )
    assert found.lost == len((there[0] | there[1]) - (then[0] | then[1])) * BLOCK
    if after <= host - device:
        assert found.moved == len((there[0] - then[0]) & then[1]) * BLOCK


# --- in the router -------------------------------------------------------------------------------


def full(stage: Any, settings: RouterSettings | None = None) -> Any:
    """Hot instances; ``x`` is full of idle KV that no host has, ``y`` half so."""
    here = stage(settings, serves={"x": "a", "y": "a"}, pool=Pool.HOT)
    here.show("x", "a", free=0, cached=100)
    here.show("y", "a", free=50, cached=50)
    return here


def test_a_call_goes_where_it_pushes_least_out(stage: Any) -> None:
    here = full(stage)
    placement = here.place(here.call(prompt=4000, output=200))
    assert placement.instance == "y"
    terms = {each.instance: each for each in placement.candidates}
    lost = {"x": 4200, "y": 4200 - 50 * BLOCK}
    for name, tokens in lost.items():
        chunks = -(-tokens // 512)
        assert terms[name].eviction == pytest.approx((chunks * 0.01 + tokens * 0.001) / 2)
        assert terms[name].total == pytest.approx(
            terms[name].queue + terms[name].prefill + terms[name].decode + terms[name].eviction
        )
    assert (terms["x"].room, terms["y"].room) == (0, 50 * BLOCK)


def test_of_equal_costs_the_roomier_goes_first(stage: Any) -> None:
    here = full(stage)
    here.show("x", "a", free=60, cached=40)
    here.show("y", "a", free=70, cached=30)
    assert here.place(here.call(prompt=100)).instance == "y"


def test_without_the_cost_the_name_decides(stage: Any) -> None:
    here = full(stage, RouterSettings(eviction_cost=False))
    placement = here.place(here.call(prompt=4000, output=200))
    assert placement.instance == "x"
    assert {(each.eviction, each.room) for each in placement.candidates} == {(0.0, 0)}


def test_the_share_of_calls_that_are_continued_is_measured(stage: Any) -> None:
    """Of those of which it is known by now."""
    here = full(stage)

    def share() -> float:
        terms = here.candidates(here.call(prompt=4000, output=512 - 4000 % 512))["x"]
        return float(terms.eviction / (8 * 0.01 + 4096 * 0.001))

    def turn(branch: bytes, final: bool = False) -> None:
        call = here.call(branch=branch, prompt=10, output=96, final=final)
        here.router.place(call, 0)
        here.finish(call)

    for number in range(4):
        turn(bytes([number]))
    assert share() == pytest.approx(1 / 2), "all may come back yet"
    for _ in range(2):
        turn(b"\0")
    assert share() == pytest.approx(3 / 4)
    here.router.forget(b"\1")
    here.router.forget(b"\1")
    assert share() == pytest.approx(3 / 5)
    turn(b"\2", final=True)
    assert share() == pytest.approx(4 / 7), "it has come back for the last time"
    turn(b"\1")
    assert share() == pytest.approx(4 / 7), "nothing is known of it"
