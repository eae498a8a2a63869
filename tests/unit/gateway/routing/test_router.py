"""Placement: conditions, reasons, overload, and what comes back when instances go."""

from __future__ import annotations

import pytest
from msgspec import structs

from alipes.gateway.routing.decision import (
    CallShape,
    Completion,
    Placement,
    Reason,
    Reject,
    RejectKind,
    RouterSettings,
    Wait,
    Why,
)
from alipes.gateway.routing.overlay import without
from alipes.gateway.routing.router import Router
from alipes.instance.contract import (
    Counters,
    Estimate,
    Hello,
    Load,
    ModelReport,
    Occupancy,
    Pool,
    Snapshot,
    Targets,
)

SECOND = 1_000_000_000
COST = Estimate(0.01, 0.001, 0.0, 0.02, 0.005, 0.0, 0.5, 0.0, 0.0, 9)
KNOWN = {"a": frozenset({"hot", "cold"}), "b": frozenset({"cold"})}


def hello(name: str, *models: str, kv_blocks: int = 500, max_waiting: int = 8) -> Hello:
    reports = tuple(ModelReport(m, "kv", 8192, 100, 1, 1, kv_blocks) for m in models)
    return Hello(
        1, name, name, Pool.COLD, "fake", "cpu", 64, 4, max_waiting, 512, Targets(), reports, 1
    )


def snapshot(
    version: int = 1,
    active: str = "a",
    loads: dict[str, Load] | None = None,
    draining: bool = False,
    last_call: bytes = b"",
) -> Snapshot:
    return Snapshot(
        version,
        active,
        "idle",
        0.0,
        0.0,
        draining,
        loads or {},
        {"a": COST, "b": COST},
        Occupancy(0, 0, 0, 0, 0, 0),
        Counters(),
        last_call,
    )


def call(number: int, model: str = "a", prompt: int = 100, output: int = 50) -> CallShape:
    return CallShape(number.to_bytes(16, "big"), model, "tenant", prompt, output)


@pytest.fixture
def router() -> Router:
    """Both instances are up; ``a`` is active on both."""
    router = Router(KNOWN, RouterSettings(queue_depth=2, queue_timeout=10.0))
    router.connected(hello("hot", "a"), 0)
    router.connected(hello("cold", "a", "b"), 0)
    router.updated("hot", snapshot(), 0)
    router.updated("cold", snapshot(), 0)
    return router


def placed(answer: object) -> Placement:
    assert isinstance(answer, Placement), answer
    return answer


def waiting(answer: object) -> Wait:
    assert isinstance(answer, Wait), answer
    return answer


def rejected(answer: object) -> Reject:
    assert isinstance(answer, Reject), answer
    return answer


def busy(version: int = 2) -> Snapshot:
    """Four long answers run, and seven seconds of prefill wait."""
    return snapshot(version, loads={"a": Load(4, 7000, 4, 400, 4000)})


def test_the_only_instance_of_a_model_gets_its_call(router: Router) -> None:
    placement = placed(router.place(call(1, "b"), 0))
    assert (placement.instance, placement.reason) == ("cold", Reason.ONLY)
    [candidate] = placement.candidates
    assert candidate.activation == COST.switch
    assert candidate.prefill == pytest.approx(0.01 + 100 * 0.001)
    parts = candidate.queue + candidate.prefill + candidate.decode
    assert candidate.total == pytest.approx(parts + candidate.recovery + candidate.activation)


def test_least_cost_wins_and_the_overlay_spreads_a_burst(router: Router) -> None:
    answers = [placed(router.place(call(n), 0)) for n in range(2)]
    assert {answer.instance for answer in answers} == {"hot", "cold"}
    assert answers[0].reason is Reason.LEAST_COST


def test_an_active_model_beats_a_switch(router: Router) -> None:
    router.updated("cold", snapshot(2, active="b"), 0)
    placement = placed(router.place(call(1), 0))
    assert (placement.instance, placement.reason) == ("hot", Reason.ACTIVE)


