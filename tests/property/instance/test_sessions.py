"""Session-prefill, restores and lingering, on the simulated engine."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from alipes.instance.contract import Started, Targets, Tier
from alipes.instance.scheduler.work import Linger, Restore, Run, Switch

from .simulated import BLOCK, Driver, report, settings_of, submission


def driver_of(names: list[str], blocks: int = 400, **changes: Any) -> Driver:
    fields: dict[str, Any] = {"host_bytes": 10**6, "targets": Targets(ttft=20.0, tpot=0.5)}
    settings = settings_of(names, **(fields | changes))
    return Driver(settings, tuple(report(name, blocks) for name in names))


def id_of(number: int) -> bytes:
    return number.to_bytes(16, "big")


def begin(driver: Driver, number: int, model: str, prompt: int = 20, max_tokens: int = 4) -> None:
    tokens = [number % 50] * prompt
    call = submission(number, model, tokens, max_tokens, branch=b"branch of %d" % number)
    assert driver.submit(call) is None


def go_on(
    driver: Driver,
    number: int,
    before: int,
    more: int = 4,
    max_tokens: int = 4,
    final: bool = False,
) -> None:
    """Call ``number`` continues what call ``before`` said."""
    last = driver.submitted[id_of(before)]
    said = driver.tokens[id_of(before)]
    prompt = [*np.frombuffer(last.tokens, dtype="<i4").tolist(), *said, *[number % 50] * more]
    call = submission(
        number, last.model, prompt, max_tokens, branch=last.branch, continuation=True, final=final
    )
    assert driver.submit(call) is None


def until_finished(driver: Driver, number: int, steps: int = 1) -> None:
    for _ in range(2000):
        if id_of(number) in driver.finished:
            return
        driver.turn(steps)
    raise AssertionError(f"call {number} does not finish")


def started(driver: Driver, number: int) -> Started:
    return driver.started[id_of(number)]


def warm(driver: Driver) -> None:
    """Have every cost measured: this is not about priors."""
    for number, model in enumerate(driver.settings.models, 1000):
        driver.submit(submission(number, model.name, [number % 50] * 30, max_tokens=20))
        driver.drain()
    driver.works.clear()


def go_to(driver: Driver, model: str, phase: str) -> None:
    """Go on, iteration by iteration, until the model's slot is in this phase."""
    for _ in range(2000):
        slot = driver.slot
        if slot is not None and slot.model == model and driver.scheduler._phase == phase:
            return
        driver.turn(steps=1)
    raise AssertionError(f"no {phase} of {model}")


def busy_pair(driver: Driver) -> None:
    """``a`` is in a slot with a long call and a short one that has just finished; ``b`` waits."""
    warm(driver)
    begin(driver, 1, "a", max_tokens=250)
    begin(driver, 2, "a")
    begin(driver, 3, "b", max_tokens=60)
    until_finished(driver, 2)
    assert driver.scheduler._phase == "D1"


def test_a_returning_session_comes_into_the_open_slot() -> None:
    driver = driver_of(["a", "b"])
    busy_pair(driver)
    go_on(driver, 4, before=2)
    until_finished(driver, 4)
    assert [type(w) for w in driver.works].count(Switch) == 1
    assert started(driver, 4).phase == "SP"
    assert started(driver, 4).cached_tokens == 20
    phases = [
        key for key, _ in itertools.groupby(w.phase for w in driver.works if w.__class__ is Run)
    ]
    assert phases[:5] == ["P", "D1", "SP", "D"]
    assert driver.scheduler.snapshot(driver.engine.now).counters.sp_admitted == 1
    driver.drain()
    driver.check_idle()


