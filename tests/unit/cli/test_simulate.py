"""``alipes simulate`` as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from alipes.cli.main import app
from alipes.replay.runs import read_run

SCENARIO = """
name: small
about: two configurations
hardware: b200-tp4
trace: {synth: astropy-120}
instances: [{models: [qwen3-32b, qwen2.5-32b-instruct, qwen3.5-35b-a3b]}]
configurations: {full: {}, bare: {session_prefill: false, host_kv: false, staging: false}}
published: {source: a paper, values: {full: {sct_p50: 5.0}}}
assumptions: [nothing is known]
claims:
  - {name: mechanisms help, figure: sct_p50, of: full, to: bare, at_most: AT_MOST, source: here}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "small.yaml"
    file.write_text(SCENARIO.replace("AT_MOST", "1000"))
    return file


def test_a_scenario_is_run_and_told(file: Path, tmp_path: Path) -> None:
    out, report = tmp_path / "out", tmp_path / "found.json"
    result = CliRunner().invoke(
        app, ["simulate", str(file), "--out", str(out), "--json", str(report)]
    )
    assert result.exit_code == 0, result.output
    assert "\nholds: mechanisms help" in result.output
    assert "beside the paper" in result.output
    assert "assumed: nothing is known" in result.output
    assert "no scheduler is below" in result.output
    found = json.loads(report.read_text())
    assert set(found) == {"name", "environment", "rows", "claims"}
    assert [row["case"] for row in found["rows"]] == ["full", "bare"]
    assert read_run(out / "full").info.published == {"sct_p50": 5.0}


def test_a_claim_that_does_not_hold_is_an_error(file: Path) -> None:
    file.write_text(SCENARIO.replace("AT_MOST", "0"))
    result = CliRunner().invoke(app, ["simulate", str(file)])
    assert result.exit_code == 1, result.output
    assert "DOES NOT HOLD" in result.output


def test_nothing_is_judged_on_a_subset(file: Path, tmp_path: Path) -> None:
    file.write_text(SCENARIO.replace("AT_MOST", "0"))
    report = tmp_path / "found.json"
    result = CliRunner().invoke(app, ["simulate", str(file), "--quick", "--json", str(report)])
    assert result.exit_code == 0, result.output
    assert "not judged on a subset: mechanisms help" in result.output
    assert "a subset: 12 of 30 sessions" in result.output
    assert "HOLD" not in result.output
    assert "beside the paper" not in result.output
    found = json.loads(report.read_text())
    assert [claim["holds"] for claim in found["claims"]] == [None]
    assert found["environment"]["sessions"] == "12"


def test_a_trace_of_few_sessions_is_no_subset(file: Path) -> None:
    text = SCENARIO.replace("AT_MOST", "0")
    file.write_text(text.replace("astropy-120", "swebench, sessions: 3"))
    result = CliRunner().invoke(app, ["simulate", str(file), "--quick"])
    assert result.exit_code == 1, result.output
    assert "DOES NOT HOLD" in result.output


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--only", "fast"], "--only: 'fast' is no configuration; known: full, bare"),
        (["--only", "full", "--json", "/nowhere/at/all"], "/nowhere/at/all"),
    ],
)
def test_a_fault_is_one_line(file: Path, options: list[str], told: str) -> None:
    result = CliRunner().invoke(app, ["simulate", str(file), "--quick", *options])
    assert result.exit_code == 2, result.output
    assert told in result.stderr.replace("\n", " ")


def test_unknown_hardware_names_those_there_are(file: Path) -> None:
    file.write_text(file.read_text().replace("b200-tp4", "b200-tp5"))
    result = CliRunner().invoke(app, ["simulate", str(file)])
    assert result.exit_code == 2
    assert "b200-tp8" in result.stderr


