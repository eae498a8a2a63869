from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import yaml

from alipes.replay.sim.costs import engine_costs
from alipes.replay.sim.hardware import (
    HardwareError,
    Quantity,
    load_hardware,
    profiles,
    quantities,
    unit,
)
from alipes.replay.sim.sensitivity import variants

LOADED = {name: load_hardware(name) for name in profiles()}


def cold_ttft(name: str, model: str, tokens: int) -> float:
    hardware = LOADED[name]
    costs = engine_costs(hardware, model)
    chunk, time = hardware.prefill_chunk, costs.cold
    for start in range(0, tokens, chunk):
        time += costs.prefill([(min(chunk, tokens - start), start)])
    return time / 1e9


@pytest.mark.parametrize("name", profiles())
def test_every_number_has_a_source_or_a_reason(name: str) -> None:
    hardware = LOADED[name]
    assert hardware.name == name
    named = dict(quantities(hardware))
    assert len(named) > 20
    for path, quantity in named.items():
        assert quantity == Quantity(0.0) or quantity.source or quantity.assumed, path


def test_profiles() -> None:
    assert profiles() == ("b200-tp4", "b200-tp8", "gb300-tp4", "h200-tp4")


def test_b200_meets_what_talaria_prints() -> None:
    """Sections 2.2 and 5.6."""
    assert cold_ttft("b200-tp8", "qwen3-235b", 25_000) == pytest.approx(4.3, rel=0.01)
    assert cold_ttft("b200-tp8", "qwen3-235b", 100_000) == pytest.approx(10.9, rel=0.01)
    hardware = LOADED["b200-tp8"]
    costs = [engine_costs(hardware, model) for model in hardware.models]
    assert len(costs) == 3
    host = sorted(each.switch(each.weight_bytes, 0) for each in costs)
    device = sorted(each.switch(0, each.weight_bytes) for each in costs)
    assert host[1] / 1e9 == pytest.approx(1.497, rel=0.01)
    assert device[1] / 1e9 == pytest.approx(0.106, rel=0.01)
    # A call that continues its session is far from a cold one (TTFT p50 0.55 s, section 5.2).
    assert engine_costs(hardware, "qwen3-235b").prefill([(1_000, 25_000)]) < 0.55e9


def test_gb300_meets_what_evolving_infra_prints() -> None:
    """Appendices D.5, D.6 and B.4."""
    hardware = LOADED["gb300-tp4"]
    costs = engine_costs(hardware, "glm-5.2")
    assert costs.kv_blocks * 64 == pytest.approx(2.06e6, rel=0.001)
    host_tokens = hardware.host_bytes.value / costs.host_block_bytes * 64
    assert host_tokens == pytest.approx(8.25e6, rel=0.01)
    assert costs.fetch(4 << 10) / 1e9 == pytest.approx(0.007, rel=0.1)
    assert costs.fetch(64 << 10) / 1e9 < 0.129 < costs.fetch(128 << 10) / 1e9
    accepted = 4
    assert accepted * costs.decode(8, 0) / 1e9 == pytest.approx(0.017)
    assert accepted * costs.decode(64, 0) / 1e9 == pytest.approx(0.045)


