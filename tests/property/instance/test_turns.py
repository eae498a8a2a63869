"""Prompts take turns: short ones get in between the chunks of a long one, and none is passed for
ever."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings

from alipes.instance.contract import Targets
from alipes.instance.scheduler.sequence import CallState, Sequence
from alipes.instance.scheduler.work import Run

from .simulated import Costs, Driver, report, settings_of, submission
from .timed import KnownCost, Session, Step, Timed, TimedEngine
from .worlds import CAPACITY, World, worlds

INSIDE = (CallState.PREFILL, CallState.DECODE, CallState.SAVED)
MS = 1_000_000
COSTS = Costs()
CHUNK = 16
CHUNK_SECONDS = COSTS.base + CHUNK * COSTS.token


def alone(tokens: int) -> float:
    """Seconds that a prompt takes by itself."""
    return math.ceil(tokens / CHUNK) * COSTS.base + tokens * COSTS.token


class Watched(Timed):
    """What prefill takes is known to the scheduler; who comes in through P, and whose prompt goes
    on, is held against the rule: a call is passed only by those that came, priorities counted,
    within as many seconds after it as it takes at most."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._inside: set[bytes] = set()
        for state in self.scheduler._calls.models.values():
            known = KnownCost(self.engine.costs.base, self.engine.costs.token, 0.0)
            state.profile.prefill = known  # type: ignore[assignment]

    def _watch(self, decoding: list[Sequence]) -> None:
        super()._watch(decoding)
        inside = {c.call.call_id for c in self._calls(*CallState) if c.state in INSIDE}
        if self.scheduler._phase == "P":
            self._check(inside - self._inside, self._calls(CallState.WAITING))
        self._inside = inside

    def _run(self, run: Run, steps: int) -> None:
        if run.phase == "P":
            begun = self._calls(CallState.PREFILL)
            self._check(set(run.call_ids), [c for c in begun if c.call.call_id not in run.call_ids])
        super()._run(run, steps)

    def _calls(self, *states: CallState) -> list[Sequence]:
        return [call for call in self.scheduler._calls.all() if call.state in states]

    def _check(self, passing: set[bytes], passed: list[Sequence]) -> None:
        for call_id in passing:
            call = self.scheduler._calls[call_id]
            for other in passed:
                if other.call.model == call.call.model:
                    assert call.order[0] <= other.order[0] + self._most(other)

    def _most(self, call: Sequence) -> int:
        restore = self.scheduler._calls.models[call.call.model].profile.restore_seconds(1, CAPACITY)
        return math.ceil((alone(call.length) + restore) * 1e9)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(world=worlds())
def test_a_call_is_passed_only_by_those_that_came_soon_after_it(world: World) -> None:
    chosen, *rest = world.parts()
    driver = Watched(msgspec.structs.replace(chosen, prefill_turns=True), *rest)
    driver.play()
    driver.check_idle()


def arriving(calls: list[tuple[int, int, int]], blocks: int, turns: bool = True) -> Watched:
    """Calls of one model as (ms from the beginning on, tokens of the prompt, tokens to draw)."""
    chosen = settings_of(["a"], prefill_turns=turns, allow_forced_tokens=True, max_waiting=10_000)
    sessions: list[Session] = []
    for number, (due, tokens, drawn) in enumerate(calls):
        prompt = [number % 50, number // 50 % 50, *[7] * tokens][:tokens]
        sessions.append([Step(due * MS, submission(number, "a", prompt, drawn))])
    costs = Costs(switch=0.0)
    return Watched(chosen, (report("a", blocks),), TimedEngine(costs=costs), sessions)


def first_token(driver: Driver, number: int) -> float:
    return driver.token_times[number.to_bytes(16, "big")][0] / 1e9


LONG = 390
ITERATION = COSTS.step + 2 * COSTS.call


@pytest.mark.parametrize("turns", [True, False])
def test_a_short_return_gets_in_between_the_chunks_of_a_long_prompt(turns: bool) -> None:
    """A stranger's prompt is under way when a session comes back with little that is new."""
    driver = arriving([(0, LONG, 2), (300, 20, 2)], blocks=200, turns=turns)
    driver.play()
    waited = first_token(driver, 1) - 0.3
    # The chunk under way and its own two.
    soon = 3 * CHUNK_SECONDS
    if turns:
        assert waited <= soon
        # Of what the other draws, only what comes before the end of the long prompt delays it.
        assert first_token(driver, 0) <= alone(LONG) + alone(20) + ITERATION
    else:
        assert waited > 5 * soon


def test_one_that_takes_longer_than_what_is_left_waits() -> None:
    left = 0.2
    came = alone(LONG) - left
    driver = arriving([(0, LONG, 2), (round(came * 1000), 150, 2)], blocks=200)
    driver.play()
    assert alone(150) > left
    # The other may fill what the last chunk of the long prompt leaves.
    assert first_token(driver, 0) <= alone(LONG) + CHUNK_SECONDS
    assert first_token(driver, 1) > first_token(driver, 0)


@pytest.mark.parametrize("blocks", [100, 140, 400])
@pytest.mark.parametrize("drawn", [1, 12])
@pytest.mark.parametrize("tokens", [2, 16, 60])
def test_a_long_prompt_is_computed_however_many_short_ones_keep_coming(
    tokens: int, drawn: int, blocks: int
) -> None:
    """Twice as many come as can be served, for longer than the long one waits: it is passed only
    by those that came before it was due."""
    each = alone(tokens) + (drawn - 1) * (COSTS.step + COSTS.call)
    gap = max(1, round(each * 500))
    horizon = round(8_000 * alone(LONG))
    driver = arriving(
        [(0, LONG, 2), *((due, tokens, drawn) for due in range(0, horizon, gap))], blocks
    )
    driver.play(until=lambda: bool(driver.tokens[bytes(16)]))
    passing = alone(LONG) * 1000 // gap + 1
    assert first_token(driver, 0) <= alone(LONG) + passing * each + ITERATION
    assert driver.engine.now / 1e6 < horizon


def test_where_p_goes_on_lest_a_prompt_is_undone_that_prompt_goes_first() -> None:
    """The host has no room for it and another model waits: P is to end as soon as it can."""
    tight = Targets(ttft=0.5, tpot=0.2, gamma=0.8)
    chosen = settings_of(["a", "b"], host_bytes=0, targets=tight)
    driver = Driver(chosen, (report("a", 200), report("b", 200)))
    for number, model in enumerate("ab"):
        driver.submit(submission(number, model, [number] * 60, 8))
    driver.drain()
    long = submission(2, "a", [2] * 360, 2)
    driver.submit(long)
    driver.submit(submission(4, "b", [4] * 60, 8))
    while not (driver.slot and driver.slot.model == "a" and driver.slot.prefill_runs > 4):
        driver.turn()
    driver.submit(submission(3, "a", [3] * 40, 2))
    begun = len(driver.works)
    while not driver.tokens[long.call_id]:
        driver.turn()
    assert {work.phase for work in driver.works[begun:] if isinstance(work, Run)} == {"P"}
    assert all(long.call_id in work.call_ids for work in driver.works[begun:-1])
    assert len(driver.works) - begun > 10
