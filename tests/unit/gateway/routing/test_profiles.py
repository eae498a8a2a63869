"""Cost profiles over instances: shared within a kind, never across, switch times apart."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from alipes.gateway.routing.profiles import CostProfiles
from alipes.instance.contract import Estimate, Hello, Pool, Targets

PRIOR = Estimate(0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.0, 0.0, 0)
FAST = Estimate(1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 0.5, 0.0, 0.0, 30)
SLOW = Estimate(5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 0.9, 0.0, 0.0, 10)


def hello(name: str, device: str = "cpu") -> Hello:
    return Hello(1, name, name, Pool.COLD, "native", device, 64, 4, 64, 512, Targets(), (), 1)


@pytest.fixture
def profiles() -> CostProfiles:
    made = CostProfiles()
    for name in "ab":
        made.connected(hello(name))
    made.connected(hello("g", "cuda"))
    return made


def test_a_prior_gives_way_to_what_another_instance_measured(profiles: CostProfiles) -> None:
    profiles.observe("a", {"m": FAST})
    profiles.observe("b", {"m": PRIOR, "n": PRIOR})
    profiles.observe("g", {"m": PRIOR})
    assert profiles.of("b") == {"m": replace(FAST, switch=0.1), "n": PRIOR}
    assert profiles.of("g") == {"m": PRIOR}


def test_measurements_are_weighted_by_their_number(profiles: CostProfiles) -> None:
    profiles.observe("a", {"m": FAST})
    profiles.observe("b", {"m": SLOW})
    mean = Estimate(2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 0.5, 0.0, 0.0, 40)
    assert profiles.of("a") == {"m": mean}
    assert profiles.of("b") == {"m": replace(mean, switch=0.9)}


def test_an_instance_that_is_gone_counts_no_longer(profiles: CostProfiles) -> None:
    profiles.observe("a", {"m": FAST})
    profiles.observe("b", {"m": PRIOR})
    assert profiles.of("b")["m"].samples == 30
    profiles.forget("a")
    assert profiles.of("b") == {"m": PRIOR}
    assert profiles.of("a") == {}
    profiles.connected(hello("a"))
    assert profiles.of("a") == {}
