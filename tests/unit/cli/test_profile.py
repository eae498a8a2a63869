"""Which calls an instance is timed with, the file of a stack, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from alipes.cli.main import app
from alipes.cli.output import CommandError
from alipes.cli.profile import _alone
from alipes.cli.stack import serving, write_cluster
from alipes.cli.timed_calls import ALONE, DEPTH, DRAWN, MOST_TOGETHER, SHORT, Pace, pace, stages
from alipes.cli.validate import FILE, packaged
from alipes.gateway.config import Cluster, load_cluster
from alipes.instance.contract import LocalFolder
from alipes.replay.pacing import Pacing, PacingSettings


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    file = tmp_path / "cluster.yaml"
    file.write_text(
        """\
models:
  a: {source: ./a, dtype: float32}
  b: {source: ./b}
instances:
  hot-0: {pool: hot, models: [a], threads: 3}
  cold-0: {pool: cold, models: [b, a], host_bytes: 64MiB, switch_share: 0.5}
targets: {ttft: 3}
routing: {lease_seconds: 2}
ablations: {host_kv: false}
gateway: {port: 1234, api_keys: [{key: k, tenant: t}]}
"""
    )
    return load_cluster(file)


def estimate(token: float, step: float) -> dict[str, float]:
    return {
        "prefill_base": 0.0,
        "prefill_token": token,
        "prefill_context": 0.0,
        "decode_base": step / 2,
        "decode_call": step / 2,
    }


# --- what is sent --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("token", "step", "expected"),
    [
        (0.004, 0.015, Pace(1_000, 20)),
        (1e-6, 1e-6, Pace(DEPTH[1], DRAWN[1])),
        (1.0, 1.0, Pace(DEPTH[0], DRAWN[0])),
    ],
)
def test_a_model_gets_some_seconds_of_work(token: float, step: float, expected: Pace) -> None:
    assert pace(estimate(token, step), 512, 32_768) == expected


def test_contexts_are_never_exceeded() -> None:
    needed = 500 + len(ALONE) * DRAWN[1] + sum(map(sum, SHORT))
    assert pace(estimate(1e-6, 1e-6), 512, needed) == Pace(500, DRAWN[1])
    with pytest.raises(CommandError, match="a context of 500 tokens is too short"):
        pace(estimate(1e-6, 1e-6), 512, 500)


@pytest.mark.parametrize("max_running", [1, 3, 16])
@pytest.mark.parametrize("paces", [[Pace(256, 16)], [Pace(3_000, 64), Pace(256, 16)]])
def test_stages(paces: list[Pace], max_running: int) -> None:
    models = {f"m{number}": one for number, one in enumerate(paces)}
    sent = list(stages(models, max_running))
    assert len(sent) == 2 * len(models) + 1
    together = min(max_running, MOST_TOGETHER)
    assert [len(one) for one in sent] == [*[1, together] * len(models), 2 * len(models)]
    names = [session.id for stage in sent for session in stage]
    assert len(set(names)) == len(names)
    for stage in sent:
        Pacing(stage, PacingSettings(), 0)
        for session in stage:
            last = session.branches[0].calls[-1]
            room = models[session.model].depth + len(ALONE) * DRAWN[1] + sum(map(sum, SHORT))
            assert last.prompt + last.output <= max(room, 600)
            for call in session.branches[0].calls:
                assert call.output >= 1
                assert call.prompt > call.kept


# --- stacks --------------------------------------------------------------------------------------


def test_a_cluster_survives_being_written(cluster: Cluster, tmp_path: Path) -> None:
    folders = {name: tmp_path / name for name in cluster.models}
    assert load_cluster(write_cluster(cluster, folders, tmp_path)) == cluster
    served = load_cluster(write_cluster(cluster, folders, tmp_path, 4321))
    assert served.gateway.port == 4321
    assert served.gateway.endpoint == f"ipc://{tmp_path}/link"
    assert served.gateway.allow_forced_tokens
    assert served.gateway.api_keys == ()
    assert served.state.folder == str(tmp_path / "state")
    assert (served.instances, served.ablations) == (cluster.instances, cluster.ablations)
    assert served.models["a"].source == LocalFolder(str(tmp_path / "a"))


def test_an_instance_by_itself_keeps_its_share_of_the_cores(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    alone = _alone(cluster, "cold-0")
    assert list(alone.instances) == ["cold-0"]
    assert alone.instances["cold-0"].threads == 5
    assert not alone.instances["cold-0"].local
    assert list(alone.models) == ["b", "a"]
    assert _alone(cluster, "hot-0").instances["hot-0"].threads == 3


def test_a_stack_that_cannot_start_says_why(cluster: Cluster, tmp_path: Path) -> None:
    folders = {name: tmp_path / name for name in cluster.models}
    with (
        pytest.raises(CommandError, match=r"the stack did not start: .*models"),
        serving(cluster, folders, tmp_path / "stack"),
    ):
        pass


# --- commands ------------------------------------------------------------------------------------


def test_an_unknown_instance_is_refused(tmp_path: Path, cluster: Cluster) -> None:
    result = run("profile", "-c", tmp_path / "cluster.yaml", "--instance", "cold-1")
    assert result.exit_code == 2
    assert "unknown instance 'cold-1'; did you mean 'cold-0'?" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((), "SCENARIO is missing; give a scenario file, or --validate"),
        (("--validate", "--only", "all-on"), "--only says nothing to --validate"),
        (("--validate", "some.yaml"), "SCENARIO says nothing to --validate"),
        (("--validate", "--seed", "3"), "--seed says nothing to --validate"),
        (("--validate", "--sensitivity"), "--sensitivity says nothing to --validate"),
    ],
)
def test_a_validation_has_its_own_trace(arguments: tuple[str, ...], problem: str) -> None:
    result = run("simulate", *arguments)
    assert result.exit_code == 2
    assert problem in result.stderr


def test_the_packaged_validation() -> None:
    assert FILE.name == "validation.yaml"
    whole, quick = packaged(False), packaged(True)
    assert whole.repeats == 3
    assert quick.repeats == 1
    assert sum(session.calls for session in whole.sessions) == 50
    served = whole.cluster.instances[whole.instance].models
    assert {session.model for session in whole.sessions} == set(served)
    assert {session.model for session in quick.sessions} == set(served[1:])
    prompts = [call.prompt for s in whole.sessions for call in s.branches[0].calls]
    assert min(prompts) >= 500
    assert max(prompts) <= 3_200
    assert whole.ablated("round-only").ablations.session_prefill is False
    assert whole.ablated("no-sp").ablations.host_kv is True
