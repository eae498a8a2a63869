"""From timings to a profile: sources, device bytes, what was never needed, the file."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from alipes.instance.contract import InstanceSettings, ModelReport, ModelSettings, Pool, Targets
from alipes.instance.engine.protocol import HostSlabs
from alipes.replay.sim.costs import engine_costs
from alipes.replay.sim.hardware import load_hardware, quantities, save_hardware
from alipes.replay.sim.measure import (
    COPIES,
    Kind,
    Measured,
    Recording,
    Timing,
    merged,
    profile,
)

REPORTS = (
    ModelReport("a", "f", 8_000, 100, weight_bytes=1_000_000, block_bytes=64_000, kv_blocks=100),
    ModelReport("b", "f", 4_000, 100, weight_bytes=3_000_000, block_bytes=128_000, kv_blocks=34),
)
SETTINGS = InstanceSettings(
    "cold-0",
    Pool.COLD,
    tuple(ModelSettings(report.name, "") for report in REPORTS),
    Targets(5.0, 0.25, 0.7),
    "",
    device_bytes=7_500_000,
    prefill_chunk=512,
    max_running=4,
)
FORMS = {
    Kind.PREFILL: (0.01, 1e-4, 1e-8),
    Kind.DECODE: (0.02, 1e-3, 1e-6),
    Kind.SWITCH: (0.003, 1e-9),
    Kind.RESTORE: (0.002, 5e-10),
    Kind.CHECKPOINT: (0.001, 2e-9),
}


def timing(model: str, kind: Kind, *features: float) -> Timing:
    whole = (1.0, *features)
    seconds = sum(c * x for c, x in zip(FORMS[kind], whole, strict=True))
    return Timing(model, kind, whole, seconds)


def timings() -> tuple[Timing, ...]:
    found = []
    for report in REPORTS:
        for tokens, end in ((64, 64), (512, 512), (512, 2048), (30, 1500)):
            found.append(timing(report.name, Kind.PREFILL, tokens, tokens * end))
        for calls, context in ((1, 100), (1, 3000), (4, 2000), (2, 900)):
            found.append(timing(report.name, Kind.DECODE, calls, context))
        for kind in (Kind.RESTORE, Kind.CHECKPOINT):
            found += [timing(report.name, kind, n * report.block_bytes) for n in (1, 7)]
        found.append(timing(report.name, Kind.SWITCH, report.weight_bytes))
    return (*found, *found)


def measured(recorded: tuple[Timing, ...] = ()) -> Measured:
    recording = Recording(REPORTS, HostSlabs(32_000, 50), {"b": 12}, recorded or timings())
    return Measured(
        SETTINGS, "a small machine, 1 thread", "2026-12-01", recording, 4.5, (0.006, 0.004, 0.02)
    )


def test_the_numbers_are_those_of_the_work() -> None:
    hardware = profile(measured()).hardware
    for name in ("a", "b"):
        own = hardware.models[name]
        for kind in (Kind.PREFILL, Kind.DECODE):
            last = "call" if kind is Kind.DECODE else "token"
            fields = [f"{kind}_{part}" for part in ("base", last, "context")]
            values = [getattr(own, field).value for field in fields]
            assert values == pytest.approx(FORMS[kind], rel=1e-4)
    fixed, rates = hardware.fixed, hardware.rates
    assert fixed.switch.value == pytest.approx(0.003, rel=1e-3)
    assert fixed.restore.value == pytest.approx(0.002, rel=1e-3)
    assert fixed.checkpoint.value == pytest.approx(0.001, rel=1e-3)
    assert fixed.relaunch.value == 4.5
    assert rates.h2d.value == pytest.approx(1e9, rel=1e-3)
    assert rates.kv_h2d.value == pytest.approx(2e9, rel=1e-3)
    assert rates.d2h.value == pytest.approx(5e8, rel=1e-3)
    assert hardware.gateway_seconds.value == 0.006


def test_the_simulated_engine_takes_what_the_measured_one_took() -> None:
    hardware = profile(measured()).hardware
    costs = engine_costs(hardware, "b")
    assert costs.prefill([(512, 1536)]) / 1e9 == pytest.approx(
        timing("b", Kind.PREFILL, 512, 512 * 2048).seconds, rel=1e-4
    )
    assert costs.decode(3, 900) / 1e9 == pytest.approx(
        timing("b", Kind.DECODE, 3, 900).seconds, rel=1e-4
    )
    assert costs.restore(64 * 7) / 1e9 == pytest.approx(
        timing("b", Kind.RESTORE, 7 * 128_000).seconds, rel=1e-4
    )
    assert costs.checkpoint(64 * 7) / 1e9 == pytest.approx(
        timing("b", Kind.CHECKPOINT, 7 * 128_000).seconds, rel=1e-4
    )
    assert costs.switch(3_000_000, 0) / 1e9 == pytest.approx(
        timing("b", Kind.SWITCH, 3_000_000).seconds, rel=1e-4
    )


@pytest.mark.parametrize("device_bytes", [7_500_000, 1_000])
def test_every_model_has_the_blocks_that_the_engine_has(device_bytes: int) -> None:
    """Also where the engine's weights are not part of device_bytes, as the fake one's."""
    settings = msgspec.structs.replace(SETTINGS, device_bytes=device_bytes)
    hardware = profile(replace(measured(), settings=settings)).hardware
    assert engine_costs(hardware, "a").kv_blocks == 100
    assert engine_costs(hardware, "b").kv_blocks == 34
    assert hardware.host_bytes.value == 1_600_000


def test_the_profile_is_whole_and_every_number_says_where_it_is_from(tmp_path: Path) -> None:
    hardware = profile(measured()).hardware
    assert (hardware.prefill_chunk, hardware.max_running) == (512, 4)
    assert hardware.targets is not None
    assert hardware.targets.tpot.value == 0.25
    assert (hardware.models["a"].layers, hardware.models["b"].layers) == (1, 12)
    assert hardware.models["b"].context == 4_000
    for path, quantity in quantities(hardware):
        assert quantity.source or quantity.assumed or not quantity.value, path
    told = hardware.models["a"].decode_base.source
    assert told == (
        "measured by alipes profile on 2026-12-01, a small machine, 1 thread, 8 samples"
    )
    save_hardware(tmp_path / "p.yaml", hardware)
    assert load_hardware(tmp_path / "p.yaml") == hardware
    # Exact timings leave no range; calls beside the instance took 4 to 20 ms.
    assert (tmp_path / "p.yaml").read_text().count("low:") == 1


@pytest.mark.parametrize("missing", COPIES)
def test_what_was_never_needed_is_assumed(missing: Kind) -> None:
    recorded = tuple(one for one in timings() if one.kind is not missing)
    hardware = profile(measured(recorded)).hardware
    names = {Kind.SWITCH: "h2d", Kind.RESTORE: "kv_h2d", Kind.CHECKPOINT: "d2h"}
    rate = getattr(hardware.rates, names[missing])
    other = next(kind for kind in COPIES if kind is not missing)
    assert rate.value == pytest.approx(1 / FORMS[other][1], rel=1e-3)
    assert rate.assumed
    assert not rate.source
    assert getattr(hardware.fixed, missing).value == 0
    assert getattr(hardware.fixed, missing).assumed


@pytest.mark.parametrize(
    ("kinds", "problem"),
    [
        ({Kind.PREFILL}, "no prefill of a was timed"),
        ({Kind.DECODE}, "no decode of a was timed"),
        (set(COPIES), "no copy was timed"),
    ],
)
def test_what_must_be_timed(kinds: set[Kind], problem: str) -> None:
    recorded = tuple(one for one in timings() if one.kind not in kinds)
    with pytest.raises(ValueError, match=problem):
        profile(measured(recorded))


def test_measurements_add_up() -> None:
    slower = tuple(msgspec.structs.replace(one, seconds=one.seconds * 3) for one in timings())
    other = replace(measured(slower), launch=5.5, gateway=(0.1, 0.1))
    hardware = profile(merged([measured(), other])).hardware
    assert hardware.models["a"].decode_base.value == pytest.approx(0.04, rel=1e-3)
    assert hardware.fixed.relaunch.value == 5.0
    assert hardware.gateway_seconds.value == 0.02


def retimed(kind: Kind, *seconds: float) -> tuple[Timing, ...]:
    """All timings, those of ``kind`` one after another with other seconds."""
    times = itertools.cycle(seconds)
    return tuple(
        msgspec.structs.replace(one, seconds=next(times)) if one.kind is kind else one
        for one in timings()
    )


def fastest(recorded: tuple[Timing, ...]) -> float:
    return max(one.features[1] / one.seconds for one in recorded if one.kind in COPIES)


def test_a_rate_that_bytes_do_not_tell_is_that_of_the_fastest_copies() -> None:
    """More bytes took no longer."""
    flat = retimed(Kind.SWITCH, 0.05)
    found = profile(measured(flat))
    h2d, switch = found.hardware.rates.h2d, found.hardware.fixed.switch
    assert h2d.value == pytest.approx(fastest(flat), rel=1e-4)
    assert h2d.assumed
    assert h2d.high == 0
    for report in REPORTS:
        took = engine_costs(found.hardware, report.name).switch(report.weight_bytes, 0) / 1e9
        assert took == pytest.approx(0.05, rel=0.1)
    assert switch.value < 0.05
    [line] = [line for line in found.remarks if line.startswith("rates.h2d: ")]
    assert line == (
        f"rates.h2d: {h2d.value:g} bytes/s; the samples do not tell it; no faster than the fastest"
        " copies that were timed (4 samples of switch)"
    )


@pytest.mark.parametrize("count", [1, 2])
def test_a_few_copies_of_one_size_tell_no_rate(count: int) -> None:
    """As an instance of one model that never switched has them."""
    single = [one for one in timings() if one.kind not in COPIES]
    copies = [timing("a", Kind.SWITCH, 1_000_000)] * count
    found = profile(measured((*single, *copies)))
    rates = found.hardware.rates
    for _, rate in quantities(rates):
        assert rate.value == pytest.approx(1_000_000 / copies[0].seconds, rel=1e-4)
        assert rate.assumed
    assert [line.split(":")[0] for line in found.remarks] == ["fixed.switch", "rates.h2d"]
    took = engine_costs(found.hardware, "a").switch(1_000_000, 0) / 1e9
    assert took == pytest.approx(copies[0].seconds, rel=1e-4)


def test_exact_timings_need_no_remark() -> None:
    found = profile(measured())
    assert found.remarks == ()
    assert all(not q.low and not q.high for _, q in quantities(found.hardware.rates))


def test_noisy_timings_give_ranges_that_hold_what_is_true(tmp_path: Path) -> None:
    generator = np.random.default_rng(1)
    noisy = tuple(
        msgspec.structs.replace(one, seconds=one.seconds * generator.normal(1, 0.02))
        for one in timings() * 10
    )
    hardware = profile(measured(noisy)).hardware
    exact = dict(quantities(profile(measured()).hardware))
    ranged = 0
    for path, quantity in quantities(hardware):
        assert quantity.low <= quantity.value <= (quantity.high or quantity.value), path
        if quantity.low and quantity.high and not path.startswith("gateway"):
            ranged += 1
            # Twice as far, as two of 21 numbers lie more than two standard errors off by chance.
            wide = quantity.high - quantity.low
            low, high = quantity.low - wide / 2, quantity.high + wide / 2
            assert low <= exact[path].value <= high, path
    assert ranged >= 15
    assert hardware.gateway_seconds.low == 0.004
    assert hardware.gateway_seconds.high == 0.02
    save_hardware(tmp_path / "p.yaml", hardware)
    assert load_hardware(tmp_path / "p.yaml") == hardware


def test_what_does_not_vary_is_not_told_apart() -> None:
    """Every iteration had one call."""
    single = tuple(
        one for one in timings() if one.kind is not Kind.DECODE or one.features[1] == 1.0
    )
    found = profile(measured((*single, *single)))
    calls = found.hardware.models["a"].decode_call
    assert "apart" in calls.assumed
    assert "models.a.decode_call" in {line.split(":")[0] for line in found.remarks}
    took = engine_costs(found.hardware, "a").decode(1, 3000) / 1e9
    assert took == pytest.approx(timing("a", Kind.DECODE, 1, 3000).seconds, rel=1e-4)
