"""Scenarios end to end: runs, rows, claims, the same bytes from the same seed."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alipes.gateway.strict import FieldError
from alipes.replay.runs import read_run, write_run
from alipes.replay.sim.hardware import HardwareError
from alipes.replay.sim.outcome import best, outcome
from alipes.replay.sim.scenario import Scenario, load_scenario
from alipes.replay.sim.study import Study, prepare, spread
from alipes.replay.traces.form import MAIN, Branch, Call, Session, Span, Trace, Wait
from alipes.replay.traces.load import save

SCENARIO = """
name: small
about: four sessions on two models
hardware: b200-tp4
trace: {synth: astropy-120}
instances: [{models: [qwen3-32b, qwen2.5-32b-instruct, qwen3.5-35b-a3b]}]
configurations:
  full: {}
  bare: {session_prefill: false, host_kv: false, staging: false}
  bare-longer: {session_prefill: false, host_kv: false, staging: false, ttft: 30}
best_of: {best bare: [bare, bare-longer]}
published: {source: a paper, values: {full: {sct_p50: 5.0}}}
claims:
  - {name: "on", figure: sct_p50, of: full, to: bare, at_most: 1000, source: here}
  - {name: "never", figure: sct_p50, of: bare, to: full, at_most: 0, source: here}
"""


@pytest.fixture
def study(tmp_path: Path) -> Study:
    file = tmp_path / "small.yaml"
    file.write_text(SCENARIO)
    return prepare(load_scenario(file), tmp_path, at_most=6)


def test_every_case_is_run_and_told(study: Study, tmp_path: Path) -> None:
    runs = list(study.runs(lambda label: None))
    assert [run.folder for run in runs] == ["full", "bare", "bare-longer"]
    for run in runs:
        assert len(run.calls) == study.workload.sessions[0].calls * 6
        assert not any(call.error for call in run.calls)
        write_run(tmp_path / run.folder, run)
        assert read_run(tmp_path / run.folder).calls == run.calls
    found = outcome(study.scenario, runs, {})
    assert [row.published for row in found.rows] == [{"sct_p50": 5.0}, {}, {}]
    assert [claim.holds for claim in found.claims] == [True, False]
    assert not found.holds
    [chosen] = best(study.scenario, found.rows).values()
    offs = [row.measures["sct_p50"] for row in found.rows[1:]]
    assert chosen.measures["sct_p50"] == min(offs)


def test_gaps_are_told_as_they_were_kept(tmp_path: Path) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(SCENARIO + 'loads: {"": {gap_cap: 0.25}}\n')
    study = prepare(load_scenario(file), tmp_path, at_most=6, only=["full"])
    recorded = {
        (session.id, index): call.gap
        for session in study.workload.sessions
        for index, call in enumerate(session.branches[0].calls)
    }
    assert max(recorded.values()) > 0.25
    for call in next(study.runs(lambda label: None)).calls:
        assert call.gap == pytest.approx(min(recorded[call.session, call.index], 0.25), abs=1e-9)


def test_no_run_is_below_its_bounds(study: Study) -> None:
    for run in study.runs(lambda label: None):
        [row] = outcome(study.scenario, [run], {}).rows
        for name, value in row.bounds.items():
            assert value <= row.measures[name] + 1e-9, name
        for session, least in run.info.bound.items():
            calls = [call for call in run.calls if call.session == session]
            took = max(c.finished for c in calls) - min(c.intended for c in calls)
            assert least <= took + 1e-9


def test_the_same_seed_gives_the_same_bytes(study: Study) -> None:
    first, second = (
        [msgspec.json.encode(run) for run in study.runs(lambda label: None)] for _ in range(2)
    )
    assert first == second


def test_cases_side_by_side_give_the_same_bytes(study: Study) -> None:
    labels: list[str] = []
    alone = [msgspec.json.encode(run) for run in study.runs(labels.append)]
    study.processes = 2
    assert [msgspec.json.encode(run) for run in study.runs(labels.append)] == alone
    assert labels == ["full", "bare", "bare-longer"] * 2


def test_a_fault_of_one_of_several_cases_is_raised(study: Study) -> None:
    study.processes = 2
    costs = {name: one for name, one in study.hardware.models.items() if "qwen3-32b" not in name}
    study.hardware = msgspec.structs.replace(study.hardware, models=costs)
    with pytest.raises(HardwareError, match="qwen3-32b"):
        list(study.runs(lambda label: None))
    assert multiprocessing.active_children() == []


def test_a_variant_of_the_hardware_changes_the_outcome(study: Study, tmp_path: Path) -> None:
    study.scenario = msgspec.structs.replace(study.scenario, sensitivity=("full",))
    labels = []
    for variant, run in study.variants(labels.append):
        assert run.folder == "full"
        assert variant.label in labels[-1]
        break


def test_a_few_sessions_are_spread_over_models_and_tasks(study: Study) -> None:
    models = Counter(session.model for session in study.workload.sessions)
    assert list(models.values()) == [2, 2, 2]
    assert not study.whole
    # Ten tasks on each model: their numbers end the names.
    assert [session.id[-2:] for session in study.workload.sessions] == ["-2", "-7"] * 3


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=40), st.integers(1, 50))
def test_a_spread_is_fair(models: list[str], count: int) -> None:
    sessions = [single(str(number), 9, model) for number, model in enumerate(models)]
    some = spread(sessions, count)
    places = [int(session.id) for session in some]
    assert places == sorted(set(places))
    assert len(some) == min(count, len(models))
    for model, whole in Counter(models).items():
        chosen = sum(session.model == model for session in some)
        assert abs(chosen - whole * len(some) / len(models)) < 2


def test_a_subset_that_is_all_warmup_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(SCENARIO + "warmup: 6\n")
    with pytest.raises(FieldError, match="warmup: leaves none of 6 sessions to count"):
        prepare(load_scenario(file), tmp_path, at_most=6)


def written(folder: Path, trace: Trace, text: str) -> Scenario:
    save(folder / "trace.jsonl", trace)
    file = folder / "small.yaml"
    file.write_text(SCENARIO.replace("synth: astropy-120", text))
    return load_scenario(file)


def single(name: str, prompt: int, model: str = "", sub: str = "") -> Session:
    """A session of one call, and a sub-agent of another on model ``sub``."""
    one = Call(prompt, 4, 0, (Span(-1, 0, prompt),), wait=Wait.START)
    agents = (Branch("sub", (one,), MAIN, 0, sub),) if sub else ()
    return Session(name, (Branch(MAIN, (one,)), *agents), model)


@pytest.mark.parametrize(
    ("sessions", "text", "told"),
    [
        ((single("a", 9), single("a.2", 9)), "file: trace.jsonl, repeat: 2", "called a.2"),
        (
            (single("a", 9, "qwen3-32b", "other"),),
            "file: trace.jsonl",
            "branch sub of session a is of other, which no instance serves",
        ),
    ],
)
def test_sessions_that_cannot_be_told_apart_or_served_are_refused(
    tmp_path: Path, sessions: tuple[Session, ...], text: str, told: str
) -> None:
    scenario = written(tmp_path, Trace("t", sessions), text)
    with pytest.raises(FieldError, match=told):
        prepare(scenario, tmp_path)


def test_a_run_of_nothing_but_warm_up_is_refused(tmp_path: Path) -> None:
    scenario = written(tmp_path, Trace("t", (single("a", 9),)), "file: trace.jsonl")
    with pytest.raises(FieldError, match="warmup: leaves none of 1 sessions"):
        prepare(msgspec.structs.replace(scenario, warmup=1), tmp_path)


def test_counters_are_of_what_came_after_the_warm_up(tmp_path: Path) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(SCENARIO + 'loads: {"": {concurrency: 1}}\nwarmup: 2\n')
    study = prepare(load_scenario(file), tmp_path, at_most=6, only=["full"])
    [run] = study.runs(lambda label: None)
    counters, counted = run.info.counters, run.counted
    assert 0 < len(counted) < len(run.calls)
    assert counters["placed"] == counters["finished"] == len(counted)
    assert counters["decode_tokens"] == sum(call.completion_tokens or 0 for call in counted)
    assert counters["returns"] == sum(call.returning for call in counted)
    assert counters["live_calls"] == 0
    later = [one for one in run.switches if one.at >= run.warmed]
    assert counters["switches"] == len(later) < len(run.switches)


def test_no_claim_holds_of_runs_in_which_calls_failed(tmp_path: Path) -> None:
    """Of sessions that failed no figure tells: the others might be the fast ones."""
    sessions = (single("a", 900), single("b", 10**6, "qwen3-32b"))
    study = prepare(written(tmp_path, Trace("t", sessions), "file: trace.jsonl"), tmp_path)
    found = outcome(study.scenario, list(study.runs(lambda label: None)), {})
    assert [row.failed for row in found.rows] == [1, 1, 1]
    assert not any(row.bounds for row in found.rows)
    assert found.claims[0].value <= 1000
    assert not found.claims[0].holds
    assert "2 calls failed" in found.claims[0].target


def test_a_run_that_completes_nothing_is_told_as_well(tmp_path: Path) -> None:
    scenario = written(
        tmp_path, Trace("t", (single("b", 10**6, "qwen3-32b"),)), "file: trace.jsonl"
    )
    study = prepare(scenario, tmp_path, only=["full"])
    [row] = outcome(study.scenario, list(study.runs(lambda label: None)), {}).rows
    assert (row.calls, row.failed, row.parts) == (1, 1, {})


def test_wall_times_are_of_cases_and_not_of_their_variants(study: Study) -> None:
    study.scenario = msgspec.structs.replace(study.scenario, sensitivity=("full",))
    next(study.runs(lambda label: None))
    before = dict(study.seconds)
    next(study.variants(lambda label: None))
    assert study.seconds == before
