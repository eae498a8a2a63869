from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np
import pytest

from alipes.instance.contract import ModelReport
from alipes.instance.scheduler.profile import CostProfile
from alipes.replay.sim.costs import EngineCosts, engine_costs
from alipes.replay.sim.hardware import Hardware, HardwareError, load_hardware, profiles

PROFILES = {name: load_hardware(name) for name in profiles()}
CASES = [(name, model) for name, each in PROFILES.items() for model in sorted(each.models)]


@pytest.fixture(scope="module")
def hardware() -> Hardware:
    return PROFILES["b200-tp8"]


@pytest.fixture(scope="module")
def costs(hardware: Hardware) -> EngineCosts:
    return engine_costs(hardware, "qwen3-235b")


@pytest.mark.parametrize(("name", "model"), CASES)
def test_decode_is_the_sum_of_its_iterations(name: str, model: str) -> None:
    hardware = PROFILES[name]
    costs, given = engine_costs(hardware, model), hardware.models[model]
    for calls, context, steps in ((1, 1, 1), (3, 7_000, 41), (16, 1_000_000, 500)):
        seconds = 0.0
        for step in range(steps):
            seconds += given.decode_base.value + calls * given.decode_call.value
            seconds += (context + step * calls) * given.decode_context.value
        assert costs.decode(calls, context, steps) == pytest.approx(seconds * 1e9, abs=1)


@pytest.mark.parametrize(("name", "model"), CASES)
def test_a_run_takes_as_long_as_its_parts(name: str, model: str) -> None:
    costs = engine_costs(PROFILES[name], model)
    whole = costs.decode(5, 12_345, 300)
    first = costs.decode(5, 12_345, 117)
    rest = costs.decode(5, 12_345 + 5 * 117, 183)
    assert abs(whole - first - rest) <= 1
    times = [costs.decode(5, 12_345, steps) for steps in range(50)]
    assert times == sorted(set(times))
    assert times[0] == 0


def test_prefill_sums_the_terms_of_its_rows(hardware: Hardware, costs: EngineCosts) -> None:
    given = hardware.models["qwen3-235b"]
    rows = [(512, 0), (100, 40_000), (1, 99_999)]
    seconds = given.prefill_base.value
    for new, start in rows:
        seconds += new * given.prefill_token.value
        seconds += new * (start + new) * given.prefill_context.value
    assert costs.prefill(rows) == pytest.approx(seconds * 1e9, abs=1)
    assert costs.prefill(rows) == costs.prefill(rows[::-1])


def measured(costs: EngineCosts) -> Iterator[tuple[str, tuple[float, float, float], float]]:
    """Kind, features of the form of ``Estimate`` and seconds of random work."""
    draw = np.random.default_rng(1)
    for _ in range(1_000):
        new, start = int(draw.integers(1, 8_192)), int(draw.integers(0, 100_000))
        seconds = costs.prefill([(new, start)]) / 1e9
        yield "prefill", (1.0, new, new * (start + new)), seconds
        calls, context, steps = (int(draw.integers(1, n)) for n in (32, 1_000_000, 50))
        mean = context + calls * (steps - 1) / 2
        seconds = costs.decode(calls, context, steps) / 1e9 / steps
        yield "decode", (1.0, calls, mean), seconds
        yield "restore", (1.0, new, 0.0), costs.restore(new) / 1e9


@pytest.mark.parametrize(("name", "model"), CASES)
def test_the_forms_are_those_of_estimates(name: str, model: str) -> None:
    costs = engine_costs(PROFILES[name], model)
    given = msgspec.structs.asdict(costs.estimate())
    for kind in ("prefill", "decode", "restore"):
        work = [(x, seconds) for what, x, seconds in measured(costs) if what == kind]
        features, seconds = np.array([x for x, _ in work]), np.array([s for _, s in work])
        scale = features.max(axis=0).clip(1)
        fitted = np.linalg.lstsq(features / scale, seconds)[0] / scale
        wanted = [value for field, value in given.items() if field.startswith(kind)]
        assert fitted[: len(wanted)] == pytest.approx(wanted, rel=1e-4)


@pytest.mark.parametrize(("name", "model"), CASES)
def test_what_a_scheduler_learns_predicts_the_costs(name: str, model: str) -> None:
    hardware = PROFILES[name]
    costs = engine_costs(hardware, model)
    report = ModelReport(
        name=model,
        kv_format="f",
        context=hardware.models[model].context,
        vocab_size=1,
        weight_bytes=costs.weight_bytes,
        block_bytes=costs.block_bytes,
        kv_blocks=costs.kv_blocks,
    )
    profile = CostProfile.prior(report, "cuda", hardware.block_tokens)
    fits = {"prefill": profile.prefill, "decode": profile.decode, "restore": profile.restore}
    for kind, features, seconds in measured(costs):
        fits[kind].observe(features[:2] if kind == "restore" else features, seconds)
    expected = costs.prefill([(1_000, 50_000)]) / 1e9
    assert profile.prefill_seconds(1, 1_000, 1_000 * 51_000) == pytest.approx(expected, rel=0.01)
    expected = costs.decode(8, 400_000) / 1e9
    assert profile.decode_seconds(8, 400_000) == pytest.approx(expected, rel=0.01)
    assert profile.restore_seconds(1, 5_000) == pytest.approx(costs.restore(5_000) / 1e9, rel=0.01)


def test_copies_take_their_bytes(hardware: Hardware) -> None:
    glm, rates = engine_costs(hardware, "glm5-nvfp4"), hardware.rates
    assert glm.host_block_bytes * 8 == glm.block_bytes
    bytes_on_host = 1000 * glm.host_block_bytes / 64
    assert glm.restore(1000) == round(5e6 + bytes_on_host / rates.h2d.value * 1e9)
    assert glm.checkpoint(1000) == round(bytes_on_host / rates.d2h.value * 1e9)
    assert glm.fetch(1000) == round(3e6 + bytes_on_host / rates.rdma.value * 1e9)
    assert glm.switch(0, 0) == 35_000_000
    assert glm.switch(3 * 10**11, 625 * 10**10) == 2_035_000_000


def test_blocks_fill_what_weights_and_runtime_leave(hardware: Hardware, costs: EngineCosts) -> None:
    left = hardware.device_bytes.value - hardware.runtime_bytes.value - costs.weight_bytes
    assert 0 <= left - costs.kv_blocks * costs.block_bytes < costs.block_bytes
    assert costs.block_bytes == 64 * 385_024


def test_a_model_that_the_profile_does_not_have(hardware: Hardware) -> None:
    with pytest.raises(HardwareError, match="b200-tp8 has no model gpt; known: glm5-nvfp4, "):
        engine_costs(hardware, "gpt")
