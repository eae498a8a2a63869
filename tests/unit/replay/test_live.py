"""A replay taken up again: only the same one, and on its own clock."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from alipes.replay.live import describe, record, take_up
from alipes.replay.pacing import PacingSettings
from alipes.replay.plan import PlannedSession, Request, assign
from alipes.replay.prepare import Sending
from alipes.replay.runner import Replay
from alipes.replay.runs import RunError, RunInfo, read_run
from alipes.replay.stream import Answer
from alipes.replay.tokens import TokenPrompts
from alipes.replay.traces.content import Content, Vocabulary
from alipes.replay.traces.form import MAIN, Branch, Call, Session, Span, Trace, Wait
from alipes.replay.traces.load import save

OPEN = PacingSettings(rate=20.0, seed=4)
SESSIONS = tuple(
    Session(f"s{i}", (Branch(MAIN, (Call(4, 1, 0, (Span(-1, 0, 4),), wait=Wait.START),)),), "m")
    for i in range(6)
)


class Echo:
    """An endpoint that answers at once; after ``limit`` calls it interrupts."""

    counts_are_estimates = False

    def __init__(self, url: str = "http://127.0.0.1:1", limit: int = 99) -> None:
        self.url = url
        self.left = limit

    async def send(self, request: Request, clock: Callable[[], int]) -> Answer:
        if not self.left:
            raise KeyboardInterrupt
        self.left -= 1
        answer = Answer()
        answer.first = answer.last = clock()
        return answer


def planned(session: Session) -> PlannedSession:
    (one,) = assign([session], [])
    return PlannedSession(
        session.id, one.models, session, TokenPrompts(session, Content(session.id, Vocabulary()))
    )


def replay_of(endpoint: Echo) -> Replay:
    sessions = tuple(map(planned, SESSIONS))
    return Replay(endpoint, time.monotonic_ns, sessions)  # type: ignore[arg-type]


def described(folder: Path, *sessions: Session, renamed: str = "n") -> RunInfo:
    file = folder / "trace.jsonl"
    save(file, Trace("t", sessions or SESSIONS))
    return describe([file], "live", ["m"], {"x": "y", "m": renamed}, OPEN, Sending())


def play(folder: Path, replay: Replay, info: RunInfo) -> dict[str, float]:
    """When each session arrived."""
    asyncio.run(record(replay, folder / "out", info, OPEN, lambda call: None))
    return {call.session: call.intended for call in read_run(folder / "out").calls}


def test_a_replay_that_is_taken_up_keeps_the_arrivals_of_its_seed(tmp_path: Path) -> None:
    info = described(tmp_path)
    whole = play(tmp_path, replay_of(Echo()), info)
    cut = replay_of(Echo(limit=3))
    with pytest.raises(KeyboardInterrupt):
        play(tmp_path, cut, info)
    again = replay_of(Echo())
    take_up(tmp_path / "out", info, again)
    assert len(again.records) == 3
    assert play(tmp_path, again, info) == pytest.approx(whole, abs=1e-6)


def test_a_replay_of_something_else_is_not_taken_up(tmp_path: Path) -> None:
    info = described(tmp_path)
    play(tmp_path, replay_of(Echo()), info)
    out = tmp_path / "out"
    with pytest.raises(RunError, match=r"endpoint: http://127.0.0.1:1, now http://127.0.0.1:2"):
        take_up(out, info, replay_of(Echo("http://127.0.0.1:2")))
    with pytest.raises(RunError, match="model_map: m=n,x=y, now m=other,x=y"):
        take_up(out, described(tmp_path, renamed="other"), replay_of(Echo()))
    with pytest.raises(RunError, match="trace: "):
        take_up(out, described(tmp_path, SESSIONS[0]), replay_of(Echo()))
    take_up(out, info, replay_of(Echo()))
