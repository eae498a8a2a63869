"""Scenario files: what they may say, and how a fault in one is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from alipes.gateway.strict import FieldError
from alipes.replay.sim.scenario import Scenario, cases, load_scenario

ROOT = Path(__file__).parents[4]
SMALL = """
name: small
about: two configurations
hardware: b200-tp4
trace: {synth: astropy-120}
instances: [{models: [qwen3-32b]}]
setup: {tpot: 0.2}
configurations:
  full: {}
  bare: {session_prefill: false, host_bytes: 2GiB}
"""


def scenario(folder: Path, text: str = SMALL) -> Scenario:
    file = folder / "small.yaml"
    file.write_text(text)
    return load_scenario(file)


def test_a_configuration_changes_the_setup(tmp_path: Path) -> None:
    full, bare = cases(scenario(tmp_path))
    assert (full.label, bare.label) == ("full", "bare")
    assert (full.setup.session_prefill, bare.setup.session_prefill) == (True, False)
    assert (full.setup.tpot, bare.setup.tpot) == (0.2, 0.2)
    assert bare.setup.host_bytes == 2 << 30


def test_every_configuration_runs_under_every_load(tmp_path: Path) -> None:
    text = SMALL + "loads: {low: {rate: 1}, high: {rate: 4}}\n"
    assert [case.label for case in cases(scenario(tmp_path, text))] == [
        "low.full",
        "low.bare",
        "high.full",
        "high.bare",
    ]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (SMALL.replace("tpot", "tpott"), "setup.tpott: unknown field; did you mean 'tpot'?"),
        (SMALL + "  worse: {host_kw: false}\n", "configurations.worse.host_kw: unknown field"),
        (SMALL.replace("synth: astropy-120", ""), "trace: give exactly one of"),
        (SMALL.replace("models: [qwen3-32b]", "models: []"), "instances[0].models"),
        (SMALL + "best_of: {best: [of]}\n", "'of' is no configuration; known: full, bare"),
        (SMALL.replace("bare: {session_prefill: false", "bare: {policy: random"), "residency"),
        ("- a list\n", "must be a mapping"),
        (SMALL + "loads: {}\n", "loads: is empty"),
        (
            SMALL + "loads: {x: {rate: 1, recorded: true}}\n",
            "loads.x: sessions arrive as recorded or",
        ),
        (SMALL + "loads: {x: {concurrency: a}}\n", "loads.x.concurrency: expected int, got 'a'"),
        (SMALL + "loads: {x: {rat: 1}}\n", "loads.x.rat: unknown field; did you mean 'rate'?"),
        (SMALL + "loads: {x: }\n", "loads.x: says nothing; give it a value"),
        (SMALL + "  worse:\n", "configurations.worse: says nothing"),
        (SMALL + "best_of: {best: full}\n", "best_of.best: expected array, got 'full'"),
        (
            SMALL + "published: {source: s, values: {full: {sct_p50: fast}}}\n",
            "published.values.full.sct_p50: expected float, got 'fast'",
        ),
        (
            SMALL + "published: {source: s, values: {full: 3}}\n",
            "published.values.full: expected object, got 3",
        ),
        (SMALL + "loads: {x: {rate: 1.0e-300}}\n", "loads.x: a rate below"),
        (SMALL + "loads: {x: {rate: .inf}}\n", "rate: expected float <="),
        (SMALL + "loads: {x: {gap_cap: -1}}\n", "gap_cap: expected float >="),
        (SMALL.replace("tpot: 0.2", "max_running: -1"), "setup.max_running: expected int >= 0"),
        (SMALL.replace("tpot: 0.2", "ttft: .inf"), "setup.ttft: expected float <="),
        (SMALL + "  ../up: {}\n", "configurations.../up: '../up' is to name a folder"),
        (SMALL + "  '': {}\n", "configurations.: '' is to name a folder"),
        (
            SMALL + "  x.full: {}\nloads: {y.x: {}, y: {}}\n",
            "loads: two runs would be called y.x.full",
        ),
        (SMALL.replace("[qwen3-32b]", "[qwen3-32b, qwen3-32b]"), "models: names a model twice"),
        (
            SMALL.replace("[{models: [qwen3-32b]}]", "[{models: [a, b], pool: hot}]"),
            "instances[0]: a hot instance serves exactly one model",
        ),
        (
            SMALL.replace("astropy-120", "astropy-120, models: [other]"),
            "trace.models: no instance serves other",
        ),
        (
            SMALL + "published: {source: s, values: {ful: {sct_p50: 1}}}\n",
            "published.values.ful: 'ful' is no run; there are full, bare",
        ),
        (
            SMALL + "published: {source: s, values: {full: {sct: 1}}}\n",
            "published.values.full: no figure is called sct",
        ),
        (
            SMALL + "claims: [{name: n, figure: rounds, of: full, to: b, at_most: 1, source: s}]\n",
            "claims[0]: 'b' is no run",
        ),
    ],
)
def test_a_fault_is_told_with_its_file_and_field(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(FieldError) as caught:
        scenario(tmp_path, text)
    message = str(caught.value)
    assert message.startswith(str(tmp_path / "small.yaml"))
    assert told in message
    assert "\n" not in message


def test_a_missing_file_is_not_taken_for_a_cluster_file(tmp_path: Path) -> None:
    with pytest.raises(FieldError) as caught:
        load_scenario(tmp_path / "none.yaml")
    assert "none.yaml: no such file; give a scenario file; scenarios/ has some" in str(caught.value)
    assert "alipes init" not in str(caught.value)


@pytest.mark.parametrize("file", sorted((ROOT / "scenarios").glob("*.yaml")), ids=lambda f: f.stem)
def test_the_scenarios_that_ship_are_valid(file: Path) -> None:
    found = load_scenario(file)
    assert found.name == file.stem
    labels = {case.label for case in cases(found)}
    assert labels
    assert set(found.published.values if found.published else ()) <= labels
    assert all({claim.of, claim.to} <= labels | set(found.best_of) for claim in found.claims)