@pytest.mark.parametrize("turns", [True, False])
def test_sessions_that_come_in_together_take_turns(turns: bool) -> None:
    driver = driver_of(["a", "b"], prefill_turns=turns)
    warm(driver)
    begin(driver, 1, "a", max_tokens=250)
    for number in (2, 4):
        begin(driver, number, "a")
    begin(driver, 3, "b", max_tokens=60)
    until_finished(driver, 4)
    go_on(driver, 5, before=2, more=100)
    go_on(driver, 6, before=4, more=2)
    for number in (5, 6):
        until_finished(driver, number)
        assert started(driver, number).phase == "SP"
    first = [driver.token_times[id_of(number)][0] for number in (5, 6)]
    assert (first[1] < first[0]) == turns


def test_new_sessions_and_lost_prefixes_wait_for_the_next_slot() -> None:
    driver = driver_of(["a", "b"])
    busy_pair(driver)
    begin(driver, 4, "a")
    # It says that it goes on, but nothing of its prompt is known here.
    call = submission(5, "a", [9] * 30, 4, branch=b"branch of 2", continuation=True)
    assert driver.submit(call) is None
    until_finished(driver, 5)
    assert [started(driver, number).phase for number in (4, 5)] == ["P", "P"]
    counters = driver.scheduler.snapshot(driver.engine.now).counters
    assert (counters.sp_admitted, counters.sp_parked) == (0, 0)


def test_without_session_prefill_a_returning_session_waits() -> None:
    driver = driver_of(["a", "b"], session_prefill=False)
    busy_pair(driver)
    go_on(driver, 4, before=2)
    driver.drain()
    assert started(driver, 4).phase == "P"
    assert not any(isinstance(work, Linger) for work in driver.works)
    assert {work.phase for work in driver.works if isinstance(work, Run)} <= {"P", "D1", "Dfin"}


def test_a_hot_instance_has_no_use_for_session_prefill() -> None:
    driver = driver_of(["a"])
    begin(driver, 1, "a", max_tokens=60)
    begin(driver, 2, "a")
    until_finished(driver, 2)
    go_on(driver, 3, before=2)
    driver.drain()
    assert started(driver, 3).phase == "P"
    assert started(driver, 3).cached_tokens == 20


def test_a_session_comes_in_with_a_prefix_from_the_host() -> None:
    driver = driver_of(["a", "b"])
    busy_pair(driver)
    until_finished(driver, 3)
    # Another slot of a: its device blocks were void, and P is over.
    go_to(driver, "a", "D1")
    begin(driver, 5, "b")
    go_on(driver, 4, before=2)
    until_finished(driver, 4)
    assert started(driver, 4).phase == "SP"
    assert started(driver, 4).cached_tokens == started(driver, 4).restored_tokens == 20
    assert driver.finished[id_of(4)].restored_tokens == 20
    counters = driver.scheduler.snapshot(driver.engine.now).counters
    assert (counters.sp_admitted, counters.restores, counters.restored_tokens) == (1, 1, 20)
    driver.drain()
    driver.check_idle()


def test_what_exceeds_the_budget_is_parked_once_a_slot_and_comes_in_through_p() -> None:
    driver = driver_of(["a", "b"], targets=Targets(ttft=5.0, tpot=0.5))
    driver.engine.costs.token = 0.02
    busy_pair(driver)
    go_on(driver, 4, before=2, more=250)
    go_on(driver, 5, before=2)
    until_finished(driver, 5)
    # The one behind it passed it.
    assert started(driver, 5).phase == "SP"
    assert id_of(4) not in driver.started
    until_finished(driver, 4)
    assert started(driver, 4).phase == "P"
    counters = driver.scheduler.snapshot(driver.engine.now).counters
    assert (counters.sp_admitted, counters.sp_parked) == (1, 1)
    assert counters.shortfall["a"] > 0


