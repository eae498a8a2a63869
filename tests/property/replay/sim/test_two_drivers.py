"""The live dispatcher and the simulator are one gateway: the same messages at the same times,
whatever befalls instances."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from alipes.instance import loop
from alipes.instance.contract import Submit
from alipes.replay.pacing import PacingSettings
from alipes.replay.sim.node import Fault, FaultKind

from .small import NAMES, crowd
from .two_drivers import LiveStack, Log, World, simulate

SECOND = 1_000_000_000
INSTANCES = {"i0": NAMES[:3], "i1": NAMES[:2], "i2": NAMES[:1]}
"""The first two are cold, the last is hot."""


def live(world: World) -> Log:
    with pytest.MonkeyPatch.context() as patch:
        # Neither is asked for by the gateway.
        patch.setattr(loop, "IDLE_SNAPSHOT_SECONDS", 1e6)
        return LiveStack(world).run()


def check_same(world: World) -> Log:
    expected, found = live(world), simulate(world)
    assert found.ends == expected.ends
    one, other = found.comparable(), expected.comparable()
    assert one.keys() == other.keys()
    for way in one:
        for mine, theirs in zip(one[way], other[way], strict=True):
            assert mine == theirs, way
    return found


@st.composite
def faults(draw: st.DrawFn) -> dict[str, tuple[Fault, ...]]:
    """At odd instants and for odd times, so that nothing else happens just then."""
    found = {}
    for place, name in enumerate(INSTANCES, 1):
        drawn = draw(
            st.lists(
                st.tuples(
                    st.integers(1, 30),
                    st.sampled_from(FaultKind),
                    st.sampled_from([0.3, 2.0, 6.0, 12.0]),
                ),
                max_size=3,
            )
        )
        found[name] = tuple(
            Fault(at * SECOND + 100_003 * number + 1_009 * place, kind, round(lasts * SECOND) + 1)
            for number, (at, kind, lasts) in enumerate(drawn)
        )
    return found


def resumed(log: Log) -> Sequence[Submit]:
    return [m for _, _, m in log.lines if isinstance(m, Submit) and m.resumed]


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 10_000),
    rate=st.sampled_from([0.3, 3.0]),
    faults=faults(),
    blocks=st.sampled_from([28, 60]),
)
def test_both_drivers_say_the_same(
    seed: int, rate: float, faults: dict[str, tuple[Fault, ...]], blocks: int
) -> None:
    sessions = crowd(seed, 6, NAMES[:3], 5.0).sessions
    pacing = PacingSettings(rate=rate, seed=seed)
    log = check_same(World(sessions, pacing, INSTANCES, faults, blocks))
    assert not any(log.ends.values())


def test_a_thousand_calls_of_many_kinds_with_faults() -> None:
    """Agents and sub-agents on three models; every instance is killed and hangs, some for longer
    than its link lasts. No call fails, and streams that were cut go on."""
    sessions = crowd(11, 115, NAMES[:3], 5.0).sessions
    calls = sum(session.calls for session in sessions)
    assert calls >= 1000
    befalls = {
        name: tuple(
            Fault(
                (7 + 23 * number + 5 * place) * SECOND + 1_009 * number + 101 * place + 17,
                FaultKind.HANG if (number + place) % 2 else FaultKind.KILL,
                ((1 + 2 * number) % 8) * SECOND + 1,
            )
            for number in range(6)
        )
        for place, name in enumerate(INSTANCES)
    }
    log = check_same(World(sessions, PacingSettings(rate=0.9, seed=4), INSTANCES, befalls))
    assert len(log.ends) == calls
    assert not any(log.ends.values())
    assert len(resumed(log)) >= 5
