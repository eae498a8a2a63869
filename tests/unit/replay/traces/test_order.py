"""The order in which the calls of a session can happen."""

from __future__ import annotations

import time

import pytest

from alipes.replay.traces.form import MAIN, Branch, Call, Session, Wait
from alipes.replay.traces.order import active_branches, causal_order, dependencies, steps

CALL = Call(1, 1)


def joining(*names: str) -> Call:
    return Call(1, 1, wait=Wait.BRANCH, joins=names)


def test_a_call_runs_right_after_what_it_waits_for() -> None:
    main = Branch(MAIN, (CALL, CALL, joining("a")))
    session = Session("s", (main, Branch("a", (CALL, joining("b")), MAIN, 0), sub("b", "a")))
    assert steps(session) == {(0, 0): 0, (0, 1): 1, (1, 0): 1, (2, 0): 2, (1, 1): 3, (0, 2): 4}
    assert causal_order(session)[-1] == (0, 2)
    assert active_branches(session) == (3, 5 + 3 + 1, 5)


def test_calls_come_after_what_they_wait_for() -> None:
    session = Session("s", (Branch(MAIN, (CALL, joining("a"))), sub("a", MAIN)))
    assert list(dependencies(session).static_order()) == [(0, 0), (1, 0), (0, 1)]


def test_calls_that_wait_for_each_other_are_told() -> None:
    main = Branch(MAIN, (CALL, joining("a")))
    with pytest.raises(ValueError, match="session s: its calls wait"):
        steps(Session("s", (main, sub("a", MAIN, 1))))


def sub(name: str, parent: str, spawned_by: int = 0) -> Branch:
    return Branch(name, (CALL,), parent, spawned_by)


def test_time_grows_with_calls_and_not_with_their_square() -> None:
    """A main branch that waits for one sub-agent after another."""
    count = 4_000
    main = Branch(MAIN, (CALL, *(joining(f"{n}") for n in range(count))))
    session = Session("s", (main, *(sub(f"{n}", MAIN, n) for n in range(count))))
    begin = time.perf_counter()
    assert max(steps(session).values()) == 2 * count
    assert time.perf_counter() - begin < 3
