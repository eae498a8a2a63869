"""When a set of models has no round."""

from __future__ import annotations

import pytest

from alipes.planner.cold_set import DecodeStep, decode_step, infeasible


def test_the_file_overrides_the_estimate() -> None:
    assert decode_step("m", 5_000_000, 0.2, 1e9).seconds == 0.2
    assert decode_step("m", 5_000_000, None, 1e9).seconds == pytest.approx(0.005)


def test_steps_must_leave_room_under_the_cadence() -> None:
    steps = {name: DecodeStep(name, 0.2, "measured") for name in "ab"}
    assert infeasible("cold-0", steps, 0.41) == ""
    reason = infeasible("cold-0", steps, 0.4)
    assert "instances.cold-0" in reason
    assert "a 0.200 s (measured), b 0.200 s (measured)" in reason
    assert "targets.tpot of 0.4 s" in reason
