"""``alipes profile`` and the validation on the fake engine, whose costs are known and so large that
little depends on how busy the machine is."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import msgspec
import pytest

from alipes.cli.cluster import load
from alipes.cli.profile import fit_all, time_instance
from alipes.cli.validate import Plan, run_live, run_simulated
from alipes.replay.sim.costs import engine_costs
from alipes.replay.sim.hardware import Hardware, load_hardware, save_hardware
from alipes.replay.sim.validate import Comparison, Shape, rows, small_trace

STEP, PREFILL, SWITCH, RESTORE = 0.015, 0.0002, 0.1, 0.00005
SHAPES = {
    "one": Shape(2, 3, (300, 500), (40, 90), (8, 14)),
    "two": Shape(2, 3, (300, 500), (40, 90), (8, 14)),
}


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory, tiny_folders: dict[str, Path]) -> Plan:
    costs = {"step": STEP, "prefill_token": PREFILL, "switch": SWITCH, "restore_token": RESTORE}
    cold = {
        "pool": "cold",
        "engine": "fake",
        "models": list(SHAPES),
        "max_running": 2,
        "threads": 1,
        "device_bytes": "64MiB",
        "host_bytes": "64MiB",
        "fake": costs,
    }
    folder = str(tiny_folders["llama"])
    file = tmp_path_factory.mktemp("validate") / "alipes.yaml"
    models = {name: {"source": folder} for name in SHAPES}
    file.write_bytes(msgspec.json.encode({"models": models, "instances": {"cold-0": cold}}))
    return Plan(load(file), "cold-0", small_trace(SHAPES, 1), 1)


@pytest.fixture(scope="module")
def hardware(plan: Plan) -> Hardware:
    return fit_all([time_instance(plan.cluster, plan.instance)]).hardware


def test_a_profile_has_the_costs_of_the_engine(hardware: Hardware, tmp_path: Path) -> None:
    """What Python adds is small beside them, but not nothing."""
    for model in SHAPES:
        costs = engine_costs(hardware, model)
        for tokens in (64, 512):
            expected = STEP + tokens * PREFILL
            assert 0.95 * expected <= costs.prefill([(tokens, 0)]) / 1e9 <= 1.5 * expected
        for calls in (1, 2):
            assert STEP <= costs.decode(calls, 400) / 1e9 <= 1.5 * STEP
        switch = costs.switch(costs.weight_bytes, 0) / 1e9
        assert SWITCH <= switch <= 1.5 * SWITCH
        assert 128 * RESTORE <= costs.restore(128) / 1e9 <= 128 * RESTORE + 0.05
        # 4 KiB a token, and weights that are not in device_bytes.
        assert costs.kv_blocks == (64 << 20) // (64 * 4096)
    assert hardware.host_bytes.value == 64 << 20
    assert 0.001 <= hardware.gateway_seconds.value <= 0.2
    save_hardware(tmp_path / "p.yaml", hardware)
    assert load_hardware(tmp_path / "p.yaml") == hardware


def test_the_simulator_meets_the_live_stack(plan: Plan, hardware: Hardware, tmp_path: Path) -> None:
    live = run_live(plan, "all-on", 1, tmp_path / "live")
    simulated = run_simulated(plan, "all-on", hardware)
    assert len(live.calls) == len(simulated.calls) == 12
    assert {call.prompt_tokens for call in live.calls} == {
        call.prompt_tokens for call in simulated.calls
    }
    compared = Comparison((live,), simulated)
    assert median(compared.errors()) <= 0.2
    assert [row.failed for row in rows({"all-on": compared})] == [0, 0]
