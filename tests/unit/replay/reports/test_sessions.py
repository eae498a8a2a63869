from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alipes.replay.records import CallRecord, Parts
from alipes.replay.reports.sessions import planned_calls, session_results
from alipes.replay.runs import Run, RunInfo


def call(session: str, index: int, at: float, took: float, **more: object) -> CallRecord:
    fields: dict[str, object] = {
        "request_id": f"{session}.{index}",
        "model": "m",
        "gap": 0.5,
        "sent": at,
        "expected_tokens": 4,
        "ttft": took / 2,
        **more,
    }
    record = {"session": session, "index": index, "intended": at, "finished": at + took, **fields}
    return msgspec.convert(record, CallRecord)


def run(calls: Sequence[CallRecord], **more: object) -> Run:
    info = {"scenario": "s", "configuration": "c", "kind": "live", **more}
    return Run("folder", msgspec.convert(info, RunInfo), tuple(calls))


def test_completion_is_from_first_due_to_last_done_over_all_branches() -> None:
    done = run(
        [
            call("a", 0, 2.0, 1.0),
            call("a", 0, 3.5, 9.0, branch="sub"),
            call("a", 1, 4.0, 1.0),
        ]
    )
    (result,) = session_results(done, planned_calls([done]))
    assert result.sct == 10.5
    assert result.calls == 3
    assert result.gap == 0.5
    assert sorted(result.ttft) == [0.5, 0.5, 4.5]


@given(
    spans=st.lists(
        st.tuples(st.integers(0, 40), st.integers(0, 9)).map(lambda s: (s[0], s[0] + s[1])),
        min_size=1,
        max_size=12,
    )
)
def test_gaps_are_the_time_in_which_no_call_is_due(spans: list[tuple[int, int]]) -> None:
    calls = [call("a", i, float(begin), float(end - begin)) for i, (begin, end) in enumerate(spans)]
    (result,) = session_results(run(calls), planned_calls([run(calls)]))
    first, last = min(begin for begin, _ in spans), max(end for _, end in spans)
    idle = sum(
        not any(begin <= second < end for begin, end in spans) for second in range(first, last)
    )
    assert result.gap == idle


def test_a_failed_call_leaves_no_completion() -> None:
    done = run([call("a", 0, 0.0, 1.0), call("a", 1, 2.0, 1.0, error="502")])
    (result,) = session_results(done, planned_calls([done]))
    assert (result.sct, result.calls, result.failed) == (None, 1, 1)


def test_warmup_counts_nowhere() -> None:
    done = run([call("w", 0, 0.0, 50.0, warmup=True), call("a", 0, 60.0, 1.0)])
    results = session_results(done, planned_calls([done]))
    assert [(one.session, one.sct) for one in results] == [("a", 1.0)]


def test_a_session_cut_short_is_whole_only_if_its_plan_says_so() -> None:
    cut = run(
        [call("a", 0, 0.0, 1.0), call("b", 0, 0.0, 1.0)],
        complete=False,
        planned={"a": 1, "b": 2, "c": 3},
    )
    results = {one.session: one for one in session_results(cut, planned_calls([cut]))}
    assert results["a"].sct == 1.0
    assert results["b"].sct is None
    assert (results["c"].calls, results["c"].sct) == (0, None)


def test_a_complete_run_tells_the_plan_of_a_cut_one() -> None:
    cut = run([call("a", 0, 0.0, 1.0), call("b", 0, 0.0, 1.0)], complete=False)
    whole = run([call("a", 0, 0.0, 2.0), call("b", 0, 0.0, 1.0), call("b", 1, 2.0, 1.0)])
    known = session_results(cut, planned_calls([cut, whole]))
    assert [one.sct for one in known] == [1.0, None]
    alone = session_results(cut, planned_calls([cut]))
    assert [one.sct for one in alone] == [None, None]


def test_plans_of_other_seeds_do_not_count() -> None:
    cut = run([call("a", 0, 0.0, 1.0)], complete=False, seed=2)
    whole = run([call("a", 0, 0.0, 1.0)], seed=1)
    (result,) = session_results(cut, planned_calls([cut, whole]))
    assert result.sct is None


def test_parts_add_up_over_calls_and_are_unknown_if_one_does_not_say() -> None:
    parts = Parts(slot=1.0, decode=2.0)
    told = run([call("a", i, float(i), 1.0, parts=msgspec.to_builtins(parts)) for i in range(3)])
    (result,) = session_results(told, planned_calls([told]))
    assert result.parts == Parts(slot=3.0, decode=6.0)
    silent = run([*told.calls, call("a", 3, 9.0, 1.0)])
    (result,) = session_results(silent, planned_calls([silent]))
    assert result.parts is None


@pytest.mark.parametrize("shape", ["all-on", "round-only"])
def test_a_whole_run_against_a_slow_count(run_maker: Callable[..., Run], shape: str) -> None:
    made = run_maker(shape, sessions=6)
    for result in session_results(made, planned_calls([made])):
        mine = [one for one in made.calls if one.session == result.session]
        assert result.sct == mine[-1].finished - mine[0].intended
        assert result.parts is not None
        total = sum(msgspec.structs.astuple(result.parts)) + result.gap
        assert result.sct == pytest.approx(total)
        assert result.bound == made.info.bound[result.session]