def test_a_session_that_lacked_blocks_is_not_passed_for_ever() -> None:
    """Small sessions keep coming back while one that needs most of the pool waits: they pass it
    at one boundary, then none does before it is in."""
    driver = driver_of(["a", "b"], blocks=80, max_running=8)
    warm(driver)
    begin(driver, 1, "a", prompt=120, max_tokens=2)
    until_finished(driver, 1)
    small, number = [10, 3, 4], 10
    for n in (2, 3, 4):
        begin(driver, n, "a", prompt=60, max_tokens=12 if n == 2 else 40)
    begin(driver, 5, "b", max_tokens=300)
    until_finished(driver, 2)
    go_on(driver, 9, before=1, more=100)
    go_on(driver, 10, before=2, more=1, max_tokens=2)
    large = driver.scheduler._calls[id_of(9)]
    passed_before = passed_after = returned_after = 0
    while id_of(9) not in driver.started:
        aged, known = large.aged, set(driver.started)
        driver.turn(steps=1)
        new = set(driver.started) - known - {id_of(9)}
        joined = sum(driver.started[call].phase == "SP" for call in new)
        passed_before += joined * (not aged)
        passed_after += joined * aged
        for place, before in enumerate(small):
            if id_of(before) in driver.finished:
                number += 1
                go_on(driver, number, before=before, more=1, max_tokens=2)
                small[place] = number
                returned_after += aged
    assert passed_before > 0
    assert returned_after > 0
    assert passed_after == 0
    assert driver.scheduler.snapshot(driver.engine.now).counters.sp_parked >= 1
    driver.drain()
    driver.check_idle()


def back_after_a_switch(**changes: Any) -> Driver:
    """Two sessions of ``a`` with a shared beginning return together after a slot of ``b``."""
    driver = driver_of(["a", "b"], **changes)
    for number in (1, 2):
        prompt = [7] * 20 + [number] * 8
        driver.submit(submission(number, "a", prompt, 4, branch=b"%d" % number))
    driver.drain()
    begin(driver, 3, "b")
    driver.drain()
    return driver


def test_prefixes_outlive_a_switch_and_one_restore_serves_several_calls() -> None:
    driver = back_after_a_switch()
    assert not driver.stored["a", Tier.DEVICE]
    go_on(driver, 4, before=1)
    go_on(driver, 5, before=2)
    load = driver.scheduler.snapshot(driver.engine.now).loads["a"]
    # 31 tokens of each were computed, 28 of them are on the host.
    assert load.waiting_tokens == 2 * (36 - 28)
    driver.drain()
    restores = [work for work in driver.works if isinstance(work, Restore)]
    # What they share is copied once: 5 blocks, and 2 of each.
    assert [len(work.copies) for work in restores] == [9]
    assert restores[0].tokens == 9 * BLOCK
    assert started(driver, 4).restored_tokens == 28
    assert (started(driver, 5).cached_tokens, started(driver, 5).restored_tokens) == (28, 8)
    driver.check_idle()


def test_a_copy_that_costs_more_than_computing_is_not_made() -> None:
    driver = back_after_a_switch()
    profile = driver.scheduler._calls.models["a"].profile
    for _ in range(3):
        profile.restore.observe((1.0, 28), 5.0)
    go_on(driver, 4, before=1)
    driver.drain()
    assert started(driver, 4).cached_tokens == 0
    assert not any(isinstance(work, Restore) for work in driver.works)


def test_without_host_kv_prefixes_are_lost_but_running_calls_are_saved() -> None:
    driver = back_after_a_switch(host_kv=False)
    go_on(driver, 4, before=1)
    driver.drain()
    assert started(driver, 4).cached_tokens == 0
    begin(driver, 6, "a", max_tokens=200)
    begin(driver, 7, "b", max_tokens=200)
    driver.drain()
    counters = driver.scheduler.snapshot(driver.engine.now).counters
    assert counters.resumed > 0
    assert counters.preempted == 0
    assert counters.checkpointed_blocks == 0
    assert not driver.stored["a", Tier.HOST]
    driver.check_idle()
    assert driver.scheduler.snapshot(driver.engine.now).occupancy.host_used == 0


