"""Idle blocks and the weights of the next model, on the simulated engine."""

from __future__ import annotations

from typing import Any

from alipes.instance.contract import Counters, Targets, Tier
from alipes.instance.engine.protocol import SwitchReport
from alipes.instance.scheduler.profile import Trial

from .simulated import Driver, report, settings_of, submission

TARGETS = Targets(ttft=20.0, tpot=0.5)
SWITCH = 1.0
"""A mebibyte of weights in so many seconds: a block of 1,000 bytes in about a millisecond."""


def driver_of(copy: float = 1e-6, **changes: Any) -> Driver:
    """All costs are known: a restore takes ``copy`` seconds."""
    settings = settings_of(["a", "b"], targets=TARGETS, **({"host_bytes": 10**6} | changes))
    driver = Driver(settings, tuple(report(name, 400) for name in ("a", "b")))
    costs = driver.engine.costs
    costs.switch, costs.copy, driver.engine.delay = SWITCH, copy, 0
    for name in ("a", "b"):
        switch = SwitchReport(SWITCH, h2d_bytes=1 << 20)
        prefills = [(n, costs.base + n * costs.token) for n in (4, 16)]
        restores = [(n, copy) for n in (20, 200)]
        driver.scheduler.learn(
            Trial(name, switch, tuple(prefills), 17, costs.step, tuple(restores))
        )
    return driver


def serve(driver: Driver, branch: bytes = b"away", final: bool = False) -> None:
    """``a`` has finished a call, of 20 tokens, while another of its calls goes on below its blocks;
    ``b`` waits."""
    driver.submit(submission(1, "a", [1] * 9, max_tokens=250))
    while not driver.tokens[(1).to_bytes(16, "big")]:
        driver.turn(1)
    driver.submit(submission(2, "a", [2] * 20, max_tokens=1, branch=branch, final=final))
    driver.submit(submission(3, "b", [3] * 8, max_tokens=4))
    while (2).to_bytes(16, "big") not in driver.finished:
        driver.turn(1)
    # Its copies end.
    driver.turn(1)
    assert driver.scheduler.active_model == "a"


def counters(driver: Driver) -> Counters:
    return driver.scheduler.snapshot(driver.engine.now).counters


def yielded(driver: Driver) -> int:
    """Blocks that go when a stager that lacks room says so once. They are told."""
    before = counters(driver).yielded_blocks
    driver.stage()
    count = counters(driver).yielded_blocks - before
    driver.turn(1)
    return count


def test_idle_blocks_with_a_copy_give_way() -> None:
    driver = driver_of()
    serve(driver)
    cached = driver.scheduler.occupancy().cached
    assert yielded(driver) == cached > 0
    assert driver.scheduler.occupancy().cached == 0
    assert len(driver.stored["a", Tier.HOST]) >= 5
    driver.drain()
    driver.check_idle()


def test_they_stay_where_restoring_them_takes_longer_than_loading_weights() -> None:
    driver = driver_of(copy=0.5)
    serve(driver)
    assert driver.scheduler.occupancy().cached > 0
    assert yielded(driver) == 0


def test_those_without_a_copy_go_only_when_nobody_is_expected_for_them() -> None:
    for final, expected in ((False, 0), (True, 5)):
        driver = driver_of(host_kv=False)
        serve(driver, final=final)
        assert driver.scheduler.occupancy().cached == 5
        assert yielded(driver) == expected


def test_those_of_a_session_that_is_back_stay_until_it_comes_in() -> None:
    """No branch is out any more, but one waits for its turn to come in."""
    for host_kv, joins, expected in ((False, True, 0), (True, True, 5), (False, False, 5)):
        driver = driver_of(host_kv=host_kv)
        serve(driver)
        known = [2] * 20 + driver.tokens[(2).to_bytes(16, "big")]
        driver.submit(submission(9, "a", [*known, 5], branch=b"away", continuation=joins))
        assert yielded(driver) == expected
        driver.drain()
        started = driver.started[(9).to_bytes(16, "big")]
        assert started.cached_tokens == (20 if joins else 0)
        assert started.restored_tokens == 4 * expected * joins
        driver.check_idle()


def test_no_more_go_than_room_is_missing() -> None:
    driver = driver_of()
    serve(driver)
    for covered, slack in ((0, 1 << 20), (1 << 20, 0), ((1 << 20) - 16_000, 1_000)):
        driver.stage(covered, slack)
        assert counters(driver).yielded_blocks == 0
    driver.stage((1 << 20) - 16_000, 999)
    assert counters(driver).yielded_blocks == 1


def test_room_beyond_what_is_missing_saves_nothing() -> None:
    """Restoring a block takes longer than loading 300 bytes, and not as long as loading 900."""
    driver = driver_of(copy=200 / (1 << 20))
    serve(driver)
    for missing, expected in ((300, 0), (900, 1)):
        driver.stage((1 << 20) - missing, 0)
        assert counters(driver).yielded_blocks == expected


def test_blocks_below_one_that_is_held_stay() -> None:
    """Rows are free from the highest one in use on."""
    driver = driver_of()
    serve(driver)
    driver.submit(submission(4, "a", [4] * 30, max_tokens=40, branch=b"x", continuation=True))
    while not driver.tokens[(4).to_bytes(16, "big")] and driver.scheduler.active_model == "a":
        driver.turn(1)
    held = driver.scheduler.occupancy().held
    yielded(driver)
    assert driver.scheduler.device_rows >= held
