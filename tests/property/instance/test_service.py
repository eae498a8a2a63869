"""What the scheduler promises, measured on the simulated engine."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from alipes.instance.contract import FailureClass, Targets, Tier
from alipes.instance.scheduler.fits import SMOOTHING
from alipes.instance.scheduler.work import Restore, Run, Switch

from .simulated import BLOCK, Costs, Driver, report, settings_of, submission


def driver_of(names: list[str], blocks: int = 400, **changes: object) -> Driver:
    return Driver(settings_of(names, **changes), tuple(report(name, blocks) for name in names))


def runs(driver: Driver, phase: str | None = None) -> list[Run]:
    return [w for w in driver.works if isinstance(w, Run) and phase in (None, w.phase)]


def turn_to(driver: Driver, model: str, steps: int = 1_000_000) -> None:
    """Go on until this model has been made active."""
    while True:
        work = driver.turn(steps)
        if isinstance(work, Switch) and work.model == model:
            return


def test_the_token_cadence_holds_on_average() -> None:
    driver = driver_of(["a", "b", "c"], host_bytes=10**6)
    targets = driver.settings.targets
    number = 0
    for name in ("a", "b", "c"):
        for _ in range(3):
            number += 1
            driver.submit(submission(number, name, [number] * 20, max_tokens=250))
    # New prompts keep coming while the first nine calls decode.
    while len(driver.works) < 400 and driver.live:
        driver.turn()
        if number < 60 and len(driver.works) % 5 == 0:
            number += 1
            driver.submit(submission(number, "abc"[number % 3], [7] * 30, max_tokens=3))
    driver.drain()
    for call in range(1, 10):
        times = driver.token_times[call.to_bytes(16, "big")]
        cadence = (times[-1] - times[0]) / 1e9 / (len(times) - 1)
        assert cadence <= targets.tpot * 1.02
    assert not driver.scheduler.snapshot(driver.engine.now).counters.deadline_risk


def test_rounds_stay_within_their_bound() -> None:
    driver = driver_of(["a", "b", "c"], host_bytes=10**6)
    bound = driver.settings.targets.gamma * driver.settings.targets.ttft
    for number in range(45):
        driver.submit(submission(number, "abc"[number % 3], [number] * 60, max_tokens=40))
    opened: dict[str, int] = {}
    waits: list[float] = []
    while True:
        begin = driver.engine.now
        work = driver.turn()
        if work is None:
            break
        if isinstance(work, Switch):
            if work.model in opened:
                waits.append((begin - opened[work.model]) / 1e9)
            opened[work.model] = begin
    assert len(waits) > 5
    # The first rounds run on priors; after them a model is back within the bound and a run.
    assert max(waits[3:]) <= bound * 1.1


any_service = given(
    switch=st.floats(0.0, 0.4),
    step=st.floats(0.004, 0.02),
    token=st.floats(0.0005, 0.004),
    prompts=st.lists(st.integers(1, 90), min_size=6, max_size=20),
    outputs=st.lists(st.integers(1, 90), min_size=6, max_size=20),
)


@pytest.mark.slow
@any_service
@settings(max_examples=60, deadline=None, phases=[Phase.reuse, Phase.generate])
def test_many_services_keep_to_the_bound(**service: Any) -> None:
    check_every_model_is_revisited(**service)


@any_service
@example(
    switch=0.24183351735482145,
    step=0.02,
    token=0.002558743030279341,
    prompts=[42, 7, 52, 72, 23, 22, 87, 83, 31, 34],
    outputs=[87, 66, 58, 68, 78, 27, 67, 3, 69, 62, 44, 77, 35, 9, 58, 25],
)
@settings(max_examples=7, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
def test_every_model_is_revisited_within_the_bound_or_the_risk_is_told(**service: Any) -> None:
    check_every_model_is_revisited(**service)


def check_every_model_is_revisited(
    switch: float, step: float, token: float, prompts: list[int], outputs: list[int]
) -> None:
    driver = driver_of(["a", "b", "c"], host_bytes=10**6)
    driver.engine.costs = Costs(token=token, step=step, switch=switch)
    bound = driver.settings.targets.gamma * driver.settings.targets.ttft
    longest_run = driver.engine.costs.base + driver.settings.prefill_chunk * token + step
    # First every cost is measured once: this is not about priors.
    for number in range(100, 112):
        prompt = [number % 50] * (number - 90)
        assert driver.submit(submission(number, "abc"[number % 3], prompt, 8)) is None
    driver.drain()
    lengths = zip(itertools.cycle(prompts), itertools.cycle(outputs), strict=False)
    for number, (length, output) in zip(range(60), lengths, strict=False):
        call = submission(number, "abc"[number % 3], [number % 50] * length, output)
        assert driver.submit(call) is None
    begin = driver.engine.now
    while driver.turn() is not None:
        for openings in driver.openings.values():
            # What is predicted are means of what was measured.
            full = len(openings) == 3 and openings[0][0] >= begin
            if full and openings[0][1] == openings[-1][1]:
                assert (openings[-1][0] - openings[-2][0]) / 1e9 <= bound * 1.02 + longest_run


def test_a_prompt_longer_than_a_round_is_computed_over_several_slots() -> None:
    driver = driver_of(["a", "b"], targets=Targets(ttft=1.0, tpot=0.2, gamma=0.8), host_bytes=10**6)
    for number in range(20):
        driver.submit(submission(number, "b", [3, number] * 10, max_tokens=20))
    driver.submit(submission(99, "a", [5] * 390, max_tokens=3))
    driver.drain()
    slots = 0
    chunks: list[int] = []
    for work in driver.works:
        if isinstance(work, Switch) and work.model == "a":
            slots += 1
        if isinstance(work, Run) and work.model == "a" and work.phase == "P":
            chunks += work.chunks
    assert sum(chunks) == 390
    assert max(chunks) == driver.settings.prefill_chunk
    assert slots >= 3
    assert any(isinstance(work, Restore) for work in driver.works)
    driver.check_idle()


@pytest.mark.parametrize(("host_bytes", "priority"), [(10**6, 0), (0, 1)])
def test_an_arriving_prompt_is_interleaved_with_decode(host_bytes: int, priority: int) -> None:
    targets = Targets(ttft=4.0, tpot=0.04, gamma=0.8)
    driver = driver_of(["a"], targets=targets, host_bytes=host_bytes)
    driver.submit(submission(1, "a", [1] * 8, max_tokens=100))
    for _ in range(4):
        driver.turn(steps=3)
    driver.submit(submission(2, "a", [2] * 64, max_tokens=2, priority=priority))
    driver.drain()
    phases = [work.phase for work in runs(driver)]
    first = phases.index("P", phases.index("P") + 1)
    # Between any two chunks the running call gets the iterations that are owed for one.
    prefills = [i for i, phase in enumerate(phases) if phase == "P" and i >= first]
    assert len(prefills) == 4
    for before, after in itertools.pairwise(prefills):
        assert after - before > 1
    assert not any(isinstance(work, Switch) for work in driver.works[1:])
    times = driver.token_times[(1).to_bytes(16, "big")]
    gaps = [(b - a) / 1e9 for a, b in itertools.pairwise(times)]
    assert max(gaps) <= 0.01 + 16 * 0.002 + 0.02 + 0.002 + 1e-6


def test_short_prompts_share_a_prefill_run() -> None:
    driver = driver_of(["a"])
    for number in range(4):
        driver.submit(submission(number, "a", [number] * 4, max_tokens=2))
    driver.drain()
    assert [len(run.call_ids) for run in runs(driver, "P")] == [4]


def test_a_slot_is_closed_as_soon_as_another_model_waits_and_decode_is_paid() -> None:
    driver = driver_of(["a", "b"])
    driver.submit(submission(1, "a", [1] * 8, max_tokens=300))
    for _ in range(8):
        driver.turn(steps=20)
    begin = driver.engine.now
    driver.submit(submission(2, "b", [1] * 8, max_tokens=1))
    while (2).to_bytes(16, "big") not in driver.started:
        driver.turn()
    assert (driver.engine.now - begin) / 1e9 < 1.0
    driver.drain()


def test_what_ends_sooner_than_another_visit_takes_is_finished() -> None:
    driver = driver_of(["a", "b", "c"], host_bytes=10**6, switch_share=0.3)
    driver.engine.costs.switch = 0.25
    for number in range(60):
        tokens = (45, 59, 2, 1, 1, 63)[number % 6]
        driver.submit(submission(number, "abc"[number % 3], [number % 50], tokens))
    beyond: set[bytes] = set()
    work = driver.turn()
    while work is not None:
        slot = driver.slot
        paid = slot is not None and slot.owed == 0
        work = driver.turn()
        if isinstance(work, Run) and work.phase == "Dfin" and paid:
            if driver.slot is slot:
                beyond.update(work.call_ids)
        elif isinstance(work, Switch):
            models = driver.scheduler._calls.models.values()
            assert beyond.isdisjoint(call for state in models for call in state.saved)
    assert beyond


def test_a_switch_costs_what_saving_and_restoring_take_too() -> None:
    driver = driver_of(["a", "b"], host_bytes=10**6)
    driver.engine.costs.copy = 0.1
    for number in (1, 2):
        driver.submit(submission(number, "a", [number] * 4, max_tokens=300))
    driver.turn()
    driver.turn()
    driver.submit(submission(3, "b", [3] * 4, max_tokens=1))
    turn_to(driver, "b")
    assert len(driver.scheduler._calls.models["a"].saved) == 2
    driver.turn(1)
    estimates = driver.scheduler.snapshot(driver.engine.now).estimates
    assert estimates["b"].switch == pytest.approx(0.1 + 0.1, rel=0.05)
    while not isinstance(driver.turn(), Restore):
        pass
    driver.turn(1)
    snapshot = driver.scheduler.snapshot(driver.engine.now)
    estimates = snapshot.estimates
    # At its first switch nothing had to be saved or brought back.
    assert estimates["a"].switch == pytest.approx(0.1 + SMOOTHING * 0.1, rel=0.05)
    assert snapshot.counters.turn_seconds == pytest.approx(0.1 + 0.2 + 0.2)


def test_a_round_that_time_has_overrun_is_told() -> None:
    driver = driver_of(["a", "b"], host_bytes=10**6)
    for number in (1, 2):
        driver.submit(submission(number, "ab"[number % 2], [number] * 4, max_tokens=200))
    while len(driver.openings["a"]) < 3:
        driver.turn()
    assert not driver.scheduler.snapshot(driver.engine.now).counters.deadline_risk
    driver.engine.spend(2 * driver.settings.targets.ttft)
    driver.drain()
    assert driver.scheduler.snapshot(driver.engine.now).counters.deadline_risk


def test_a_known_prefix_is_not_computed_again() -> None:
    driver = driver_of(["a"])
    prompt = [1, 2, 3, 4, 5, 6, 7, 8]
    driver.submit(submission(1, "a", prompt, max_tokens=5))
    driver.drain()
    said = driver.tokens[(1).to_bytes(16, "big")]
    # The whole prompt again: its last block is left, as something must be computed.
    driver.submit(submission(2, "a", prompt, max_tokens=1))
    # Its continuation: what the first call generated is known too, except its last token.
    driver.submit(submission(3, "a", [*prompt, *said, 9], max_tokens=1))
    driver.drain()
    assert driver.started[(2).to_bytes(16, "big")].cached_tokens == BLOCK
    assert driver.started[(3).to_bytes(16, "big")].cached_tokens == 3 * BLOCK


def test_without_host_kv_a_switch_makes_the_prefix_unknown() -> None:
    driver = driver_of(["a", "b"], host_kv=False)
    driver.submit(submission(1, "a", [1] * 12, max_tokens=1))
    driver.drain()
    assert driver.stored["a", Tier.DEVICE]
    driver.submit(submission(2, "b", [1] * 12, max_tokens=1))
    driver.drain()
    assert not driver.stored["a", Tier.DEVICE]
    driver.submit(submission(3, "a", [1] * 12, max_tokens=1))
    driver.drain()
    assert driver.started[(3).to_bytes(16, "big")].cached_tokens == 0


def test_the_newest_gives_way_when_blocks_run_out() -> None:
    driver = driver_of(["a"], blocks=16)
    old = submission(1, "a", [1] * 20, max_tokens=40)
    new = submission(2, "a", [2] * 20, max_tokens=40)
    driver.submit(old)
    driver.submit(new)
    driver.drain()
    assert list(driver.finished) == [old.call_id, new.call_id]
    assert driver.scheduler.snapshot(0).counters.preempted >= 1


def test_two_prompts_that_fit_only_one_by_one_both_finish() -> None:
    driver = driver_of(["a"], blocks=16, prefill_chunk=8)
    for number in (1, 2, 3):
        driver.submit(submission(number, "a", [number] * 50, max_tokens=10))
    driver.drain()
    assert len(driver.finished) == 3


def test_without_host_bytes_calls_are_recomputed() -> None:
    driver = driver_of(["a", "b"], host_bytes=0)
    for number, name in enumerate("abab"):
        driver.submit(submission(number, name, [number] * 40, max_tokens=120))
    driver.drain()
    assert len(driver.finished) == 4
    assert all(w.save is None for w in driver.works if isinstance(w, Switch))
    assert driver.scheduler.snapshot(0).counters.preempted > 0


def test_where_the_host_is_short_the_first_in_order_are_saved() -> None:
    driver = driver_of(["a", "b"], host_bytes=18_000)
    for number, priority in ((1, 0), (2, 1)):
        driver.submit(submission(number, "a", [number] * 40, max_tokens=200, priority=priority))
        driver.turn()
        driver.turn()
    driver.submit(submission(3, "b", [3] * 8, max_tokens=2))
    turn_to(driver, "b", steps=1)
    assert [call_id[-1] for call_id in driver.scheduler._calls.models["a"].saved] == [2]
    driver.drain()
    assert len(driver.finished) == 3


def test_forced_tokens_replace_the_draw() -> None:
    driver = driver_of(["a"], allow_forced_tokens=True)
    call = submission(1, "a", [1] * 6, max_tokens=4)
    forced = type(call)(
        call.call_id, "a", call.root, call.tokens, 4, forced=b"\x09\0\0\0\x08\0\0\0"
    )
    driver.scheduler.submit(forced, 0)
    tokens: list[int] = []
    while (work := driver.scheduler.next(driver.engine.now)) is not None:
        if isinstance(work, Switch):
            switch = driver.engine.activate(work.model)
            driver.scheduler.switched(work, switch, 0.0, driver.engine.now)
        elif isinstance(work, Run):
            sampled = driver.engine.step(driver.scheduler.rows(work))
            progress = driver.scheduler.stepped(work, sampled, 0.01, driver.engine.now)
            tokens += [drawn.token for drawn in progress.drawn]
    assert tokens[:2] == [9, 8]
    assert len(tokens) == 4


def test_a_full_queue_and_a_draining_instance_refuse() -> None:
    driver = driver_of(["a", "b"], max_waiting=2)
    for number, name in ((1, "a"), (2, "b")):
        assert driver.submit(submission(number, name, [1])) is None
    failed = driver.submit(submission(3, "a", [1]))
    assert failed is not None
    assert failed.failure is FailureClass.OVERLOADED
    again = driver.scheduler.submit(submission(1, "a", [1]), 0)
    assert again is not None
    assert again.field == "call_id"
    driver.scheduler.drain()
    failed = driver.submit(submission(4, "a", [1]))
    assert failed is not None
    assert failed.failure is FailureClass.GONE
    driver.drain()
    assert len(driver.finished) == 2
    assert driver.scheduler.snapshot(0).draining


def test_an_infeasible_set_is_said_and_still_served() -> None:
    driver = driver_of(["a", "b"])
    driver.engine.costs.step = 0.3
    for number in range(8):
        driver.submit(submission(number, "ab"[number % 2], [1] * 8, max_tokens=60))
    driver.drain()
    assert len(driver.finished) == 8
    assert sum(driver.scheduler.snapshot(0).counters.deadline_risk.values()) > 0


@pytest.mark.parametrize("when", range(12))
def test_a_cancel_frees_everything_whatever_the_state(when: int) -> None:
    driver = driver_of(["a", "b"])
    for number in range(6):
        driver.submit(submission(number, "ab"[number % 2], [number] * 40, max_tokens=200))
    for _ in range(when * 3):
        driver.turn(steps=2)
    for call_id in list(driver.live):
        driver.cancel(call_id)
    driver.drain()
    driver.check_idle()
    assert not driver.scheduler.cancel(bytes(16), 0)


def test_a_snapshot_tells_the_work() -> None:
    driver = driver_of(["a", "b"])
    driver.submit(submission(1, "a", [1] * 40, max_tokens=10))
    driver.submit(submission(2, "b", [1] * 30, max_tokens=10))
    before = driver.scheduler.snapshot(0)
    assert (before.phase, before.active_model, before.last_call[-1]) == ("idle", "", 2)
    assert before.loads["a"].waiting == 1
    assert before.loads["a"].waiting_tokens == 40
    driver.turn()
    driver.turn()
    shot = driver.scheduler.snapshot(driver.engine.now)
    assert shot.version == before.version + 2 + 1
    assert (shot.phase, shot.active_model) == ("P", "a")
    assert shot.loads["a"].running == 1
    assert shot.loads["a"].waiting_tokens == 40 - 16
    assert shot.loads["a"].remaining_tokens == 10
    # Of the round, the switch into it and the open slot's first run are over.
    spent = (driver.engine.now - driver.openings["a"][-1][0]) / 1e9
    over = shot.estimates["a"].switch + spent
    assert shot.round_remaining == pytest.approx(shot.round_length - over)
    assert shot.occupancy.held == 4
