"""``swebench`` and the Astropy traces against what Talaria publishes.

A percentile of independent draws may be off by four standard errors of its share, as binomial
counts are; one of draws from equal parts by a part.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, exp, sqrt
from pathlib import Path
from statistics import NormalDist

import pytest

from alipes.replay.stats import nearest_rank
from alipes.replay.traces.check import check
from alipes.replay.traces.form import Call, Trace
from alipes.replay.traces.statistics import statistics
from alipes.replay.traces.synth import astropy, talaria
from alipes.replay.traces.synth.astropy import astropy_30, astropy_120
from alipes.replay.traces.synth.distributions import LogNormal
from alipes.replay.traces.synth.swebench import swebench

SEEDS = range(1, 6)
ERRORS = 4


def binomial(percent: float, draws: int) -> float:
    """How far off the share below a percentile may be."""
    return ERRORS * sqrt(percent / 100 * (1 - percent / 100) / draws)


def within(
    values: Sequence[float], percent: float, published: LogNormal, error: float, step: float
) -> bool:
    """Whether a percentile is one of ``published`` at the same share give or take ``error``;
    values are rounded to ``step``."""
    share = percent / 100
    found = nearest_rank(values, percent)
    assert found is not None
    low = published.quantile(max(share - error, 1e-9))
    high = published.quantile(min(share + error, 1 - 1e-9))
    return low - step / 2 <= found <= high + step / 2


def calls(trace: Trace) -> list[Call]:
    return [call for s in trace.sessions for branch in s.branches for call in branch.calls]


def continuations(trace: Trace) -> list[Call]:
    return [call for session in trace.sessions for call in session.branches[0].calls[1:]]


def test_the_distributions_agree_with_published_numbers_that_did_not_fix_them() -> None:
    mean = talaria.DEPTH.median * exp(talaria.DEPTH.sigma**2 / 2)
    assert mean == pytest.approx(talaria.CALLS.value / talaria.SESSIONS.value, rel=0.005)
    assert talaria.GAP.quantile(0.90) == pytest.approx(talaria.GAP_P90.value, rel=0.02)
    rarest = 1 - 1 / talaria.SESSIONS.value
    assert talaria.DEPTH.quantile(rarest) < talaria.DEPTH_MAX.value
    assert talaria.DEPTH.quantile(1 - (1 - rarest) / 3) > 0.9 * talaria.DEPTH_MAX.value


@pytest.mark.parametrize("seed", SEEDS)
def test_swebench_has_the_published_marginals(seed: int) -> None:
    trace = swebench(seed)
    depth = [session.calls for session in trace.sessions]
    gaps = [call.gap for call in continuations(trace)]
    found = statistics(trace)
    assert len(trace.sessions) == talaria.SESSIONS.value
    for percent in (50, 95):
        assert within(depth, percent, talaria.DEPTH, 1 / len(depth), 1)
        assert within(gaps, percent, talaria.GAP, binomial(percent, len(gaps)), 0.001)
    assert max(depth) <= talaria.DEPTH_MAX.value
    # The sample is made to have these, up to the distance between two calls and one call's share.
    assert found.prompt.p50 == pytest.approx(talaria.PROMPT_P50.value, rel=0.005)
    assert found.prompt.p95 == pytest.approx(talaria.PROMPT_P95.value, rel=0.005)
    assert abs(found.reuse.over_half - talaria.REUSE.value) <= 0.5 / found.reuse.continuations
    assert found.prompt.max < talaria.WINDOW.value


def test_outputs_are_as_assumed() -> None:
    outputs = [call.output for call in calls(swebench(1))]
    for percent in (50, 95):
        assert within(outputs, percent, talaria.OUTPUT, binomial(percent, len(outputs)), 1)


@pytest.mark.parametrize("seed", SEEDS)
def test_prompts_grow_by_appending(seed: int) -> None:
    trace = swebench(seed, 50)
    check(trace, Path("swebench"))
    for session in trace.sessions:
        [branch] = session.branches
        system = branch.calls[0].added[0]
        assert system == trace.sessions[0].branches[0].calls[0].added[0]
        assert system.stream >= 0
        for before, call in zip(branch.calls, branch.calls[1:], strict=False):
            if call.kept != system.length:
                assert call.kept == before.prompt + before.output
                assert call.prompt > call.kept
            else:
                assert 2 * call.kept < before.prompt


def test_few_sessions_are_a_sample_of_the_many() -> None:
    assert swebench(3, 20).sessions == swebench(3).sessions[:20]


def test_models_take_sessions_in_turn() -> None:
    trace = swebench(1, 5, ("a", "b"))
    assert [session.model for session in trace.sessions] == ["a", "b", "a", "b", "a"]


def test_the_depths_of_the_astropy_tasks_follow_the_published_distribution() -> None:
    found = astropy.depths().tolist()
    tasks, total = len(found), astropy.CALLS.value / 3
    normal = NormalDist()
    shape = [exp(talaria.DEPTH.sigma * normal.inv_cdf((i + 0.5) / tasks)) for i in range(tasks)]
    assert sum(found) == total
    for depth, part in zip(found, shape, strict=True):
        assert depth in (int(total * part / sum(shape)), ceil(total * part / sum(shape)))


@pytest.mark.parametrize("seed", SEEDS)
def test_astropy_30_is_the_published_replay(seed: int) -> None:
    trace = astropy_30(seed)
    check(trace, Path("astropy"))
    found = statistics(trace)
    assert (found.sessions, found.calls) == (30, 960)
    assert found.models == dict.fromkeys(astropy.LARGE_MODELS, 320)
    gaps = [call.gap for call in continuations(trace)]
    assert sum(gap > astropy.CAP.value for gap in gaps) == astropy.CAPPED.value
    assert all(session.start == astropy.ARRIVAL.value for session in trace.sessions)
    for percent in (50, 95):
        assert within(gaps, percent, talaria.GAP, binomial(percent, len(gaps)), 0.001)
    assert found.prompt.p50 == pytest.approx(talaria.PROMPT_P50.value, rel=0.01)
    assert found.prompt.p95 == pytest.approx(talaria.PROMPT_P95.value, rel=0.01)
    assert abs(found.reuse.over_half - talaria.REUSE.value) <= 0.5 / found.reuse.continuations


def test_every_seed_has_an_astropy_trace() -> None:
    for seed in range(40):
        assert astropy_30(seed).calls == 960


def test_a_task_begins_alike_on_every_model() -> None:
    sessions = astropy_30(1).sessions
    begins = [session.branches[0].calls[0].added for session in sessions]
    assert begins[:10] == begins[10:20] == begins[20:]
    assert len(set(begins)) == 10
    depth = [session.calls for session in sessions]
    assert depth[:10] == depth[10:20] == depth[20:]


def test_astropy_120_is_the_beginning_on_smaller_models() -> None:
    long, short = astropy_30(7), astropy_120(7)
    check(short, Path("astropy"))
    assert short.calls == astropy.SHORT_CALLS.value
    mapped = dict(zip(astropy.LARGE_MODELS, astropy.SMALL_MODELS, strict=True))
    for whole, part in zip(long.sessions, short.sessions, strict=True):
        assert (part.id, part.model, part.start) == (whole.id, mapped[whole.model], None)
        assert part.branches[0].calls == whole.branches[0].calls[:4]


@pytest.mark.parametrize("make", [astropy_30, astropy_120])
@pytest.mark.parametrize("models", [("a",), ("a", "b", "a"), ("a", "b", "c", "d")])
def test_the_astropy_traces_are_of_three_models(make: type, models: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="is a trace of 3 models"):
        make(1, models)
