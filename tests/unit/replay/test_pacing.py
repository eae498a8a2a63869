"""When a replay sends: by hand, on small sessions. ``tests/property`` has the rest."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest

from alipes.replay.pacing import NANOSECONDS, Pacing, PacingSettings, Send
from alipes.replay.progress import SessionError
from alipes.replay.traces.form import MAIN, Branch, Call, Session, Wait

SECOND = NANOSECONDS


def call(gap: float = 0.0, *joins: str) -> Call:
    return Call(8, 2, gap=gap, wait=Wait.BRANCH if joins else Wait.TOOL, joins=joins)


def session(*gaps: float, start: float | None = None, name: str = "s") -> Session:
    return Session(name, (Branch(MAIN, tuple(map(call, gaps))),), start=start)


def spawning(*main: Call) -> Session:
    """The first call of the main branch spawns two sub-agents of two calls each."""
    subs = tuple(Branch(name, (call(1), call()), MAIN, 0) for name in ("a", "b"))
    return Session("s", (Branch(MAIN, main), *subs))


def answered(loop: Pacing, latency: Callable[[Send], int]) -> list[Send]:
    """All that is sent where a call takes its ``latency``, in order."""
    now, sent = 0, []
    flying: list[tuple[int, Send]] = []
    while not loop.done:
        times = [at for at in (loop.next_wakeup(), *(end for end, _ in flying)) if at is not None]
        now = max(now, min(times))
        for end, send in sorted(pair for pair in flying if pair[0] <= now):
            flying.remove((end, send))
            loop.ended(send, True, now)
        for send in loop.due(now):
            sent.append(send)
            flying.append((now + latency(send), send))
    return sent


def test_the_next_call_waits_one_gap_after_the_end_of_the_last() -> None:
    loop = Pacing([session(0, 2), session(0)], PacingSettings(), 100)
    first, other = loop.due(100)
    assert (first, other) == (Send(100, 0, 0, 0), Send(100, 1, 0, 0, last=True))
    assert loop.next_wakeup() is None
    loop.ended(first, True, 500)
    assert loop.next_wakeup() == 500 + 2 * SECOND
    assert loop.due(499 + 2 * SECOND) == ()
    (second,) = loop.due(500 + 9 * SECOND)
    assert second == Send(500 + 2 * SECOND, 0, 0, 1, last=True)
    loop.ended(other, True, 600)
    assert not loop.done
    loop.ended(second, True, 700)
    assert loop.done


def test_sub_agents_begin_after_their_call_and_a_join_waits_for_the_last_of_them() -> None:
    loop = Pacing([spawning(call(), call(0.5, "a", "b"))], PacingSettings(), 0)
    (first,) = loop.due(0)
    loop.ended(first, True, SECOND)
    a, b = loop.due(2 * SECOND)
    assert [(s.intended, s.branch) for s in (a, b)] == [(2 * SECOND, 1), (2 * SECOND, 2)]
    loop.ended(a, True, 3 * SECOND)
    (a,) = loop.due(3 * SECOND)
    loop.ended(a, True, 4 * SECOND)
    assert loop.next_wakeup() is None
    loop.ended(b, True, 6 * SECOND)
    (b,) = loop.due(6 * SECOND)
    loop.ended(b, True, 9 * SECOND)
    (joining,) = loop.due(10 * SECOND)
    assert joining == Send(9 * SECOND + SECOND // 2, 0, 0, 1, last=True)


def test_a_session_lasts_until_its_sub_agents_are_done_too() -> None:
    loop = Pacing([spawning(call()), session(0)], PacingSettings(concurrency=1), 0)
    sent = answered(loop, lambda send: 5)
    assert [send.session for send in sent] == [0] * 5 + [1]
    assert [send.last for send in sent] == [False] * 4 + [True, True]
    assert sent[-1].intended == sent[-2].intended + 5


def test_a_failed_call_ends_its_session_with_all_that_was_due() -> None:
    loop = Pacing([spawning(call(), call()), session(0, 1)], PacingSettings(), 0)
    first, other = loop.due(0)
    loop.ended(first, True, 1)
    loop.ended(other, True, 1)
    (second,) = loop.due(1)
    loop.ended(second, False, 2)
    assert loop.next_wakeup() == 1 + SECOND
    assert [send.session for send in loop.due(9 * SECOND)] == [1]


def test_nothing_more_of_a_failed_session_is_sent_while_a_call_of_it_still_runs() -> None:
    loop = Pacing([spawning(call(), call())], PacingSettings(), 0)
    (first,) = loop.due(0)
    loop.ended(first, True, 0)
    (second,) = loop.due(0)
    a, b = loop.due(SECOND)
    loop.ended(a, True, 2 * SECOND)
    assert loop.next_wakeup() == 2 * SECOND
    loop.ended(second, False, 2 * SECOND)
    assert loop.next_wakeup() is None
    assert loop.due(9 * SECOND) == ()
    assert not loop.done
    loop.ended(b, True, 9 * SECOND)
    assert loop.done


def test_a_failed_session_makes_room_only_when_nothing_of_it_is_in_flight() -> None:
    loop = Pacing([spawning(call()), session(0)], PacingSettings(concurrency=1), 0)
    (first,) = loop.due(0)
    loop.ended(first, True, 0)
    a, b = loop.due(SECOND)
    loop.ended(a, False, 2 * SECOND)
    assert loop.next_wakeup() is None
    loop.ended(b, True, 3 * SECOND)
    assert loop.due(4 * SECOND) == (Send(3 * SECOND, 1, 0, 0, last=True),)


def test_a_call_that_is_not_in_flight_cannot_end() -> None:
    loop = Pacing([session(0, 0)], PacingSettings(), 0)
    (send,) = loop.due(0)
    loop.ended(send, True, 1)
    with pytest.raises(ValueError, match="not in flight"):
        loop.ended(send, True, 2)
    assert loop.due(1) == (Send(1, 0, 0, 1, last=True),)


def test_concurrency_is_held_by_replacing_finished_sessions() -> None:
    loop = Pacing([session(0, 0, name=str(i)) for i in range(7)], PacingSettings(3), 0)
    under_way: set[int] = set()
    most = 0

    def latency(send: Send) -> int:
        nonlocal most
        under_way.add(send.session)
        most = max(most, len(under_way))
        if send.last:
            under_way.discard(send.session)
        return 10 + send.session

    sent = answered(loop, latency)
    assert most == 3
    assert [send.session for send in sent if send.index == 0] == list(range(7))


def test_poisson_arrivals_come_at_the_rate_and_by_the_seed() -> None:
    def arrivals(seed: int) -> list[int]:
        many = [session(0) for _ in range(2_000)]
        loop = Pacing(many, PacingSettings(rate=4.0, seed=seed), 0)
        return [send.intended for send in answered(loop, lambda send: 1)]

    first, again, other = arrivals(1), arrivals(1), arrivals(2)
    assert first == again != other
    assert first == sorted(first)
    assert first[-1] / SECOND == pytest.approx(2_000 / 4.0, rel=0.1)
    waits = [later - earlier for earlier, later in pairwise(first)]
    assert sum(wait < SECOND / 4 for wait in waits) / len(waits) == pytest.approx(0.632, abs=0.04)


def test_an_arrival_beyond_the_admission_limit_waits_and_its_delay_shows() -> None:
    sessions = [session(0, start=float(start)) for start in (5, 6, 7)]
    loop = Pacing(sessions, PacingSettings(concurrency=1, recorded=True), 0)
    sent = answered(loop, lambda send: 3 * SECOND)
    assert [send.intended for send in sent] == [0, SECOND, 2 * SECOND]
    loop = Pacing(sessions, PacingSettings(concurrency=1, recorded=True), 0)
    (first,) = loop.due(0)
    assert loop.due(2 * SECOND) == ()
    loop.ended(first, True, 3 * SECOND)
    assert loop.next_wakeup() == 3 * SECOND
    assert loop.due(3 * SECOND)[0].intended == SECOND


def test_what_goes_on_after_a_time_keeps_its_arrivals_and_leaves_out_what_is_done() -> None:
    many, settings = [session(0) for _ in range(9)], PacingSettings(rate=0.5, seed=3)
    whole = [send.intended for send in answered(Pacing(many, settings, 0), lambda send: 1)]
    later, elapsed = 10**15, whole[4]
    loop = Pacing(many, settings, later, elapsed, done={0, 1, 3, 6})
    assert loop.next_wakeup() == later
    # Of what was to come before, all comes now.
    now = [send.session for send in loop.due(later)]
    assert now == [2, 4]
    for number in (5, 7, 8):
        due = later - elapsed + whole[number]
        assert loop.next_wakeup() == due
        (send,) = loop.due(due)
        assert (send.session, send.intended) == (number, due)


def test_what_is_done_takes_no_place() -> None:
    many = [session(0) for _ in range(4)]
    loop = Pacing(many, PacingSettings(concurrency=1), 5, 3, done={0, 1, 2})
    (send,) = loop.due(5)
    assert (send.session, loop.next_wakeup()) == (3, None)
    loop.ended(send, True, 6)
    assert loop.done
    assert Pacing(many, PacingSettings(), 5, 3, range(4)).done


def test_gaps_are_capped_or_kept() -> None:
    for cap, due in ((2.0, 2), (None, 60)):
        loop = Pacing([session(60)], PacingSettings(gap_cap=cap), 0)
        assert loop.due(0) == ()
        assert loop.next_wakeup() == due * SECOND
        assert loop.due(due * SECOND)[0].gap == due * SECOND


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        (Session("s", ()), "no calls"),
        (Session("s", (Branch(MAIN, ()),)), "no calls"),
        (Session("s", (Branch(MAIN, (call(),)), Branch(MAIN, (call(),), MAIN, 0))), "one name"),
        (Session("s", (Branch(MAIN, (call(),)), Branch("a", (call(),), MAIN, 1))), "spawned by"),
        (Session("s", (Branch(MAIN, (call(),)), Branch("a", (call(),), "b", 0))), "spawned by"),
        (Session("s", (Branch(MAIN, (call(), call(0, "a"))),)), "'a'"),
        (Session("s", (Branch(MAIN, (call(), call(0, MAIN))),)), "wait for each other"),
        (
            Session("s", (Branch(MAIN, (call(), call(0, "a"))), Branch("a", (call(),), MAIN, 1))),
            "2 calls wait for each other",
        ),
    ],
)
def test_a_session_that_could_never_end_is_refused(broken: Session, told: str) -> None:
    with pytest.raises(SessionError, match=told):
        Pacing([session(0), broken], PacingSettings(), 0)


def test_settings_that_contradict_themselves_are_refused() -> None:
    for wrong in ({"concurrency": -1}, {"rate": -1.0}, {"gap_cap": -1.0}, {"seed": -1}):
        with pytest.raises(ValueError, match="negative"):
            replace(PacingSettings(), **wrong)
    with pytest.raises(ValueError, match="not both"):
        PacingSettings(recorded=True, rate=1.0)
    with pytest.raises(SessionError, match="no recorded start"):
        Pacing([session(0)], PacingSettings(recorded=True), 0)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"rate": float("nan")}, "not a number"),
        ({"rate": float("inf")}, "not a number"),
        ({"gap_cap": float("nan")}, "not a number"),
        ({"rate": 1e-300}, "a rate below"),
    ],
)
def test_numbers_that_are_none_are_refused(wrong: dict[str, float], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        replace(PacingSettings(), **wrong)
    assert PacingSettings(gap_cap=float("inf")).gap(call(50.0)) == 50 * SECOND
