"""Leases as Algorithm 1 has them: consumed, discarded, installed after completion, expired."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from alipes.gateway.routing.decision import Placement, Reason, RouterSettings, Wait
from alipes.gateway.routing.leases import LeaseCounts
from alipes.instance.contract import Load, Pool, Tier

SECOND = 1_000_000_000
Stage = Any
Keys = Callable[[int, int], tuple[bytes, ...]]


@pytest.fixture
def left(stage: Callable[..., Stage], keys: Keys) -> Stage:
    """A branch's first call has finished on ``x``, five blocks of its KV are there; ``y`` would
    be cheaper for a new call."""
    stage = stage(RouterSettings(lease_seconds=1.0))
    return leave(stage, keys)


def leave(stage: Stage, keys: Keys) -> Stage:
    stage.show("y", loads={"a": Load(1, 9000, 0, 0, 0)})
    first = stage.call(branch=b"s", prompt=300, keys=keys(1, 4))
    assert stage.place(first).instance == "x"
    stage.stored("x", keys(1, 5))
    stage.finish(first, keys(1, 5)[-1], 5)
    stage.show("x", "b", {"b": Load(2, 3000, 0, 0, 0)}, last_call=first.call_id)
    stage.show("y", "a")
    return stage


def back(stage: Stage, chain: Keys, **more: Any) -> Any:
    given = {"branch": b"s", "prompt": 700, "known": 320, "keys": chain(1, 10), **more}
    return stage.call(**given)


def test_a_live_lease_is_consumed_and_wins(left: Stage, keys: Keys) -> None:
    assert left.router.lease_of(b"s", 0).instance == "x"
    placement = left.place(back(left, keys))
    assert (placement.instance, placement.reason) == ("x", Reason.LEASE)
    [candidate] = placement.candidates
    assert candidate.device_tokens == 320
    assert left.router.lease_of(b"s", 0) is None
    assert left.router.status(0).leases == LeaseCounts(installed=1, consumed=1)


def test_an_expired_lease_does_not_count(left: Stage, keys: Keys) -> None:
    left.now = SECOND
    assert left.router.lease_of(b"s", left.now) is None
    assert left.place(back(left, keys)).reason is not Reason.LEASE
    assert left.router.status(left.now).leases == LeaseCounts(installed=1, expired=1)


def test_the_successor_comes_with_completion_only(left: Stage, keys: Keys) -> None:
    again = back(left, keys)
    left.place(again)
    left.now = SECOND // 2
    assert left.router.lease_of(b"s", left.now) is None
    left.finish(again, keys(1, 11)[-1], 11)
    successor = left.router.lease_of(b"s", left.now)
    assert (successor.expires, successor.prefix_tokens) == (left.now + SECOND, 704)


def discarded(stage: Stage, call: Any) -> bool:
    placement = stage.router.place(call, stage.now)
    counts = stage.router.status(stage.now).leases
    return placement.reason is not Reason.LEASE and counts == LeaseCounts(1, 0, 0, 1, 0)


def test_kv_that_went_ends_the_lease(left: Stage, keys: Keys) -> None:
    left.removed("x", keys(1, 5)[-1:])
    assert discarded(left, back(left, keys))


def test_kv_on_the_host_is_as_good(left: Stage, keys: Keys) -> None:
    left.stored("x", keys(1, 5), Tier.HOST)
    left.removed("x", keys(1, 5))
    placement = left.place(back(left, keys))
    assert (placement.reason, placement.candidates[0].host_tokens) == (Reason.LEASE, 320)


def test_only_what_the_new_prompt_shares_must_be_there(left: Stage, keys: Keys) -> None:
    """The reply reads differently in the next prompt: three blocks are common."""
    left.removed("x", keys(1, 5)[3:])
    prompt = keys(1, 3) + keys(9, 7)
    assert left.place(back(left, keys, keys=prompt, known=200)).reason is Reason.LEASE


@pytest.mark.parametrize(
    "changed",
    [{"keys": None}, {"known": 63, "keys": (b"k",) * 10}, {"prompt": 60, "keys": ()}],
    ids=["no path", "rewritten", "shorter than a block"],
)
def test_nothing_shared_or_proven_ends_the_lease(
    left: Stage, keys: Keys, changed: dict[str, Any]
) -> None:
    assert discarded(left, back(left, keys, **changed))


def test_the_prefix_itself_may_come_again(left: Stage, keys: Keys) -> None:
    """320 tokens again: four blocks count, the fifth holds the token that is computed."""
    assert left.place(back(left, keys, prompt=320, keys=keys(1, 5))).reason is Reason.LEASE


def test_a_call_that_does_not_fit_ends_the_lease(left: Stage, keys: Keys) -> None:
    left.serves["x"] = "a"
    call = back(left, keys, output=3000 * 64)
    answer = left.router.place(call, 0)
    assert answer.reason == f"prompt of 700 and output of {3000 * 64} tokens exceed " + (
        "the KV memory of 192001 tokens of a"
    )
    assert left.router.lease_of(b"s", 0) is not None


@pytest.mark.parametrize("how", ["drain", "state"])
def test_a_draining_instance_is_not_healthy(left: Stage, keys: Keys, how: str) -> None:
    if how == "drain":
        left.router.drain("x", 0)
    else:
        left.show("x", draining=True)
    assert discarded(left, back(left, keys))


@pytest.mark.parametrize("incarnation", ["first", "second"])
def test_a_new_link_or_process_starts_clean(left: Stage, keys: Keys, incarnation: str) -> None:
    left.connect("x", incarnation)
    assert left.router.lease_of(b"s", 0) is None
    left.show("x", "a")
    left.show("y", loads={"b": Load(1, 9000, 0, 0, 0)})
    placement = left.place(back(left, keys))
    assert placement.reason is not Reason.LEASE
    assert placement.candidates[0].device_tokens == 0
    left.stored("x", keys(1, 5))
    assert left.candidates(back(left, keys))["x"].device_tokens == 320


@pytest.mark.parametrize("changed", [{"final": True}, {"branch": b""}], ids=["final", "no branch"])
def test_no_lease_where_no_return_is_expected(
    stage: Callable[..., Stage], keys: Keys, changed: dict[str, Any]
) -> None:
    stage = stage()
    call = stage.call(**{"branch": b"s", "keys": keys(1, 1), **changed})
    stage.place(call)
    stage.finish(call, keys(1, 2)[-1], 2)
    assert stage.router.status(0).leases == LeaseCounts()


def test_no_lease_without_prefix_or_duration_nor_for_given_up_calls(
    stage: Callable[..., Stage], keys: Keys
) -> None:
    prefixless, off = stage(), stage(RouterSettings(lease_seconds=0.0))
    for one, prefix in ((prefixless, b""), (off, b"k")):
        call = one.call(branch=b"s")
        one.place(call)
        one.finish(call, prefix, len(prefix))
        given_up = one.call(branch=b"s")
        one.place(given_up)
        one.router.released(given_up.call_id, 0)
        one.finish(given_up, b"k", 1)
        assert one.router.status(0).leases == LeaseCounts()


def test_no_lease_on_an_instance_that_is_gone_or_going(
    stage: Callable[..., Stage], keys: Keys
) -> None:
    for event in ("disconnected", "drain"):
        here = stage()
        call = here.call(branch=b"s")
        name = here.place(call).instance
        getattr(here.router, event)(name, 0)
        here.finish(call, b"k", 1)
        assert here.router.status(0).leases == LeaseCounts()


def test_calls_of_one_branch_at_once_leave_one_lease(left: Stage, keys: Keys) -> None:
    both = [back(left, keys), back(left, keys)]
    reasons = [left.place(call).reason for call in both]
    assert reasons.count(Reason.LEASE) == 1
    for call in both:
        left.finish(call, keys(1, 6)[-1], 6)
    assert left.router.status(0).leases == LeaseCounts(3, consumed=1, discarded=1, live=1)


def test_unrelated_arrivals_are_charged_the_lease_and_its_branch_is_not(
    left: Stage, keys: Keys
) -> None:
    again = back(left, keys)
    candidate = left.place(again).candidates[0]
    unit = candidate.prefill + candidate.recovery
    left.finish(again)
    left.show("x", "a", last_call=again.call_id)
    stranger, own = left.call(prompt=10), left.call(branch=b"s", prompt=10)
    free = left.candidates(stranger)["x"]
    left.router.place(again, 0)
    left.finish(again, keys(1, 5)[-1], 5)
    left.show("x", "a", last_call=again.call_id)
    assert left.router.lease_of(b"s", 0).charge == pytest.approx(unit)
    assert left.candidates(stranger)["x"].queue - free.queue == pytest.approx(unit)
    assert left.candidates(own)["x"].queue == pytest.approx(free.queue)


def test_a_queued_call_is_not_charged_what_is_held_for_its_own_branch(
    stage: Callable[..., Stage], keys: Keys
) -> None:
    """Three calls of a branch at once: the first leaves a lease of 7.2 s while the last waits
    behind the second."""
    here = stage(RouterSettings(lease_seconds=9.0), serves={"x": "a"})
    first = here.call(branch=b"s", prompt=7060, known=10)
    here.place(first)
    here.show("x", "a", {"a": Load(1, 7060, 1, 10, 10)}, last_call=first.call_id)
    last, other = here.call(branch=b"s", prompt=400), here.call(prompt=400)
    assert isinstance(here.router.place(last, 0), Wait)
    assert isinstance(here.router.place(other, 0), Wait)
    here.finish(first, keys(1, 110)[-1], 110)
    here.show("x", "a", {"a": Load(0, 0, 1, 10, 10)}, last_call=first.call_id)
    assert here.router.lease_of(b"s", 0) is not None
    [placement] = here.router.retry(0)
    assert placement.call_id == last.call_id


def test_a_hot_instance_is_charged_and_no_more(stage: Callable[..., Stage], keys: Keys) -> None:
    left = leave(stage(RouterSettings(lease_seconds=1.0), pool=Pool.HOT), keys)
    assert left.router.lease_of(b"s", 0) is not None
    placement = left.place(back(left, keys))
    assert (placement.instance, len(placement.candidates)) == ("y", 2)
    assert left.router.status(0).leases == LeaseCounts(1, consumed=1)


def test_a_forgotten_branch_holds_nothing(left: Stage, keys: Keys) -> None:
    left.router.forget(b"s")
    left.router.forget(b"s")
    assert left.router.lease_of(b"s", 0) is None
    assert left.place(back(left, keys)).reason is not Reason.LEASE
    assert left.router.status(0).counts.returns == 0


def test_the_end_of_a_lease_wakes_who_waits_behind_its_charge(
    stage: Callable[..., Stage], keys: Keys
) -> None:
    here = full(stage, keys)
    waits = here.router.place(here.call(prompt=400), 0)
    assert isinstance(waits, Wait)
    assert here.router.retry(0) == []
    assert here.router.next_wakeup(0) == SECOND
    assert here.router.retry(SECOND - 1) == []
    [placement] = here.router.retry(SECOND)
    assert isinstance(placement, Placement)
    assert here.router.next_wakeup(SECOND) is None


def full(stage: Callable[..., Stage], keys: Keys) -> Stage:
    """A continuation takes 7.2 s here, and one is held: a call of 0.4 s finds no room."""
    here = stage(RouterSettings(lease_seconds=1.0), serves={"x": "a"})
    again = here.call(branch=b"s", prompt=7060, known=10, keys=keys(1, 110))
    here.place(again)
    here.finish(again, keys(1, 110)[-1], 110)
    here.show("x", "a", {"a": Load(0, 0, 1, 10, 10)}, last_call=again.call_id)
    return here


def test_a_returning_session_passes_calls_that_wait(left: Stage, keys: Keys) -> None:
    left.router.disconnected("y", 0)
    left.show("x", "b", {"b": Load(63, 30_000, 1, 10, 10)})
    assert isinstance(left.router.place(left.call(prompt=4000), 0), Wait)
    assert left.place(back(left, keys)).reason is Reason.LEASE


def test_an_instance_that_would_refuse_the_call_ends_the_lease(left: Stage, keys: Keys) -> None:
    left.show("x", "b", {"b": Load(64, 3000, 1, 10, 10)})
    assert discarded(left, back(left, keys))


def test_returns_are_counted_by_where_they_go(left: Stage, keys: Keys) -> None:
    again = back(left, keys)
    left.place(again)
    left.finish(again)
    left.router.disconnected("x", 0)
    left.place(back(left, keys))
    counts = left.router.status(0).counts
    assert (counts.placed, counts.returns, counts.same_instance) == (3, 2, 1)