def test_of_equals_the_one_goes_first_that_pushes_no_model_out() -> None:
    both = {model: frozenset({"one", "two"}) for model in "ab"}
    router = Router(both)
    for name, active in (("one", "a"), ("two", "")):
        router.connected(hello(name, "a", "b"), 0)
        router.updated(name, snapshot(active=active), 0)
    placement = placed(router.place(call(1, "b"), 0))
    assert placement.instance == "two"
    assert len({candidate.total for candidate in placement.candidates}) == 1


def test_a_switch_beats_a_long_queue(router: Router) -> None:
    router.updated("hot", snapshot(2, loads={"a": Load(2, 4000, 1, 10, 10)}), 0)
    router.updated("cold", snapshot(2, active="b"), 0)
    placement = placed(router.place(call(1), 0))
    assert (placement.instance, placement.reason) == ("cold", Reason.SWITCH)


def test_a_cheaper_instance_without_room_is_told_as_spill(router: Router) -> None:
    router.updated("hot", snapshot(2, loads={"a": Load(8, 8, 0, 0, 0)}), 0)
    slow = Load(1, 6000, 1, 100, 3000)
    router.updated("cold", snapshot(2, loads={"a": slow}), 0)
    placement = placed(router.place(call(1), 0))
    assert (placement.instance, placement.reason) == ("cold", Reason.SPILL)
    assert {c.instance: c.why for c in placement.candidates} == {"cold": Why.OK, "hot": Why.FULL}


@pytest.mark.parametrize(("why", "seconds"), [(Why.SILENT, 3.5), (Why.STALE, 6.0)])
def test_unfit_instances_get_no_new_calls(router: Router, why: Why, seconds: float) -> None:
    now = int(seconds * SECOND)
    if why is Why.STALE:
        router.beat("cold", now)
    answer = waiting(router.place(call(1, "b"), now))
    assert answer.reason is Reason.NO_INSTANCE
    assert [c.why for c in answer.candidates] == [why]


def test_a_fresh_state_lets_a_silent_instance_serve_again(router: Router) -> None:
    waiting(router.place(call(1, "b"), 9 * SECOND))
    assert router.retry(9 * SECOND) == []
    router.updated("cold", snapshot(2), 9 * SECOND)
    [placement] = router.retry(9 * SECOND)
    assert placed(placement).instance == "cold"


def test_a_beat_ends_silence_while_the_state_is_young(router: Router) -> None:
    now = 4 * SECOND
    waiting(router.place(call(1, "b"), now))
    assert router.retry(now) == []
    router.beat("cold", now)
    assert placed(router.retry(now)[0]).instance == "cold"


def test_an_instance_that_says_it_drains_is_left_alone(router: Router) -> None:
    router.updated("cold", snapshot(2, draining=True), 0)
    placement = placed(router.place(call(1, "a"), 0))
    assert {c.instance: c.why for c in placement.candidates}["cold"] is Why.DRAINING
    assert rejected(router.place(call(2, "b"), 0)).kind is RejectKind.DRAINING
    assert not router.drain("nobody", 0)


def test_an_older_state_is_ignored(router: Router) -> None:
    router.updated("cold", snapshot(7, active="b"), 0)
    router.updated("cold", snapshot(6, active="a"), 0)
    [cold] = [i for i in router.status(0).instances if i.name == "cold"]
    assert cold.active_model == "b"


def test_a_model_without_estimate_is_not_served_there(router: Router) -> None:
    shown = snapshot(2)
    del shown.estimates["b"]
    router.updated("cold", shown, 0)
    assert waiting(router.place(call(1, "b"), 0)).candidates[0].why is Why.NO_ESTIMATE


def test_unknown_models_and_misfits_are_refused_with_what_would_do(router: Router) -> None:
    unknown = rejected(router.place(call(1, "z"), 0))
    assert (unknown.kind, unknown.retry_after) == (RejectKind.UNKNOWN_MODEL, 0)
    assert "known: a, b" in unknown.reason
    large = rejected(router.place(call(2, "b", prompt=8000, output=193), 0))
    assert large.kind is RejectKind.TOO_LARGE
    assert "exceed the context of 8192 tokens of b" in large.reason


