"""What is measured before the first call, on a clock that only the engine's work moves."""

from __future__ import annotations

import pytest

from alipes.instance.calibration import calibrate
from alipes.instance.contract import (
    Estimate,
    FakeCosts,
    InstanceSettings,
    ModelSettings,
    Pool,
    Targets,
)
from alipes.instance.engine.fake import engine as fake
from alipes.instance.scheduler.rounds import RoundScheduler

COSTS = FakeCosts(prefill_token=0.001, step=0.01, switch=0.5, restore_token=0.0001)


def learned(monkeypatch: pytest.MonkeyPatch, **changes: int) -> dict[str, Estimate]:
    now = 0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += round(seconds * 1e9)

    monkeypatch.setattr(fake.time, "sleep", sleep)
    models = tuple(ModelSettings(name, "/nowhere") for name in ("a", "b"))
    settings = InstanceSettings("i", Pool.COLD, models, Targets(), "", fake=COSTS, **changes)
    engine = fake.FakeEngine(settings)
    scheduler = RoundScheduler(settings, engine.reports, engine.host)
    for trial in calibrate(engine, settings, lambda: now):
        scheduler.learn(trial)
    assert engine.drain() == ()
    return scheduler.snapshot(now).estimates


def test_every_model_has_measured_costs_before_its_first_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    estimates = learned(monkeypatch)
    assert set(estimates) == {"a", "b"}
    for cost in estimates.values():
        assert cost.samples > 0
        # One measurement still leaves the prior, a far faster copy, some weight.
        assert cost.switch == pytest.approx(0.5, rel=0.03)
        prompt = cost.prefill_base + 512 * cost.prefill_token + 512 * 512 * cost.prefill_context
        assert prompt == pytest.approx(0.01 + 0.512, rel=0.1)
        step = cost.decode_base + cost.decode_call + 513 * cost.decode_context
        assert step == pytest.approx(0.01, rel=0.1)
        restore = cost.restore_base + 512 * cost.restore_token
        # And so do two.
        assert restore == pytest.approx(0.0512, rel=0.3)


def test_a_host_without_room_for_a_block_leaves_the_prior(monkeypatch: pytest.MonkeyPatch) -> None:
    assert learned(monkeypatch, host_bytes=1)["a"].restore_token > 0


def test_a_model_with_one_block_is_measured_with_what_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cost = learned(monkeypatch, device_bytes=64 * fake.TOKEN_BYTES)["a"]
    assert cost.switch == pytest.approx(0.5, rel=0.03)
