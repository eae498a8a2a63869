"""The comparison of live and simulated runs, and the trace that both run."""

from __future__ import annotations

import itertools

import pytest

from alipes.replay.pacing import Pacing, PacingSettings
from alipes.replay.records import CallRecord
from alipes.replay.runs import Run, RunInfo
from alipes.replay.sim.validate import (
    GAP_CAP,
    NAME,
    Comparison,
    Shape,
    claims,
    rows,
    sct,
    small_trace,
)
from alipes.replay.tokens import prompt_spans
from alipes.replay.traces.form import Session

SHAPES = {
    "a": Shape(2, 4, (500, 700), (40, 120), (8, 24)),
    "b": Shape(3, 7, (1400, 2000), (60, 220), (20, 60)),
}


def run(configuration: str, kind: str, times: dict[str, float], seed: int = 1) -> Run:
    """Sessions of one call each that took so many seconds."""
    calls = [
        CallRecord(
            session=name,
            request_id=name,
            model="m",
            index=0,
            gap=0.0,
            intended=1.0,
            sent=1.0,
            finished=1.0 + seconds,
            expected_tokens=1,
            ttft=seconds,
        )
        for name, seconds in times.items()
    ]
    planned = dict.fromkeys(times, 1)
    info = RunInfo(NAME, configuration, kind, seed=seed, seconds=9.0, planned=planned)
    return Run(f"{configuration}-{kind}-{seed}", info, tuple(calls))


def compared(
    name: str, live: list[tuple[float, float, float]], simulated: tuple[float, float, float]
) -> Comparison:
    def sessions(times: tuple[float, float, float]) -> dict[str, float]:
        return dict(zip("xyz", times, strict=True))

    return Comparison(
        tuple(run(name, "live", sessions(times), n) for n, times in enumerate(live, 1)),
        run(name, "simulated", sessions(simulated)),
    )


# --- the trace -----------------------------------------------------------------------------------


def lengths(sessions: tuple[Session, ...]) -> list[tuple[str, list[int], list[int]]]:
    return [
        (
            one.id,
            [c.prompt for c in one.branches[0].calls],
            [c.output for c in one.branches[0].calls],
        )
        for one in sessions
    ]


def test_sessions_of_a_trace() -> None:
    trace = small_trace(SHAPES, 3)
    assert [(one.id, one.model) for one in trace] == [
        ("a.0", "a"),
        ("b.0", "b"),
        ("a.1", "a"),
        ("b.1", "b"),
        ("b.2", "b"),
    ]
    for session in trace:
        shape, calls = SHAPES[session.model], session.branches[0].calls
        assert len(calls) == shape.calls
        assert shape.first[0] <= calls[0].prompt <= shape.first[1]
        assert calls[0].kept == 0
        for before, call in itertools.pairwise(calls):
            assert call.kept == before.prompt + before.output
            assert shape.added[0] <= call.prompt - call.kept <= shape.added[1]
            assert 0 <= call.gap <= GAP_CAP
        for index, call in enumerate(calls):
            assert shape.output[0] <= call.output <= shape.output[1]
            assert sum(s.length for s in prompt_spans(session, 0, index)) == call.prompt
    Pacing(trace, PacingSettings(), 0)


def test_a_trace_depends_on_its_seed_alone() -> None:
    assert small_trace(SHAPES, 3) == small_trace(SHAPES, 3)
    assert lengths(small_trace(SHAPES, 3)) != lengths(small_trace(SHAPES, 4))


def test_sessions_stay_the_same_when_models_are_left_out() -> None:
    few = small_trace({"b": SHAPES["b"]}, 3)
    assert set(few) <= set(small_trace(SHAPES, 3))


# --- the comparison ------------------------------------------------------------------------------


def test_errors_are_of_the_median_live_run() -> None:
    one = compared("on", [(10, 20, 30), (12, 90, 33), (11, 21, 20)], (11, 42, 15))
    assert one.errors() == pytest.approx([0.0, 1.0, 0.5])
    # Nearest-rank medians of the runs: 20, 33, 20.
    assert one.interval == (20, 33)


def test_a_session_that_is_not_whole_is_no_measure() -> None:
    whole = run("on", "live", {"x": 1.0, "y": 2.0})
    assert sct(whole) == pytest.approx({"x": 1.0, "y": 2.0})
    part = Run(whole.folder, whole.info, whole.calls[:1])
    with pytest.raises(ValueError, match="on-live-1: session y is not whole"):
        sct(part)


def test_rows_tell_every_run() -> None:
    found = rows({"on": compared("on", [(1, 2, 3)] * 2, (1, 2, 6))})
    assert [row.case for row in found] == ["on-live-1", "on-live-2", "on-simulated-1"]
    assert [row.measures.get("error_p50") for row in found] == [None, None, 0.0]
    assert found[2].measures["error_p90"] == pytest.approx(1.0)
    assert found[0].measures["sct_p50"] == 2


def test_claims_hold_at_their_limits() -> None:
    live = [(10.0, 10.0, 10.0)] * 3
    median, tail, ranking = claims({"on": compared("on", live, (11.49, 10.0, 12.99))})
    assert (median.value, median.holds) == (pytest.approx(0.149), True)
    assert (tail.value, tail.holds) == (pytest.approx(0.299), True)
    assert ranking.holds
    median, tail, _ = claims({"on": compared("on", live, (11.6, 8.0, 13.1))})
    assert (median.holds, tail.holds) == (False, False)


@pytest.mark.parametrize(
    ("fast", "slow", "wrong"),
    [
        # The live intervals are 10 to 11 and 12 to 13.
        ((10, 10, 10), (12, 12, 12), 0),
        ((10, 10, 10), (9, 9, 9), 1),
        ((10, 10, 10), (10, 10, 10), 1),
    ],
)
@pytest.mark.parametrize("swapped", [False, True])
def test_who_is_faster(
    fast: tuple[float, float, float],
    slow: tuple[float, float, float],
    wrong: int,
    swapped: bool,
) -> None:
    pair = {
        "fast": compared("fast", [(10, 10, 10), (11, 11, 11)], fast),
        "slow": compared("slow", [(12, 12, 12), (13, 13, 13)], slow),
    }
    ordered = dict(reversed(pair.items())) if swapped else pair
    ranking = claims(ordered)[2]
    assert (ranking.value, ranking.holds) == (wrong, wrong == 0)
    assert "of 1 whose live intervals do not overlap" in ranking.name
    assert ("fast < slow" in ranking.name) == bool(wrong)


def test_configurations_that_overlap_are_not_ranked() -> None:
    pair = {
        "one": compared("one", [(10, 10, 10), (12, 12, 12)], (20, 20, 20)),
        "other": compared("other", [(12, 12, 12), (13, 13, 13)], (1, 1, 1)),
    }
    ranking = claims(pair)[2]
    assert ranking.holds
    assert "of 0 whose" in ranking.name
