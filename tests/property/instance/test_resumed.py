"""A call that was cut anywhere and goes on in a fresh instance is the call that was never cut."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from alipes.instance.contract import Finished, InstanceSettings, ModelReport, Submit
from alipes.instance.scheduler.work import Run

from .simulated import BLOCK, VOCABULARY, Driver, report, resume, settings_of, submission


@dataclass
class Plan:
    """Calls to an instance, of which each ``turn`` of the first attempt makes ``steps``."""

    settings: InstanceSettings
    reports: tuple[ModelReport, ...]
    calls: list[Submit]
    turns: int
    steps: int

    def __repr__(self) -> str:
        calls = [(c.model, len(c.tokens) // 4, c.max_tokens, c.stop_ids) for c in self.calls]
        return f"{self.settings} {self.reports} {calls} {self.turns} {self.steps}"

    def begun(self) -> Driver:
        driver = Driver(self.settings, self.reports)
        for call in self.calls:
            assert driver.submit(call) is None
        return driver


PROMPTS = st.tuples(st.integers(0, 3), st.integers(0, 40)).map(
    lambda made: [*[1] * (BLOCK * made[0]), 2, *[7] * made[1]]
)
IDS = st.integers(0, VOCABULARY - 1)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    names = ["a", "b"][: draw(st.integers(1, 2))]
    slots = draw(st.sampled_from([0, 5, 40]))
    calls = [
        submission(
            number,
            draw(st.sampled_from(names)),
            draw(PROMPTS),
            draw(st.integers(1, 60)),
            tuple(draw(st.lists(IDS, max_size=2))),
            forced=np.array(draw(st.lists(IDS, max_size=9)), "<i4").tobytes(),
        )
        for number in range(draw(st.integers(1, 6)))
    ]
    chosen = settings_of(
        names,
        host_bytes=draw(st.sampled_from([0, 12_000, 1_000_000])),
        allow_forced_tokens=True,
    )
    # So few blocks that calls give way to one another, or enough for all.
    blocks = draw(st.sampled_from([30, 40, 200]))
    reports = tuple(report(name, blocks, slots=slots) for name in names)
    return Plan(chosen, reports, calls, draw(st.integers(0, 40)), draw(st.integers(1, 9)))


def counts(finished: Finished) -> Finished:
    """Without the times, and what was cached where the call ended."""
    nothing = {"queued": 0.0, "prefill": 0.0, "decode": 0.0}
    return msgspec.structs.replace(finished, cached_tokens=0, restored_tokens=0, **nothing)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(plan=plans())
def test_a_call_that_was_cut_ends_as_if_it_had_not_been(plan: Plan) -> None:
    whole = plan.begun()
    whole.drain()
    cut = plan.begun()
    for _ in range(plan.turns):
        cut.turn(plan.steps)
    rest = Driver(plan.settings, plan.reports)
    for call_id, call in cut.live.items():
        assert rest.submit(resume(call, cut.tokens[call_id])) is None
    rest.drain()
    rest.check_idle()
    for call in plan.calls:
        call_id = call.call_id
        assert cut.tokens[call_id] + rest.tokens[call_id] == whole.tokens[call_id]
        ended = rest.finished.get(call_id) or cut.finished[call_id]
        assert counts(ended) == counts(whole.finished[call_id])


def one(tokens: int, drawn: int, max_tokens: int) -> Driver:
    """A call goes on after ``drawn`` tokens, and nothing else is here."""
    driver = Driver(settings_of(["a"]), (report("a", 200),))
    call = submission(1, "a", [1] * tokens, max_tokens)
    driver.submit(call)
    while len(driver.tokens[call.call_id]) < drawn:
        driver.turn(1)
    said = driver.tokens[call.call_id]
    driver.cancel(call.call_id)
    driver.submit(resume(call, said, call_id=bytes(16)))
    return driver


def test_all_that_was_submitted_can_be_cached() -> None:
    driver = one(tokens=10, drawn=11, max_tokens=20)
    driver.drain()
    # Of 21 tokens 20 were computed: 5 blocks, more than the prompt has.
    assert driver.started[bytes(16)].cached_tokens == 5 * BLOCK
    finished = driver.finished[bytes(16)]
    assert (finished.prompt_tokens, finished.completion_tokens) == (10, 20)
    assert finished.cached_tokens == 5 * BLOCK


def test_what_another_instance_drew_is_no_work_that_a_switch_undid() -> None:
    driver = one(tokens=10, drawn=11, max_tokens=20)
    work = driver.turn()
    assert isinstance(work, Run)
    slot = driver.slot
    assert slot is not None
    assert slot.returned == 0.0


def test_a_call_that_was_saved_before_it_drew_here_still_has_to_begin() -> None:
    """All but one of its tokens are known, and it is saved before it is told to have started."""
    driver = Driver(settings_of(["a", "b"], host_bytes=10**6), (report("a", 200), report("b", 200)))
    call = submission(1, "a", [1] * 10, 30)
    driver.submit(call)
    while len(driver.tokens[call.call_id]) < 11:
        driver.turn(1)
    said = driver.tokens[call.call_id]
    driver.cancel(call.call_id)
    driver.submit(resume(call, said, call_id=bytes(16)))
    driver.submit(submission(2, "b", [3] * 10, 40))
    active = driver.scheduler._active
    assert active is not None
    # As where time for P ends with its restore: it is resident, and was never run.
    assert active.admit(driver.scheduler._calls[bytes(16)])
    assert driver.scheduler._calls[bytes(16)].pending == 1
    driver.scheduler._serving = None
    driver.drain()
    assert driver.finished[bytes(16)].completion_tokens == 30