def test_only_what_the_host_lacks_is_copied() -> None:
    driver = driver_of(["a"])
    begin(driver, 1, "a")
    driver.drain()
    driver.turn()
    first = driver.scheduler.snapshot(driver.engine.now).counters.checkpointed_blocks
    go_on(driver, 2, before=1)
    driver.drain()
    while driver.scheduler.copying:
        driver.turn()
    second = driver.scheduler.snapshot(driver.engine.now).counters.checkpointed_blocks
    # 20 + 3 tokens, then 24 + 4 + 3: 5 blocks, of which 5 are known, and 2 more.
    assert (first, second) == (5, 7)
    assert len(driver.stored["a", Tier.HOST]) == 7


def test_a_hot_instance_restores_what_it_evicted() -> None:
    driver = driver_of(["a"], blocks=20)
    begin(driver, 1, "a", prompt=40)
    driver.drain()
    begin(driver, 2, "a", prompt=60)
    driver.drain()
    go_on(driver, 3, before=1)
    driver.drain()
    assert started(driver, 3).cached_tokens == 40
    assert started(driver, 3).restored_tokens > 0
    driver.check_idle()


def test_a_call_cancelled_after_its_prompt_leaves_its_prefix() -> None:
    driver = driver_of(["a", "b"])
    begin(driver, 1, "a", max_tokens=40)
    while len(driver.tokens[id_of(1)]) < 5:
        driver.turn(steps=1)
    driver.cancel(id_of(1))
    begin(driver, 2, "b")
    driver.drain()
    assert len(driver.stored["a", Tier.HOST]) == 6
    assert not driver.stored["a", Tier.DEVICE]


def test_saved_calls_share_what_they_have_in_common() -> None:
    driver = driver_of(["a", "b"])
    for number in (1, 2):
        driver.submit(submission(number, "a", [7] * 40, max_tokens=200 + number))
        while id_of(number) not in driver.started:
            driver.turn(steps=1)
        for _ in range(4):
            driver.turn(steps=1)
    begin(driver, 3, "b")
    while not driver.scheduler._calls.models["a"].saved:
        driver.turn(steps=1)
    saved = driver.scheduler._calls.models["a"].saved.values()
    assert len(saved) == 2
    blocks = [id(block) for call in saved for block in call.saved]
    assert len(blocks) - len(set(blocks)) >= 10
    driver.drain()
    driver.check_idle()


def lingering(final: bool = False, **changes: Any) -> Driver:
    """``a`` has a session that returns after 50 ms; then ``b`` waits while it is out again."""
    driver = driver_of(["a", "b"], **changes)
    driver.engine.costs.switch = 1.0
    begin(driver, 1, "a")
    driver.drain()
    for number in range(2, 6):
        driver.engine.spend(0.05)
        go_on(driver, number, before=number - 1)
        driver.drain()
    driver.engine.spend(0.05)
    go_on(driver, 6, before=5, final=final)
    driver.turn()
    begin(driver, 7, "b", max_tokens=40)
    until_finished(driver, 6)
    return driver


def test_an_empty_slot_waits_for_a_likely_return() -> None:
    driver = lingering()
    begun = driver.engine.now
    work = driver.turn(steps=2)
    assert isinstance(work, Linger)
    # All gaps were 50 ms; one call waits for b.
    assert (work.until - begun) / 1e9 == pytest.approx(0.05, abs=0.001)
    assert driver.engine.now < work.until
    go_on(driver, 8, before=6)
    until_finished(driver, 8)
    assert started(driver, 8).phase == "SP"
    assert sum(isinstance(work, Switch) for work in driver.works) == 1
    counters = driver.scheduler.snapshot(driver.engine.now).counters
    assert counters.lingered_seconds == pytest.approx(0.02)


def test_an_empty_slot_waits_no_longer_than_sessions_stay_away() -> None:
    driver = lingering()
    assert isinstance(driver.turn(), Linger)
    assert isinstance(driver.turn(), Switch)


def test_a_session_that_has_ended_is_not_waited_for() -> None:
    assert isinstance(lingering(final=True).turn(), Switch)


