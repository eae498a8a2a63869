from __future__ import annotations

from typing import Any

from alipes.gateway.calls.events import Moved
from alipes.gateway.routing.decision import LateModel, Placement, Reason, RouterStatus, Why
from alipes.gateway.telemetry.metrics import Metrics
from alipes.gateway.telemetry.observer import LinkLost, StateTold
from alipes.instance.contract import Counters, Estimate, Occupancy, Snapshot, Staging

CALL: Any = None
"""Metrics count what happens to calls, whichever they are."""


def test_instances_and_models_that_are_not_configured_share_a_label() -> None:
    metrics = Metrics(["m"], ["one"])
    for number in range(50):
        metrics.of_call(CALL, Placement(b"", f"rogue-{number}", Reason.ONLY, ()), 0)
        metrics.of_fleet(LinkLost(f"rogue-{number}"), 0)
    text = metrics.render().decode()
    assert "rogue" not in text
    assert 'alipes_placements_total{instance="other",reason="only"} 50.0' in text


def test_calls_that_move_are_counted_and_so_are_streams_among_them() -> None:
    metrics = Metrics(["m"], ["one"])
    for drawn in (0, 0, 7):
        metrics.of_call(CALL, Moved("one", drawn), 0)
    text = metrics.render().decode()
    assert 'alipes_replacements_total{instance="one"} 3.0' in text
    assert 'alipes_resumed_streams_total{instance="one"} 1.0' in text


def test_late_models_are_told_as_long_as_they_are_late() -> None:
    metrics = Metrics(["m"], ["one"])
    late = LateModel("m", 3, 9.5, {"one": Why.FULL, "rogue": Why.DOWN})
    status = RouterStatus(False, {"m": True}, {"m": 3}, (), late=(late,))
    metrics.routing(status, 1, 1)
    lines = metrics.render().decode().splitlines()
    assert 'alipes_late_seconds{instance="one",model="m",why="full"} 9.5' in lines
    assert 'alipes_late_seconds{instance="other",model="m",why="down"} 9.5' in lines
    metrics.routing(RouterStatus(True, {"m": True}, {}, ()), 1, 1)
    assert "alipes_late_seconds{" not in metrics.render().decode()


def test_what_switches_took_and_would_take_is_told_by_model_and_path() -> None:
    metrics = Metrics(("a", "b"), ("one",))
    counters = Counters(switch_paths={"remap": 3}, switch_bytes={"h2d": 5, "remap": 70})
    estimate = Estimate(0, 0, 0, 0, 0, 0, switch=0.25, restore_base=0, restore_token=0, samples=1)
    told = StateTold(
        "one",
        Snapshot(
            version=1,
            active_model="a",
            phase="D",
            round_remaining=0.0,
            round_length=0.0,
            draining=False,
            loads={},
            estimates={"a": estimate, "b": estimate},
            occupancy=Occupancy(0, 0, 0, 0, 0, 0),
            counters=counters,
            staging=Staging("b", {"b": 70}, slack=9),
        ),
    )
    metrics.of_fleet(told, 0)
    text = metrics.render().decode()
    for line in (
        'alipes_instance_switches_by_path{instance="one",path="remap"} 3.0',
        'alipes_instance_switches_by_path{instance="one",path="h2d"} 0.0',
        'alipes_instance_switch_bytes{instance="one",path="remap"} 70.0',
        'alipes_instance_staged_bytes{instance="one",model="b"} 70.0',
        'alipes_instance_staged_bytes{instance="one",model="a"} 0.0',
        'alipes_instance_staging_slack_bytes{instance="one"} 9.0',
        'alipes_instance_activation_seconds{instance="one",model="b"} 0.25',
    ):
        assert line in text.splitlines()
