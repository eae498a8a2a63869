import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alipes.replay.records import CallRecord, PlannedTotals
from alipes.replay.stats import nearest_rank, summarise


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50), st.floats(0, 100))
def test_nearest_rank_is_the_smallest_value_that_covers_the_percentage(
    values: list[float], percent: float
) -> None:
    found = nearest_rank(values, percent)
    covered = [v for v in values if sum(w <= v for w in values) >= percent / 100 * len(values)]
    assert found == min(covered)


def test_nearest_rank_by_hand() -> None:
    values = [float(value) for value in range(20, 0, -1)]
    assert nearest_rank(values, 50) == 10
    assert nearest_rank(values, 95) == 19
    assert nearest_rank(values, 100) == 20
    assert nearest_rank([7.0], 5) == 7
    assert nearest_rank([], 50) is None


def record(
    session: str, index: int, intended: float, finished: float, **more: object
) -> CallRecord:
    fields: dict[str, object] = {
        "session": session,
        "request_id": f"{session}.{index}",
        "model": "m",
        "index": index,
        "gap": 0.0,
        "intended": intended,
        "sent": intended,
        "finished": finished,
        "expected_tokens": 4,
        "ttft": 0.5,
        "completion_tokens": 4,
        "prompt_tokens": 10,
        "cached_tokens": 5,
    }
    return CallRecord(**(fields | more))  # type: ignore[arg-type]


def test_session_completion_time_spans_first_enqueue_to_last_completion() -> None:
    planned = [PlannedTotals("a", "m", 2, 1.0), PlannedTotals("b", "m", 2, 0.5)]
    records = [
        record("a", 0, 1.0, 2.0, ttft=0.25),
        record("b", 0, 1.0, 3.0, completion_tokens=3),
        record("a", 1, 4.0, 7.5),
        record("b", 1, 5.0, 6.0, error="429: full", ttft=None, completion_tokens=None),
    ]
    summary = summarise(planned, records, complete=True, token_counts="exact")
    a, b = summary.sessions
    assert (a.sct, a.calls, a.failed, a.prompt_tokens, a.cached_tokens) == (6.5, 2, 0, 20, 10)
    assert (b.sct, b.calls, b.failed, b.error, b.shortened) == (None, 1, 1, "429: full", 0.5)
    (model,) = summary.models
    assert (model.complete, model.sessions, model.failed, model.other_length) == (1, 2, 1, 1)
    assert (model.ttft_p50, model.ttft_p95) == (0.5, 0.5)
    assert math.isclose(a.ttft_p50 or 0, 0.25)
    assert summary.failed == 1
    assert summary.errors == {"429: full": 1}


def test_an_interrupted_session_has_no_completion_time() -> None:
    planned = [PlannedTotals("a", "m", 3, 1.0)]
    summary = summarise(planned, [record("a", 0, 0.0, 1.0)], complete=False, token_counts="exact")
    assert summary.sessions[0].sct is None
    assert not summary.complete


@pytest.mark.parametrize("models", [("m",), ("m", "n")])
def test_all_models_together_have_a_row_when_there_are_several(models: tuple[str, ...]) -> None:
    planned = [PlannedTotals(model, model, 1, 1.0) for model in models]
    names = [row.model for row in summarise(planned, [], False, "exact").models]
    assert names == [*models, *(["all"] if len(models) > 1 else [])]
