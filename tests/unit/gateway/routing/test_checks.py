"""The health check before a lease is honoured that nothing fresh speaks for (Talaria 4.1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from alipes.gateway.routing.decision import Placement, Reason, RejectKind, RouterSettings, Wait
from alipes.gateway.routing.leases import LeaseCounts
from alipes.instance.contract import Load, Pool, Tier

SECOND = 1_000_000_000
SILENT = 4 * SECOND
Stage = Any
Keys = Callable[[int, int], tuple[bytes, ...]]
SETTINGS = RouterSettings(lease_seconds=60.0, queue_timeout=10.0)


def leave(stage: Stage, keys: Keys, sessions: int = 1) -> Stage:
    """Sessions have finished a call on ``x``; nothing is heard of it for four seconds, while ``y``
    is well."""
    for number in range(sessions):
        stage.show("y", loads={"a": Load(1, 9000, 0, 0, 0)})
        first = stage.call(branch=bytes([number]), prompt=300, keys=keys(number, 4))
        assert stage.place(first).instance == "x"
        stage.stored("x", keys(number, 5), Tier.HOST)
        stage.finish(first, keys(number, 5)[-1], 5)
        stage.show("x", "a", last_call=first.call_id)
    stage.now = SILENT
    stage.show("y", "a")
    return stage


@pytest.fixture
def left(stage: Callable[..., Stage], keys: Keys) -> Stage:
    return leave(stage(SETTINGS), keys, sessions=3)


def back(stage: Stage, keys: Keys, number: int = 0) -> Any:
    known = {"prompt": 700, "known": 320, "keys": keys(number, 10)}
    return stage.call(branch=bytes([number]), **known)


def asked(stage: Stage, call: Any) -> Wait:
    answer = stage.router.place(call, stage.now)
    assert isinstance(answer, Wait), answer
    assert (answer.reason, answer.probe) == (Reason.CHECK, "x")
    assert stage.router.retry(stage.now) == []
    return answer


def test_an_old_state_is_no_obstacle_while_beats_come(left: Stage, keys: Keys) -> None:
    left.now = 9 * SECOND
    left.router.beat("x", left.now - SECOND)
    placement = left.place(back(left, keys))
    assert (placement.instance, placement.reason) == ("x", Reason.LEASE)


def test_missed_beats_that_do_not_count_yet_are_not_asked_about(left: Stage, keys: Keys) -> None:
    left.now = 2 * SECOND
    assert left.place(back(left, keys)).reason is Reason.LEASE


def test_a_session_waits_for_a_sign_of_life_and_goes_where_its_place_is(
    left: Stage, keys: Keys
) -> None:
    call = back(left, keys)
    asked(left, call)
    assert left.router.status(left.now).queued == {"a": 1}
    assert left.router.status(left.now).leases == LeaseCounts(3, live=3)
    assert left.router.next_wakeup(left.now) == SILENT + SECOND
    left.now += SECOND // 2
    assert left.router.retry(left.now) == []
    left.router.beat("x", left.now)
    [placement] = left.router.retry(left.now)
    assert (placement.call_id, placement.instance) == (call.call_id, "x")
    assert placement.reason is Reason.LEASE
    assert left.router.status(left.now).queued == {}
    assert left.router.status(left.now).leases == LeaseCounts(3, consumed=1, live=2)
    assert left.router.next_wakeup(left.now) is None


def test_an_answer_in_the_same_instant_counts(left: Stage, keys: Keys) -> None:
    asked(left, back(left, keys))
    left.router.beat("x", left.now)
    [placement] = left.router.retry(left.now)
    assert placement.reason is Reason.LEASE


def test_without_an_answer_the_call_is_placed_anew(left: Stage, keys: Keys) -> None:
    asked(left, back(left, keys))
    left.now += SECOND
    left.show("y", "a")
    [placement] = left.router.retry(left.now)
    assert (placement.instance, placement.reason) == ("y", Reason.ACTIVE)
    assert left.router.status(left.now).leases == LeaseCounts(3, discarded=1, live=2)


def test_who_did_not_answer_is_not_asked_again_before_it_is_heard(left: Stage, keys: Keys) -> None:
    asked(left, back(left, keys))
    left.now += SECOND
    left.router.retry(left.now)
    assert left.place(back(left, keys, 1)).instance == "y"
    left.router.beat("x", left.now)
    assert left.place(back(left, keys, 2)).reason is Reason.LEASE


def test_all_who_wait_for_an_instance_go_when_one_check_fails(left: Stage, keys: Keys) -> None:
    asked(left, back(left, keys))
    left.now += SECOND // 2
    asked(left, back(left, keys, 1))
    left.now += SECOND // 2
    left.show("y", "a")
    answers = left.router.retry(left.now)
    assert [answer.instance for answer in answers] == ["y", "y"]


@pytest.mark.parametrize("event", ["disconnected", "drain"])
def test_an_instance_that_goes_is_not_waited_for(left: Stage, keys: Keys, event: str) -> None:
    asked(left, back(left, keys))
    getattr(left.router, event)("x", left.now)
    [placement] = left.router.retry(left.now)
    assert (placement.instance, placement.reason) == ("y", Reason.ACTIVE)
    assert left.router.status(left.now).leases.consumed == 0


def test_a_new_link_of_the_same_process_is_not_what_was_waited_for(left: Stage, keys: Keys) -> None:
    asked(left, back(left, keys))
    left.connect("x")
    left.stored("x", keys(0, 5), Tier.HOST)
    [placement] = left.router.retry(left.now)
    assert (placement.instance, placement.reason) == ("y", Reason.ACTIVE)


def test_kv_that_went_meanwhile_ends_the_lease(left: Stage, keys: Keys) -> None:
    asked(left, back(left, keys))
    left.removed("x", keys(0, 5)[-1:], Tier.HOST)
    left.router.beat("x", left.now)
    [placement] = left.router.retry(left.now)
    assert placement.reason is not Reason.LEASE
    assert left.router.status(left.now).leases == LeaseCounts(3, discarded=1, live=2)


def test_a_call_may_be_given_up_while_it_waits(left: Stage, keys: Keys) -> None:
    call = back(left, keys)
    asked(left, call)
    with pytest.raises(ValueError, match="placed or queued already"):
        left.router.place(call, left.now)
    left.router.released(call.call_id, left.now)
    left.router.released(call.call_id, left.now)
    assert left.router.status(left.now).queued == {}
    assert left.router.status(left.now).leases == LeaseCounts(3, discarded=1, live=2)
    left.router.beat("x", left.now)
    assert left.router.retry(left.now) == []


def test_a_call_without_room_after_a_check_waits_in_the_queue_from_then_on(
    stage: Callable[..., Stage], keys: Keys
) -> None:
    left = leave(stage(SETTINGS), keys)
    call = back(left, keys)
    asked(left, call)
    left.router.disconnected("y", left.now)
    left.now += SECOND
    assert left.router.retry(left.now) == []
    assert left.router.status(left.now).queued == {"a": 1}
    left.now += 10 * SECOND
    [refusal] = left.router.retry(left.now)
    assert (refusal.call_id, refusal.kind) == (call.call_id, RejectKind.TIMEOUT)
    assert left.router.next_wakeup(left.now) is None


def test_a_hot_instance_is_not_asked(stage: Callable[..., Stage], keys: Keys) -> None:
    left = leave(stage(SETTINGS, pool=Pool.HOT), keys)
    assert isinstance(left.router.place(back(left, keys), left.now), Placement)
    assert left.router.status(left.now).leases == LeaseCounts(1, consumed=1)