def faulty(tmp_path: Path, change: object) -> str:
    """What is wrong with a profile that ``change`` has changed, on one line."""
    assert callable(change)
    data = msgspec.to_builtins(LOADED["b200-tp8"])
    del data["models"]["qwen3.5-122b-a10b"]
    change(data)
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(data))
    with pytest.raises(HardwareError) as caught:
        load_hardware(path)
    message = str(caught.value)
    assert "\n" not in message
    return message.removeprefix(f"{path}: ")


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("fixed.restore.assumed", " ", "fixed.restore: has no source"),
        ("rates.d2d.value", 0.0, "rates.d2d: value must lie between low and high"),
        ("fixed.switch.low", 0.05, "fixed.switch: value must lie between low and high"),
        ("rates.h2d.value", "fast", "rates.h2d.value: expected float, got 'fast'"),
        ("rates.h2d.value", float("nan"), "rates.h2d: must be finite and not negative"),
        ("rates.h2d.value", -1.0, "rates.h2d: must be finite and not negative"),
        ("rates.h2d.hihg", 1.0, "rates.h2d.hihg: unknown field; did you mean 'high'?"),
        ("rates.rdma", None, "rates.rdma: expected object, got None"),
        ("rates.rdma", 2, "rates.rdma: is a bare number; write {value: 2, source: "),
        ("models.glm5-nvfp4.decode_call", 0.1, "models.glm5-nvfp4.decode_call: is a bare number"),
        ("models.glm5-nvfp4.decode_cal", {}, "models.glm5-nvfp4.decode_cal: unknown field; did"),
        ("models.glm5-nvfp4.decode_call.value", "a", "decode_call.value: expected float, got 'a'"),
        ("models.glm5-nvfp4", None, "models.glm5-nvfp4: says nothing; give it a value"),
        ("fixed.restore.value", None, "fixed.restore.value: expected float, got None"),
        ("staging_share.value", 2.0, "staging_share: value must lie between low and high"),
        ("models", {}, "models: is empty; add a model"),
        ("max_running", 0, "max_running: must be at least 1"),
        ("models.glm5-nvfp4.layers", 0, "models.glm5-nvfp4.layers: must be at least 1"),
        ("models.glm5-nvfp4.kv_host_token_bytes.value", 450_000.0, "between low and high"),
        ("models.qwen3-235b.weight_bytes.value", 1.3e12, "leaves 0 of 1,571,958,030,336 device"),
    ],
)
def test_faults_name_the_field(tmp_path: Path, path: str, value: object, message: str) -> None:
    def change(data: dict[str, object]) -> None:
        *parts, last = path.split(".")
        inner: object = data
        for part in parts:
            assert isinstance(inner, dict)
            inner = inner[part]
        assert isinstance(inner, dict)
        inner[last] = value

    assert message in faulty(tmp_path, change)


def test_rates_must_be_above_zero(tmp_path: Path) -> None:
    def change(data: dict[str, dict[str, object]]) -> None:
        data["rates"]["rdma"] = {"value": 0.0, "assumed": "no network"}

    assert faulty(tmp_path, change) == "rates.rdma: must be above 0"


def test_a_missing_file_and_an_unknown_name(tmp_path: Path) -> None:
    with pytest.raises(HardwareError, match=r"no hardware profile b200; did you mean 'b200-tp"):
        load_hardware("b200")
    with pytest.raises(
        HardwareError, match=r"none\.yaml: no such file; copy a profile .* docs/scenarios"
    ):
        load_hardware(tmp_path / "none.yaml")
    (tmp_path / "list.yaml").write_text("- 1\n")
    with pytest.raises(HardwareError, match="must be a mapping with `models` and `rates`"):
        load_hardware(tmp_path / "list.yaml")


def test_variants_change_one_number_each() -> None:
    hardware = LOADED["b200-tp8"]
    before = dict(quantities(hardware))
    found = []
    for one, variant in variants(hardware):
        after = dict(quantities(variant))
        assert [name for name in before if before[name] != after[name]] == [one.number]
        assert one.tried == after[one.number].value == getattr(before[one.number], one.end)
        assert one.given == before[one.number].value
        found.append((one.number, one.end))
    ends = [
        (path, end)
        for path, quantity in before.items()
        for end in ("low", "high")
        if getattr(quantity, end) not in (0.0, quantity.value)
    ]
    assert found == ends
    assert ("models.qwen3.5-122b-a10b.prefill_cold", "high") in found


def test_an_end_that_is_the_number_itself_is_no_variant() -> None:
    hardware = LOADED["b200-tp8"]
    exact = Quantity(3e11, source="here", low=3e11, high=4e11)
    rates = msgspec.structs.replace(hardware.rates, h2d=exact)
    changed = msgspec.structs.replace(hardware, rates=rates)
    labels = [one.label for one, _ in variants(changed) if one.number == "rates.h2d"]
    assert labels == ["rates.h2d high (4e+11)"]


def test_variants_of_some_models() -> None:
    hardware = LOADED["b200-tp8"]
    numbers = [one.number for one, _ in variants(hardware, ["qwen3.5-122b-a10b"])]
    assert "models.qwen3.5-122b-a10b.decode_call" in numbers
    assert not any("glm5" in number for number in numbers)
    assert "rates.h2d" in numbers


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("rates.kv_h2d", "bytes/s"),
        ("device_bytes", "bytes"),
        ("models.qwen3.5-122b-a10b.kv_host_token_bytes", "bytes/token"),
        ("models.a.prefill_context", "s/token^2"),
        ("models.a.decode_base", "s"),
        ("targets.gamma", ""),
        ("gateway_seconds", "s"),
    ],
)
def test_units(path: str, expected: str) -> None:
    assert unit(path) == expected
