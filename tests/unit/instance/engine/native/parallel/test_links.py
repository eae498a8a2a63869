from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import pytest

from alipes.instance.engine.native.parallel.links import Link, RankLost
from alipes.instance.engine.native.parallel.messages import Close, Held, Here, Switched
from alipes.instance.engine.protocol import EngineError

PREFACE = """
import socket, sys, time
from alipes.instance.engine.native.parallel.channel import Channel
from alipes.instance.engine.native.parallel.messages import *
channel = Channel(socket.socket(fileno=int(sys.argv[1])), ToRank, 5.0)
"""
Start = Callable[..., Link]


@pytest.fixture
def start() -> Iterator[Start]:
    """Links to processes that do as they are told."""
    links = []

    def begin(script: str, seconds: float = 10.0) -> Link:
        command = [sys.executable, "-P", "-c", PREFACE + script]
        links.append(Link(command, 3, seconds, sys.stdout.fileno()))
        return links[-1]

    yield begin
    for link in links:
        link._process.kill()
        link.close()


def test_reports_on_copies_are_kept_while_an_answer_is_awaited(start: Start) -> None:
    link = start("for m in (Held(1, (5,), False), Here(), Held(1, (), True)): channel.send(m)")
    assert link.answer(Here) == Here()
    with pytest.raises(RankLost, match=r"rank 3 is lost \(it has been closed; exit code 0\)"):
        link.answer(Switched)
    assert link._held == [Held(1, (5,), False), Held(1, (), True)]


def test_reports_are_told_once(start: Start) -> None:
    link = start("channel.send(Held(1, (5,), True)); channel.send(Here()); channel.receive(60)")
    link.answer(Here)
    assert link.reports() == [Held(1, (5,), True)]
    assert link.reports() == []
    link.dismiss(Close())
    link.close()


def test_a_rank_that_fails_says_why(start: Start) -> None:
    link = start("channel.send(Broken('no memory', True)); sys.exit(1)")
    with pytest.raises(EngineError, match="rank 3: no memory"):
        link.answer(Here)
    link = start("channel.send(Broken('a defect', False)); sys.exit(7)")
    with pytest.raises(RankLost, match=r"rank 3 is lost \(a defect; exit code 7\)"):
        link.answer(Here)


def test_a_rank_that_says_nothing_is_lost(start: Start) -> None:
    link = start("channel.receive(60)", seconds=0.2)
    with pytest.raises(RankLost, match=r"no answer in 0.2 s; it still runs"):
        link.answer(Here)


def test_why_all_have_failed(start: Start) -> None:
    failure = RuntimeError("Connection closed by peer")
    gone = start("sys.exit(5)")
    with pytest.raises(RankLost, match="exit code 5") as caught:
        gone.ask_why(failure)
    assert caught.value.__cause__ is failure
    silent = start("channel.receive(60)")
    silent.ask_why(failure)
    with pytest.raises(RankLost, match="no answer in a step"):
        silent.ask_why(RuntimeError("Timed out waiting 5000ms for recv operation to complete"))