HARDWARE = """
name: mine
about: a small machine
prefill_chunk: 512
max_running: 8
device_bytes: {value: 4.0e+9, source: here}
host_bytes: {value: 4.0e+9, source: here}
runtime_bytes: {value: 1.0e+9, source: here}
staging_share: {value: 0.5, assumed: half}
rates:
  h2d: {value: 1.0e+10, source: here, low: 5.0e+9}
  d2h: {value: 1.0e+10, source: here}
  d2d: {value: 1.0e+10, source: here}
  rdma: {value: 1.0e+9, source: here}
fixed:
  switch: {value: 0.01, source: here}
  restore: {value: 0.01, source: here}
  relaunch: {value: 3, source: here}
models:
  small:
    weight_bytes: {value: 1.0e+9, source: here}
    kv_token_bytes: {value: 10000, source: here}
    prefill_base: {value: 0.01, source: here}
    prefill_token: {value: 1.0e-5, source: here}
    prefill_context: {value: 1.0e-10, source: here}
    decode_base: {value: 0.02, source: here, high: 0.04}
    decode_call: {value: 0.001, source: here}
    decode_context: {value: 1.0e-7, source: here}
"""
VARIED = """
name: varied
about: one number after another
hardware: mine.yaml
trace: {synth: swebench, models: [small], sessions: 2}
instances: [{models: [small], pool: hot}]
configurations: {full: {}, bare: {host_kv: false}}
sensitivity: [full]
"""


@pytest.fixture
def varied(tmp_path: Path) -> Path:
    (tmp_path / "mine.yaml").write_text(HARDWARE)
    file = tmp_path / "varied.yaml"
    file.write_text(VARIED)
    return file


def test_every_number_is_varied_and_told_with_its_unit(varied: Path, tmp_path: Path) -> None:
    report = tmp_path / "found.json"
    command = ["simulate", str(varied), "--sensitivity", "--json", str(report)]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    found = json.loads(report.read_text())
    told = [(row["number"], row["unit"], row["end"]) for row in found["sensitivity"]]
    assert told == [
        ("rates.h2d", "bytes/s", "low"),
        ("models.small.decode_base", "s", "high"),
    ]
    base = found["rows"][0]["measures"]["sct_p50"]
    for row in found["sensitivity"]:
        assert row["case"] == "full"
        assert row["ratio"] == pytest.approx(row["measures"]["sct_p50"] / base)
    ratio = found["sensitivity"][1]["ratio"]
    assert ratio > 1.1
    [line] = [one for one in result.output.splitlines() if "decode_base, s" in one]
    assert line.split()[2:4] == ["0.02", "0.04"]
    assert line.split()[-1] == f"{ratio:.2f}"
    assert "sensitivity of SCT p50, seconds" in result.output
    assert "last / first" not in result.output


def test_variants_are_told_by_load(varied: Path) -> None:
    both = VARIED.replace("[full]", "[full, bare]")
    varied.write_text(both + "loads: {low: {rate: 0.1}, high: {concurrency: 2}}\n")
    result = CliRunner().invoke(app, ["simulate", str(varied), "--sensitivity", "--jobs", "1"])
    assert result.exit_code == 0, result.output
    heads = [one.split() for one in result.output.splitlines() if "last / first" in one]
    words = "number given tried full times bare times last / first"
    assert heads == [words.split()] * 2
    for load in ("low", "high"):
        assert f"varied, load {load}: sensitivity of SCT p50" in result.output


def test_calls_that_fail_say_why(varied: Path) -> None:
    hardware = varied.parent / "mine.yaml"
    hardware.write_text(HARDWARE + "    context: 9000\n")
    result = CliRunner().invoke(app, ["simulate", str(varied), "--only", "full"])
    assert result.exit_code == 1, result.output
    [line] = [one for one in result.output.splitlines() if one.startswith("FAILED: ")]
    assert line.startswith("FAILED: 2 of 2 calls of full, the first: ")
    assert len(line.split("the first: ")[1]) > 10


@pytest.mark.parametrize(
    ("old", "new", "options", "told"),
    [
        ("sensitivity: [full]", "", [], "the scenario has no `sensitivity`; list the"),
        ("", "", ["--only", "bare"], "the scenario's `sensitivity` is full; name one in --only"),
        ("mine.yaml", "flat.yaml", [], "no number of mine has `low` or `high`; add ranges to it"),
    ],
)
def test_nothing_to_vary_is_an_error(
    varied: Path, old: str, new: str, options: list[str], told: str
) -> None:
    flat = HARDWARE.replace(", low: 5.0e+9", "").replace(", high: 0.04", "")
    (varied.parent / "flat.yaml").write_text(flat)
    varied.write_text(VARIED.replace(old, new))
    result = CliRunner().invoke(app, ["simulate", str(varied), "--sensitivity", *options])
    assert result.exit_code == 2, result.output
    assert f"--sensitivity: {told}" in result.stderr


def test_the_scenario_is_optional_in_the_usage_once() -> None:
    usage = " ".join(CliRunner().invoke(app, ["simulate", "--help"]).output.split())
    assert "simulate [OPTIONS] [SCENARIO] " in usage