def test_what_fits_one_instance_only_goes_there_or_waits_for_it() -> None:
    router = Router(KNOWN)
    router.connected(hello("hot", "a", kv_blocks=2), 0)
    router.updated("hot", snapshot(), 0)
    # 129 places: the last token drawn needs none.
    assert placed(router.place(call(1, prompt=100, output=29), 0)).instance == "hot"
    assert waiting(router.place(call(2, prompt=100, output=30), 0)).reason is Reason.NO_INSTANCE
    router.connected(hello("cold", "a", "b"), 0)
    router.updated("cold", snapshot(), 0)
    assert placed(router.retry(0)[0]).instance == "cold"
    router.disconnected("cold", 0)
    waiting(router.place(call(3, prompt=100, output=30), 0))
    router.connected(hello("cold", "a", "b", kv_blocks=2), 0)
    assert rejected(router.retry(0)[0]).kind is RejectKind.TOO_LARGE


def test_the_round_bound_and_the_memory_check_make_calls_wait(router: Router) -> None:
    router.updated("hot", busy(), 0)
    router.updated("cold", snapshot(2, loads={"a": Load(0, 0, 4, 30_000, 4000)}), 0)
    answer = waiting(router.place(call(1, prompt=1000, output=2000), 0))
    whys = {c.instance: c.why for c in answer.candidates}
    assert answer.reason is Reason.BUSY
    assert whys == {"hot": Why.ROUND, "cold": Why.MEMORY}


def test_a_small_call_does_not_pass_one_of_its_model_that_waits(router: Router) -> None:
    router.disconnected("hot", 0)
    router.updated("cold", snapshot(2, loads={"a": Load(0, 0, 1, 28_000, 50)}), 0)
    assert waiting(router.place(call(1, prompt=4000), 0)).reason is Reason.BUSY
    answer = waiting(router.place(call(2, prompt=10), 0))
    assert (answer.reason, answer.candidates) == (Reason.BEHIND, ())
    router.updated("cold", snapshot(3), 0)
    assert [placed(one).call_id[-1] for one in router.retry(0)] == [1, 2]


def test_an_idle_instance_takes_a_prompt_that_exceeds_any_round() -> None:
    slow = Estimate(1.0, 0.1, 0.0, 0.4, 0.2, 0.0, 9.0, 0.0, 0.0, 1)
    router = Router({"b": frozenset({"cold"})})
    router.connected(hello("cold", "a", "b"), 0)
    shown = snapshot()
    shown.estimates.update(a=slow, b=slow)
    router.updated("cold", shown, 0)
    candidate = placed(router.place(call(1, "b", prompt=8000), 0)).candidates[0]
    assert candidate.prefill == pytest.approx(16 * 1.0 + 8000 * 0.1)


def test_a_long_prompt_counts_as_chunks_while_others_run(router: Router) -> None:
    """8,000 tokens are 8.2 s, more than a round; a chunk of 512 is 0.5 s and goes in."""
    router.disconnected("hot", 0)
    router.updated("cold", snapshot(2, active="b", loads={"b": Load(0, 0, 1, 100, 100)}), 0)
    candidate = placed(router.place(call(1, "a", prompt=8000), 0)).candidates[-2]
    assert candidate.instance == "cold"
    assert candidate.round_length < 0.8 * 10
    assert candidate.queue > 0


def test_a_full_queue_answers_with_a_prediction(router: Router) -> None:
    router.updated("hot", busy(), 0)
    router.updated("cold", busy(), 0)
    for number in range(2):
        waiting(router.place(call(number, prompt=3000), 0))
    refusal = rejected(router.place(call(3, prompt=3000), 0))
    assert refusal.kind is RejectKind.OVERLOADED
    # Two batches of 1000 steps of 40 ms are more than the queue's own timeout.
    assert refusal.retry_after == 10.0
    assert "2 calls wait already" in refusal.reason


def test_retry_after_is_the_shortest_backlog(router: Router) -> None:
    router.updated("hot", snapshot(2, loads={"a": Load(8, 2400, 0, 0, 0)}), 0)
    router.updated("cold", busy(), 0)
    for number in range(2):
        waiting(router.place(call(number, prompt=3000), 0))
    assert rejected(router.place(call(3, prompt=3000), 0)).retry_after == 3.0


