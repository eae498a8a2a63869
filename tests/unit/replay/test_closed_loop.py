from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alipes.replay.closed_loop import ClosedLoop, Send
from alipes.replay.plan import Assignment, Session, plan_session
from alipes.replay.traces.model import Call, Message, Trajectory

SECOND = 1_000_000_000


def session(name: str, *gaps: float) -> Session:
    reply = Message("assistant", "r")
    calls = tuple(Call((Message("user", "go"),), reply, gap) for gap in gaps)
    trajectory = Trajectory(name, Path(name), calls)
    return plan_session(Assignment(name, trajectory, "m"), trajectory, 1.0, {"r": 1}, 60)


def test_the_next_call_waits_one_gap_after_the_end_of_the_last() -> None:
    loop = ClosedLoop([session("a", 0, 2), session("b", 0)], now=100)
    first, other = loop.due(100)
    assert (first, other) == (Send(100, 0, 0), Send(100, 1, 0))
    assert loop.due(10**12) == ()
    assert loop.next_wakeup() is None
    loop.ended(first, True, 500)
    assert loop.next_wakeup() == 500 + 2 * SECOND
    assert loop.due(499 + 2 * SECOND) == ()
    (second,) = loop.due(500 + 9 * SECOND)
    assert second == Send(500 + 2 * SECOND, 0, 1)
    assert not loop.done
    loop.ended(other, True, 600)
    loop.ended(second, True, 700)
    assert loop.done


def test_a_failed_call_ends_its_session_only() -> None:
    loop = ClosedLoop([session("a", 0, 1), session("b", 0, 1)], now=0)
    first, other = loop.due(0)
    loop.ended(first, False, 10)
    loop.ended(other, True, 10)
    assert [send.session for send in loop.due(2 * SECOND)] == [1]


def test_a_call_that_is_not_in_flight_cannot_end() -> None:
    loop = ClosedLoop([session("a", 0, 0)], now=0)
    (send,) = loop.due(0)
    loop.ended(send, True, 1)
    with pytest.raises(ValueError, match="not in flight"):
        loop.ended(send, True, 2)
    assert loop.due(1) == (Send(1, 0, 1),)


@given(st.data())
def test_every_call_is_sent_once_in_order_whatever_the_timing(data: st.DataObject) -> None:
    gaps = data.draw(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=5), min_size=1))
    sessions = [session(str(i), *map(float, row)) for i, row in enumerate(gaps)]
    loop, now, flying = ClosedLoop(sessions, now=0), 0, []
    sent: list[tuple[int, int]] = []
    while not loop.done:
        wakeup = loop.next_wakeup()
        assert flying or wakeup is not None
        now = max(now + 1, wakeup or 0) if not flying else now + data.draw(st.integers(0, SECOND))
        for send in loop.due(now):
            assert send.intended <= now
            flying.append(send)
            sent.append((send.session, send.index))
        if flying:
            loop.ended(flying.pop(data.draw(st.integers(0, len(flying) - 1))), True, now)
    for number, row in enumerate(gaps):
        assert [index for session, index in sent if session == number] == list(range(len(row)))