def test_nothing_is_waited_for_without_measured_gaps() -> None:
    driver = driver_of(["a", "b"])
    begin(driver, 1, "a")
    begin(driver, 2, "b")
    until_finished(driver, 1)
    assert isinstance(driver.turn(), Switch)


def test_prefill_without_room_in_its_slots_is_told() -> None:
    driver = driver_of(["a", "b"], targets=Targets(ttft=2.0, tpot=0.2))
    for number in range(16):
        call = submission(number, "ab"[number % 2], [number] * 200, max_tokens=4)
        assert driver.submit(call) is None
    driver.drain()
    shortfall = driver.scheduler.snapshot(driver.engine.now).counters.shortfall
    # 8 prompts of 200 tokens take 4.3 s, a round has 1.6 s.
    assert set(shortfall) == {"a", "b"}
    assert min(shortfall.values()) > 2.0


def test_a_light_load_falls_short_of_nothing() -> None:
    driver = driver_of(["a", "b"])
    warm(driver)
    for number in range(8):
        begin(driver, number, "ab"[number % 2])
    driver.drain()
    assert not driver.scheduler.snapshot(driver.engine.now).counters.shortfall


def test_all_that_is_known_can_be_told_again() -> None:
    driver = back_after_a_switch()
    while driver.scheduler.copying:
        driver.turn()
    tiers = {(event.model, event.tier) for event in driver.scheduler.known()}
    assert tiers == {("a", Tier.HOST), ("b", Tier.HOST), ("b", Tier.DEVICE)}
    assert sum(len(event.keys) for event in driver.scheduler.known() if event.model == "a") == 9


def closed_loop(driver: Driver, sessions: int, calls: int, gap: float) -> Iterator[None]:
    """So many sessions over the models, each back ``gap`` seconds after its last answer, beside
    one call of each model that decodes all along; yields after every piece of work."""
    names = [model.name for model in driver.settings.models]
    for number, name in enumerate(names, 900):
        begin(driver, number, name, max_tokens=340)
    last = {place: place + 1 for place in range(sessions)}
    left = dict.fromkeys(last, calls - 1)
    for place, number in last.items():
        begin(driver, number, names[place % len(names)], prompt=20 + place)
    number, due = sessions + 1, {}
    while any(left.values()) or driver.live:
        for place, before in last.items():
            if left[place] and id_of(before) in driver.finished:
                due.setdefault(place, driver.engine.now + int(gap * 1e9))
        for place in [place for place, at in due.items() if at <= driver.engine.now]:
            go_on(driver, number, before=last[place], more=6, final=left[place] == 1)
            last[place], number = number, number + 1
            left[place] -= 1
            del due[place]
        if driver.turn(steps=3) is None:
            driver.engine.now = min(due.values(), default=driver.engine.now)
        yield


@pytest.mark.parametrize("gap", [0.05, 0.4])
def test_sessions_delay_neither_running_calls_nor_other_models(gap: float) -> None:
    driver = driver_of(["a", "b", "c"], targets=Targets(ttft=5.0, tpot=0.25))
    warm(driver)
    bound = 0.8 * driver.settings.targets.ttft
    longest_run = driver.engine.costs.base + 16 * driver.engine.costs.token + 0.05
    for _ in closed_loop(driver, sessions=9, calls=8, gap=gap):
        for openings in driver.openings.values():
            if len(openings) == 3 and openings[0][1] == openings[-1][1]:
                assert (openings[-1][0] - openings[-2][0]) / 1e9 <= bound * 1.02 + longest_run
    for number in (900, 901, 902):
        times = driver.token_times[id_of(number)]
        assert (times[-1] - times[0]) / 1e9 / (len(times) - 1) <= 0.25 * 1.02
    counters = driver.scheduler.snapshot(driver.engine.now).counters
    assert counters.sp_admitted > 10
    assert counters.restores > 5
    driver.check_idle()
