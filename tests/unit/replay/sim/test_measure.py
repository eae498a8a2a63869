"""From timings to a profile: sources, device bytes, what was never needed, the file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
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
    fit,
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
    return tuple(found)


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
        "measured by alipes profile on 2026-12-01, a small machine, 1 thread, 4 samples"
    )
    save_hardware(tmp_path / "p.yaml", hardware)
    assert load_hardware(tmp_path / "p.yaml") == hardware
    assert "low:" not in (tmp_path / "p.yaml").read_text()


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


def test_more_bytes_that_took_no_longer() -> None:
    flat = tuple(
        msgspec.structs.replace(one, seconds=0.05) if one.kind is Kind.SWITCH else one
        for one in timings()
    )
    hardware = profile(measured(flat)).hardware
    assert engine_costs(hardware, "a").switch(1_000_000, 0) == pytest.approx(5e7, rel=1e-3)
    assert engine_costs(hardware, "b").switch(3_000_000, 0) == pytest.approx(5e7, rel=1e-3)


def test_errors_are_parts_of_what_was_measured() -> None:
    ones = [Timing("a", Kind.SWITCH, (1.0, 0.0), seconds) for seconds in (1.0, 1.0, 1.0, 2.0)]
    found = fit(ones)
    assert found.coefficients[0] == pytest.approx(1.25)
    assert (found.samples, found.error_p50) == (4, pytest.approx(0.25))
    assert found.error_p90 == pytest.approx(0.375)
