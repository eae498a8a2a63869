"""The live dispatcher and the simulator are one gateway: the same messages at the same times."""

from __future__ import annotations

import pytest

from alipes.instance import loop
from alipes.replay.pacing import PacingSettings

from .small import NAMES, crowd
from .two_drivers import LiveStack, Log, World, simulate


def live(world: World) -> Log:
    with pytest.MonkeyPatch.context() as patch:
        # Neither is asked for by the gateway.
        patch.setattr(loop, "IDLE_SNAPSHOT_SECONDS", 1e6)
        return LiveStack(world).run()


def check_same(world: World) -> Log:
    expected, found = live(world), simulate(world)
    one, other = found.comparable(), expected.comparable()
    assert one.keys() == other.keys()
    for way in one:
        for mine, theirs in zip(one[way], other[way], strict=True):
            assert mine == theirs, way
    assert found.ends == expected.ends
    return found


def test_small() -> None:
    sessions = crowd(3, 3, NAMES[:2], 5.0).sessions
    world = World(sessions, PacingSettings(rate=2.0, seed=3), {"i0": NAMES[:2], "i1": NAMES[:2]})
    check_same(world)


def test_bigger() -> None:
    sessions = crowd(7, 40, NAMES[:3], 5.0).sessions
    print(sum(s.calls for s in sessions))
    world = World(sessions, PacingSettings(rate=0.5, seed=3), {"i0": NAMES[:3], "i1": NAMES[:2], "i2": NAMES[:1]})
    check_same(world)