def test_a_queued_call_times_out_at_its_wakeup(router: Router) -> None:
    router.disconnected("cold", 0)
    waiting(router.place(call(1, "b"), SECOND))
    assert router.next_wakeup(SECOND) == 9 * SECOND, "its model is late then"
    assert router.retry(9 * SECOND) == []
    wakeup = router.next_wakeup(9 * SECOND)
    assert wakeup == 11 * SECOND
    assert router.retry(wakeup - 1) == []
    [refusal] = router.retry(wakeup)
    assert rejected(refusal).kind is RejectKind.TIMEOUT
    assert rejected(refusal).reason.endswith("within 10 s: cold is down")
    assert router.next_wakeup(wakeup) is None


def test_a_model_whose_instances_all_drain_is_refused_at_once(router: Router) -> None:
    router.updated("cold", busy(), 0)
    queued = call(1, "b", prompt=3000)
    waiting(router.place(queued, 0))
    router.drain("cold", 0)
    [refusal] = router.retry(0)
    for refused in (rejected(refusal), rejected(router.place(call(2, "b"), 0))):
        assert refused.kind is RejectKind.DRAINING
        assert refused.reason == "b is not served now: cold drained"
    placed(router.place(call(3, "a"), 0))
    router.disconnected("cold", 0)
    waiting(router.place(call(4, "b"), 0))


def test_calls_of_a_lost_instance_come_back_once(router: Router) -> None:
    ids = {call(n, "b").call_id for n in range(2)}
    for number in range(2):
        placed(router.place(call(number, "b"), 0))
    assert set(router.disconnected("cold", 0)) == ids
    assert router.disconnected("cold", 0) == ()
    router.released(call(0, "b").call_id, 0)
    again = waiting(router.place(call(0, "b"), 0))
    assert [c.why for c in again.candidates] == [Why.DOWN]


def test_a_new_process_takes_the_place_of_the_old(router: Router) -> None:
    placed(router.place(call(1, "b"), 0))
    assert router.connected(hello("cold", "a", "b"), 0) == (call(1).call_id,)
    assert waiting(router.place(call(1, "b"), 0)).candidates[0].why is Why.NO_STATE
    router.updated("cold", snapshot(1), 0)
    assert placed(router.retry(0)[0]).call_id == call(1).call_id


def test_a_call_that_ended_counts_no_longer_though_the_state_still_shows_it(
    router: Router,
) -> None:
    first = placed(router.place(call(1), 0))
    one = {"a": Load(0, 0, 1, 900, 400)}
    router.updated(first.instance, snapshot(2, loads=one, last_call=call(1).call_id), 0)
    router.released(call(1).call_id, 0)
    again = placed(router.place(call(2), 0))
    before, after = (
        next(c for c in p.candidates if c.instance == first.instance) for p in (first, again)
    )
    assert after.total == before.total
    # The next state is taken at its word.
    router.updated(first.instance, snapshot(3, loads=one), 0)
    third = placed(router.place(call(3), 0))
    shown = next(c for c in third.candidates if c.instance == first.instance)
    assert shown.total > before.total


@pytest.mark.parametrize(
    ("calls", "left"),
    [
        (0, Load(2, 300, 4, 400, 80)),
        (1, Load(2, 300, 3, 300, 60)),
        (4, Load(2, 300, 0, 0, 0)),
        (5, Load(1, 150, 0, 0, 0)),
        (9, Load(0, 0, 0, 0, 0)),
    ],
)
def test_ended_calls_leave_a_load_from_those_that_run_on(calls: int, left: Load) -> None:
    assert without(Load(2, 300, 4, 400, 80), calls) == left


def test_what_the_last_call_still_had_to_prefill_goes_with_it() -> None:
    assert without(Load(0, 300, 1, 400, 80), 1) == Load()


