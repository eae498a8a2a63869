"""What becomes of calls whose instances die, refuse them, or are too small for them."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from alipes.gateway.calls.book import FORGIVEN_TOKENS, MAX_ATTEMPTS, MAX_DEATHS, CallBook
from alipes.gateway.calls.call import Call
from alipes.gateway.calls.events import CallFailure, FailureKind, Update
from alipes.gateway.calls.request import CallRequest
from alipes.gateway.routing.decision import RouterSettings
from alipes.gateway.routing.router import Router
from alipes.gateway.routing.sessions import SessionTable
from alipes.instance.contract import (
    PROTOCOL,
    Counters,
    Drawn,
    Estimate,
    Failed,
    FailureClass,
    Finished,
    FinishReason,
    Hello,
    ModelReport,
    Occupancy,
    Pool,
    Snapshot,
    Started,
    Targets,
    Tokens,
)

SECOND = 1_000_000_000
COST = Estimate(0.01, 0.001, 0.0, 0.02, 0.005, 0.0, 0.5, 0.0, 0.0, 9)


class World:
    """Instances by name with so many blocks of KV for the only model."""

    def __init__(self, **blocks: int) -> None:
        self.blocks = blocks
        self.router = Router({"a": frozenset(blocks)}, RouterSettings(queue_timeout=120.0))
        self.sessions = SessionTable(64, 60.0, Random(1).randbytes)
        self.book = CallBook(self.router, self.sessions, Random(2).randbytes)
        self.now = 0
        self.version = 0
        self.failures: dict[Call, CallFailure] = {}

    def up(self, name: str) -> None:
        self.version += 1
        report = ModelReport("a", "kv", 200_000, 100, 1, 1, self.blocks[name])
        incarnation = f"{name}{self.version}"
        hello = Hello(
            PROTOCOL, name, incarnation, Pool.COLD, "fake", "cpu", 64, 4, 8, 512, Targets(),
            (report,), 1,
        )  # fmt: skip
        self.hear(self.book.connected(hello, self.now))
        self.state(name)

    def state(self, name: str) -> None:
        self.version += 1
        snapshot = Snapshot(
            self.version, "a", "idle", 0.0, 0.0, False, {}, {"a": COST},
            Occupancy(0, 0, 0, 0, 0, 0), Counters(), b"",
        )  # fmt: skip
        self.hear(self.book.message(name, snapshot, self.now))
        self.hear(self.book.tick(self.now))

    def submit(self, prompt: int, output: int = 1000, shortens: bool = False) -> Call:
        tokens = np.arange(prompt, dtype=np.int32)
        request = CallRequest("a", "", tokens, output, shortens=shortens)
        call, outputs = self.book.submit(request, self.now)
        self.hear(outputs)
        return call

    def say(self, call: Call, token: int) -> None:
        (leg,) = call.legs
        for body in (Started(leg.id, 0, 0.0), Tokens(1, (Drawn(leg.id, token),))):
            self.hear(self.book.message(call.instance, body, self.now))

    def die(self, name: str) -> None:
        self.hear(self.book.lost(name, "killed", self.now))
        self.later(1.0)
        self.up(name)

    def later(self, seconds: float) -> None:
        self.now += int(seconds * SECOND)
        self.hear(self.book.tick(self.now))

    def hear(self, outputs: object) -> None:
        assert isinstance(outputs, list)
        for output in outputs:
            if isinstance(output, Update) and isinstance(output.event, CallFailure):
                self.failures[output.call] = output.event


def test_a_call_that_only_an_absent_instance_can_hold_stops_no_other() -> None:
    world = World(big=500, small=50)
    world.up("big")
    world.up("small")
    world.hear(world.book.lost("big", "killed", 1))
    large = world.submit(10_000, 50)
    others = [world.submit(100, 50) for _ in range(3)]
    assert large.instance == ""
    assert [call.instance for call in others] == ["small"] * 3
    world.later(1.0)
    world.up("big")
    assert large.instance == "big"


def test_a_head_that_becomes_impossible_lets_the_others_go() -> None:
    world = World(big=500, small=50)
    large = world.submit(10_000, 50)
    other = world.submit(100, 50)
    world.up("small")
    assert (large.instance, other.instance) == ("", "small")
    world.later(121.0)
    assert world.failures[large].kind is FailureKind.TIMEOUT


@pytest.mark.parametrize("early", [True, False])
def test_an_answer_is_as_long_as_there_is_room_for(early: bool) -> None:
    world = World(small=50)
    if not early:
        world.up("small")
    call = world.submit(20, 100_000, shortens=True)
    strict = world.submit(20, 100_000)
    world.up("small")
    assert call.instance == "small"
    assert call.request.max_tokens < 50 * 64
    assert world.failures[strict].kind is FailureKind.INVALID


def test_calls_that_had_not_begun_do_not_end_with_their_instances() -> None:
    world = World(x=500)
    world.up("x")
    poison, *others = [world.submit(5 + i, 10) for i in range(4)]
    for _ in range(3):
        (leg,) = poison.legs
        world.hear(world.book.message("x", Started(leg.id, 0, 0.0), world.now))
        world.die("x")
        world.later(20.0)
        world.state("x")
    assert world.failures.keys() == {poison}
    assert not any(call.done for call in others)


def test_a_call_that_kills_after_every_token_is_given_up() -> None:
    world = World(x=500, y=500)
    world.up("x")
    world.up("y")
    call = world.submit(5)
    for _ in range(MAX_DEATHS):
        assert not call.done
        world.say(call, 7)
        world.die(call.instance)
    assert world.failures[call].kind is FailureKind.LOST


def test_deaths_far_apart_are_forgiven() -> None:
    world = World(x=500, y=500)
    world.up("x")
    world.up("y")
    call = world.submit(5)
    for _ in range(2 * MAX_DEATHS):
        for _ in range(FORGIVEN_TOKENS):
            world.say(call, 7)
        world.die(call.instance)
    assert not world.failures


def test_an_answer_that_is_under_way_waits_for_a_place() -> None:
    world = World(x=500)
    world.up("x")
    call = world.submit(5)
    world.say(call, 7)
    for _ in range(3 * MAX_ATTEMPTS):
        (leg,) = call.legs
        full = Failed(leg.id, FailureClass.OVERLOADED, "waiting queue is full")
        world.hear(world.book.message("x", full, world.now))
        world.later(4.0)
        world.state("x")
    assert not world.failures
    world.say(call, 8)
    (leg,) = call.legs
    done = Finished(leg.id, FinishReason.STOP, None, 5, 0, 2, 0.0, 0.0, 0.0)
    world.hear(world.book.message("x", done, world.now))
    assert call.done


def test_a_call_satisfied_after_a_move_holds_nothing_where_it_went() -> None:
    world = World(x=500, y=500)
    world.up("x")
    world.up("y")
    call = world.submit(200)
    world.say(call, 7)
    first = call.instance
    world.hear(world.book.lost(first, "killed", world.now))
    assert call.instance not in ("", first)
    world.hear(world.book.satisfied(call, world.now))
    assert world.router.lease_of(call.session.branch, world.now) is None
    view = world.sessions.view("", call.session.session, world.now)
    assert view is not None
    assert view.branches[0].instance == ""
