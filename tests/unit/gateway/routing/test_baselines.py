"""The policies that the router is compared with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from alipes.gateway.routing.decision import Reason, RouterSettings, Wait
from alipes.instance.contract import Load

Stage = Callable[..., Any]


def test_least_pressure_counts_calls_alone(stage: Stage) -> None:
    here = stage(RouterSettings(policy="least-pressure"))
    here.show("x", "b")
    here.show("y", "a", {"a": Load(3, 4000, 0, 0, 0)})
    assert [here.place(here.call("a")).instance for _ in range(3)] == ["x", "y", "x"]


def test_least_pressure_passes_over_instances_without_room(stage: Stage) -> None:
    here = stage(RouterSettings(policy="least-pressure"))
    here.show("x", "a", {"a": Load(64, 64, 1, 1, 1)})
    assert here.place(here.call("a")).instance == "y"


def test_a_sticky_branch_stays_however_long_the_queue(stage: Stage) -> None:
    here = stage(RouterSettings(policy="session-sticky"))
    first, second = (here.place(here.call(branch=b"s")) for _ in range(2))
    assert (first.instance, second.instance) == ("x", "x")
    assert here.place(here.call(branch=b"t")).instance == "y"
    here.show("x", "b", {"b": Load(9, 40_000, 1, 10, 10)})
    assert here.place(here.call(branch=b"s")).instance == "x"


def test_a_sticky_branch_waits_for_its_full_instance_and_leaves_a_dead_one(stage: Stage) -> None:
    here = stage(RouterSettings(policy="session-sticky"))
    here.place(here.call(branch=b"s"))
    here.show("x", "a", {"a": Load(64, 64, 1, 1, 1)})
    waits = here.router.place(here.call(branch=b"s"), 0)
    assert isinstance(waits, Wait)
    here.router.disconnected("x", 0)
    [placement] = here.router.retry(0)
    assert placement.instance == "y"
    here.connect("x")
    here.show("x", "a")
    assert here.place(here.call(branch=b"s")).instance == "y"


def test_a_forgotten_branch_is_pinned_anew(stage: Stage) -> None:
    here = stage(RouterSettings(policy="session-sticky"))
    here.place(here.call(branch=b"s"))
    here.router.forget(b"s")
    assert here.place(here.call(branch=b"s")).instance == "y"


def test_calls_without_branch_are_not_pinned(stage: Stage) -> None:
    here = stage(RouterSettings(policy="session-sticky"))
    assert [here.place(here.call()).instance for _ in range(2)] == ["x", "y"]


def test_a_lease_wins_under_every_policy(stage: Stage, keys: Callable[..., Any]) -> None:
    here = stage(RouterSettings(policy="least-pressure"))
    first = here.call(branch=b"s", prompt=200)
    here.place(first)
    here.stored("x", keys(1, 3))
    here.finish(first, keys(1, 3)[-1], 3)
    assert here.place(here.call()).instance == "x"
    again = here.call(branch=b"s", prompt=300, known=192, keys=keys(1, 4))
    placement = here.place(again)
    assert (placement.instance, placement.reason) == ("x", Reason.LEASE)


KEYS = [bytes([number]) * 16 for number in range(10)]


@pytest.mark.parametrize(("cached", "expected"), [(4, "y"), (3, "x")])
def test_cache_aware_goes_where_enough_of_the_prompt_is_cached(
    stage: Stage, cached: int, expected: str
) -> None:
    here = stage(RouterSettings(policy="cache-aware"))
    here.stored("y", KEYS[:cached])
    assert here.place(here.call(prompt=10 * 64, keys=KEYS)).instance == expected