def test_a_state_shows_the_calls_up_to_its_last(router: Router) -> None:
    for number in range(3):
        placed(router.place(call(number, "b"), 0))
    router.updated("cold", snapshot(2, last_call=call(1).call_id), 0)
    assert [i.unseen for i in router.status(0).instances] == [1, 0]
    router.started(call(2).call_id, 0)
    assert router.status(0).instances[0].unseen == 1
    router.updated("cold", snapshot(3), 0)
    assert router.status(0).instances[0].unseen == 0
    assert router.status(0).instances[0].placed == 3


def test_tenants_take_turns_in_the_queue(router: Router) -> None:
    router = Router({"b": frozenset({"cold"})})
    order = ["one", "one", "one", "two"]
    for number, tenant in enumerate(order):
        shape = CallShape(number.to_bytes(16, "big"), "b", tenant, 10, 10)
        waiting(router.place(shape, number))
    router.connected(hello("cold", "b"), 9)
    router.updated("cold", snapshot(), 9)
    answers = [int.from_bytes(answer.call_id, "big") for answer in router.retry(9)]
    assert answers == [0, 3, 1, 2]


def test_a_call_that_had_begun_goes_first_and_is_never_refused(router: Router) -> None:
    """Two calls wait, as many as may; one that lost its instance comes back."""
    router.disconnected("cold", 0)
    for number in (1, 2):
        waiting(router.place(call(number, "b"), number))
    assert rejected(router.place(call(3, "b"), 3)).kind is RejectKind.OVERLOADED
    again = [structs.replace(call(number, "b"), begun=True) for number in (4, 5)]
    for moment, one in enumerate(again):
        waiting(router.place(one, 4 + moment))
    router.connected(hello("cold", "a", "b"), 9)
    router.updated("cold", snapshot(), 9)
    assert [placed(one).call_id[-1] for one in router.retry(9)] == [4, 5, 1, 2]


def test_a_call_that_had_begun_does_not_wait_behind_those_that_have_not(router: Router) -> None:
    router.disconnected("hot", 0)
    router.updated("cold", snapshot(2, loads={"a": Load(0, 0, 1, 28_000, 50)}), 0)
    assert waiting(router.place(call(1, prompt=4000), 0)).reason is Reason.BUSY
    assert waiting(router.place(call(2, prompt=10), 0)).reason is Reason.BEHIND
    placed(router.place(structs.replace(call(3, prompt=10), begun=True), 0))


def test_lengths_of_finished_calls_are_what_the_router_expects(router: Router) -> None:
    placed(router.place(call(1, "b", output=1000), 0))
    router.complete(call(1).call_id, 0, Completion(10))
    router.updated("cold", snapshot(2), 0)
    candidate = placed(router.place(call(2, "b", output=1000), 0)).candidates[0]
    assert candidate.decode == pytest.approx(10 * 0.025)


def test_a_call_cannot_be_placed_twice(router: Router) -> None:
    router.place(call(1), 0)
    with pytest.raises(ValueError, match="placed or queued already"):
        router.place(call(1), 0)


def test_status_says_which_models_are_served(router: Router) -> None:
    assert router.status(0).ready
    router.disconnected("cold", 0)
    status = router.status(0)
    assert (status.ready, status.models) == (False, {"a": True, "b": False})
    waiting(router.place(call(1, "b"), 0))
    assert router.status(0).queued == {"b": 1}


def test_the_longest_call_is_that_of_the_roomiest_instance() -> None:
    router = Router(KNOWN)
    assert router.longest_call("a") is None
    router.connected(hello("hot", "a", kv_blocks=3), 0)
    assert router.longest_call("a", 3 * 64) == 3 * 64 + 1
    assert router.longest_call("a", 3 * 64 + 1) is None, "the other has not told yet"
    router.connected(hello("cold", "a", "b", kv_blocks=2), 0)
    assert router.longest_call("a") == router.longest_call("a", 8192) == 3 * 64 + 1
    assert router.longest_call("b") == 2 * 64 + 1
    assert router.longest_call("c") is None
    router.disconnected("hot", 1)
    assert router.longest_call("a") == 2 * 64 + 1, "of those that are there"
    assert router.longest_call("a", 2 * 64 + 1) == 3 * 64 + 1
    router.connected(hello("hot", "a", kv_blocks=900), 2)
    assert router.longest_call("a") == 8192
