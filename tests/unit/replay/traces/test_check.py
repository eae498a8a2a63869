from pathlib import Path

import pytest
from msgspec.structs import replace

from alipes.replay.traces.check import check
from alipes.replay.traces.form import Branch, Call, Session, Span, Trace, Turn, Wait
from alipes.replay.traces.model import Message, TraceError

FIRST = Call(10, 5, 0, (Span(1, 0, 10),), wait=Wait.START)
NEXT = Call(20, 5, 15, (Span(-1, 0, 5),), 0.5)
JOINING = replace(NEXT, wait=Wait.BRANCH, joins=("sub",))
SUB = Branch("sub", (Call(15, 1, 15),), "main", 0)
GOOD = Session("s", (Branch("main", (FIRST, JOINING)), SUB))
SAID = Turn(0, (Message("user", "x"),), Message("assistant", "y"))


def refused(session: Session, *more: Session) -> str:
    with pytest.raises(TraceError) as caught:
        check(Trace("test", (session, *more)), Path("t.jsonl"))
    assert str(caught.value).startswith("t.jsonl: session ")
    return str(caught.value)


def test_a_sound_trace_passes() -> None:
    check(Trace("test", (GOOD, replace(GOOD, id="other", start=0.0))), Path("t"))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"prompt": 0, "added": ()}, "call 0: prompt: 0 tokens"),
        ({"prompt": 11}, "11 tokens, but 0 are kept and 10 added"),
        ({"output": 0}, "call 0: output"),
        ({"kept": 1, "prompt": 11}, "call 0: kept: 1 tokens of a context of 0"),
        ({"kept": -1, "prompt": 9}, "call 0: kept"),
        ({"added": (Span(1, 0, 10), Span(1, 0, 0))}, "is not a span"),
        ({"added": (Span(1, -1, 10),)}, "is not a span"),
        ({"added": (Span(2**63, 0, 10),)}, "is not a span"),
        ({"gap": float("nan")}, "call 0: gap"),
        ({"gap": float("inf")}, "call 0: gap"),
        ({"gap": -0.1}, "call 0: gap"),
        ({"gap": 1e300}, "call 0: gap"),
        ({"output": 2**31}, "call 0: output"),
        ({"prompt": 2**31, "added": (Span(1, 0, 2**31),)}, "call 0: prompt"),
        ({"added": (Span(1, 2**63 - 10, 10),)}, "is not a span"),
        ({"joins": ("sub",)}, "or neither"),
        ({"wait": Wait.BRANCH, "joins": ("sub",)}, "first call of a branch"),
        ({"wait": Wait.BRANCH}, "or neither"),
        ({"turn": replace(SAID, kept=1)}, "call 0: turn: 1 messages kept of 0"),
    ],
)
def test_faults_of_a_call(change: dict[str, object], problem: str) -> None:
    branch = Branch("main", (replace(FIRST, **change), NEXT))
    assert problem in refused(replace(GOOD, branches=(branch, SUB)))


@pytest.mark.parametrize(
    ("branches", "problem"),
    [
        ((), "has no branch"),
        ((Branch("main", ()),), "branch 'main': has no call"),
        ((Branch("", (FIRST,)),), "has no name of its own"),
        ((*GOOD.branches, SUB), "branch 'sub': has no name of its own"),
        ((replace(SUB, calls=(FIRST,)),), "the first branch is the main one"),
        ((*GOOD.branches, replace(SUB, name="b", parent="a")), "'a' is no earlier branch"),
        ((*GOOD.branches, replace(SUB, name="b", parent="b")), "'b' is no earlier branch"),
        ((*GOOD.branches, replace(SUB, name="b", parent="")), "'' is no earlier branch"),
        ((*GOOD.branches, replace(SUB, name="b", spawned_by=2)), "'main' has no call 2"),
        ((*GOOD.branches, replace(SUB, name="b", spawned_by=-1)), "'main' has no call -1"),
        ((Branch("main", (FIRST, JOINING)),), "'sub' is no branch of the session"),
    ],
)
def test_faults_of_branches(branches: tuple[Branch, ...], problem: str) -> None:
    assert problem in refused(replace(GOOD, branches=branches))


def test_branches_that_wait_for_each_other() -> None:
    late = replace(SUB, spawned_by=1, calls=(Call(25, 1, 25),))
    session = replace(GOOD, branches=(GOOD.branches[0], late))
    assert "branches 'main', 'sub' wait for each other" in refused(session)
    own = replace(JOINING, joins=("main",))
    assert "wait for each other" in refused(Session("s", (Branch("main", (FIRST, own)),)))


def test_faults_of_sessions() -> None:
    assert "is there twice" in refused(GOOD, GOOD)
    assert "has no id" in refused(replace(GOOD, id=""))
    for start in (-1.0, float("inf")):
        assert "is not a time" in refused(replace(GOOD, start=start))
