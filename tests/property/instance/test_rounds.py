from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from alipes.instance.contract import Failed, FailureClass, Submit

from .simulated import BLOCK, VOCABULARY, Driver, report, resume, settings_of, submission

# Few different prompts that begin alike, so that prefixes are shared.
prompts = st.tuples(
    st.lists(st.sampled_from([1, 2]), max_size=4),
    st.integers(1, 70),
).map(lambda made: [token for token in made[0] for _ in range(BLOCK)] + [7] * made[1])
stop_ids = st.lists(st.integers(0, VOCABULARY - 1), max_size=4).map(tuple)


class Rounds(RuleBasedStateMachine):
    """Sessions that begin, go on after a gap and are cancelled, time, and copies that are slow,
    refused or torn, in any order; the driver checks every step."""

    @initialize(
        models=st.integers(1, 3),
        blocks=st.sampled_from([30, 48, 200]),
        host=st.sampled_from([0, 12_000, 30_000, 1_000_000]),
        switch=st.sampled_from([0.0, 0.1, 2.0]),
        step=st.sampled_from([0.001, 0.02, 0.3]),
        copy=st.sampled_from([0.0, 0.001, 0.05]),
        delay=st.integers(0, 5),
        session_prefill=st.booleans(),
        host_kv=st.booleans(),
        slots=st.sampled_from([0, 0, 5, 9, 40]),
        turns=st.booleans(),
    )
    def build(
        self,
        models: int,
        blocks: int,
        host: int,
        switch: float,
        step: float,
        copy: float,
        delay: int,
        session_prefill: bool,
        host_kv: bool,
        slots: int,
        turns: bool,
    ) -> None:
        self.names = [f"m{index}" for index in range(models)]
        settings = settings_of(
            self.names,
            host_bytes=host,
            max_waiting=12,
            allow_forced_tokens=True,
            session_prefill=session_prefill,
            host_kv=host_kv,
            prefill_turns=turns,
        )
        reports = tuple(
            # The second has no recurrent layers.
            report(name, blocks, slabs=2 + n % 2, slots=slots * (n != 1))
            for n, name in enumerate(self.names)
        )
        self.driver = Driver(settings, reports)
        self.driver.engine.costs.switch = switch
        self.driver.engine.costs.step = step
        self.driver.engine.costs.copy = copy
        self.driver.engine.delay = delay
        self.capacity = blocks * BLOCK
        self.number = 0
        self.at_home: list[bytes] = []

    @rule(
        data=st.data(),
        prompt=prompts,
        max_tokens=st.integers(1, 40),
        stops=stop_ids,
        priority=st.integers(-1, 1),
        forced=st.lists(st.integers(0, VOCABULARY - 1), max_size=3).map(tuple),
    )
    def begin(
        self,
        data: st.DataObject,
        prompt: list[int],
        max_tokens: int,
        stops: tuple[int, ...],
        priority: int,
        forced: tuple[int, ...],
    ) -> None:
        model = data.draw(st.sampled_from(self.names))
        branch = data.draw(st.sampled_from([b"", b"branch %d" % self.number]))
        self.submit(model, prompt, max_tokens, stops, priority, branch, False, forced=forced)

    @rule(covered=st.integers(0, 1 << 20), slack=st.sampled_from([0, 0, 1 << 10, 1 << 20]))
    def stage(self, covered: int, slack: int) -> None:
        self.driver.stage(covered, slack)

    @precondition(lambda self: self.returning())
    @rule(
        data=st.data(),
        more=st.lists(st.sampled_from([3, 4]), min_size=1, max_size=30),
        max_tokens=st.integers(1, 20),
        stops=stop_ids,
        final=st.booleans(),
        gap=st.sampled_from([0.0, 0.0, 0.01, 0.5]),
    )
    def go_on(
        self,
        data: st.DataObject,
        more: list[int],
        max_tokens: int,
        stops: tuple[int, ...],
        final: bool,
        gap: float,
    ) -> None:
        """A session returns with what was said to it and more."""
        before = data.draw(st.sampled_from(self.returning()))
        said = self.driver.tokens[before.call_id]
        prompt = [*np.frombuffer(before.tokens, dtype="<i4").tolist(), *said, *more]
        self.driver.engine.spend(gap)
        failed = self.submit(before.model, prompt, max_tokens, stops, 0, before.branch, True, final)
        if failed is None:
            self.at_home.append(before.call_id)

    def returning(self) -> list[Submit]:
        if not hasattr(self, "driver"):
            return []
        submitted, finished = self.driver.submitted, self.driver.finished
        return [submitted[c] for c in finished if submitted[c].branch and c not in self.at_home]

    def submit(
        self,
        model: str,
        prompt: list[int],
        max_tokens: int,
        stops: tuple[int, ...],
        priority: int,
        branch: bytes,
        continuation: bool,
        final: bool = False,
        forced: tuple[int, ...] = (),
    ) -> Failed | None:
        self.number += 1
        call = submission(
            self.number,
            model,
            prompt,
            max_tokens,
            stops,
            priority,
            branch=branch,
            continuation=continuation,
            final=final,
            forced=np.array(forced, "<i4").tobytes(),
        )
        return self.take(call)

    def take(self, call: Submit) -> Failed | None:
        waiting = sum(len(state.waiting) for state in self.driver.scheduler._calls.models.values())
        failed = self.driver.submit(call)
        whole = len(call.tokens) // 4 - call.resumed + call.max_tokens
        if whole > min(self.capacity + 1, 400):
            assert failed is not None
            assert failed.failure is FailureClass.INVALID
        elif failed is not None:
            assert failed.failure is FailureClass.OVERLOADED
            assert waiting >= 12
        return failed

    @rule(steps=st.integers(1, 30))
    def turn(self, steps: int) -> None:
        self.driver.turn(steps)

    @rule(count=st.integers(2, 20))
    def turns(self, count: int) -> None:
        for _ in range(count):
            self.driver.turn()

    @precondition(lambda self: self.driver.live)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.driver.cancel(data.draw(st.sampled_from(sorted(self.driver.live))))

    @precondition(lambda self: self.driver.live)
    @rule(data=st.data())
    def begin_anew(self, data: st.DataObject) -> None:
        """A call is interrupted, and another goes on after what it has drawn."""
        call_id = data.draw(st.sampled_from(sorted(self.driver.live)))
        call, said = self.driver.live[call_id], self.driver.tokens[call_id]
        self.driver.cancel(call_id)
        self.number += 1
        self.take(resume(call, said, call_id=self.number.to_bytes(16, "big")))

    @rule(seconds=st.floats(0.0, 5.0))
    def wait(self, seconds: float) -> None:
        self.driver.engine.spend(seconds)

    @rule(count=st.integers(1, 2))
    def refuse_copies(self, count: int) -> None:
        self.driver.engine.refusals = count

    @rule(tears=st.lists(st.integers(0, 9), max_size=2))
    def tear_copies(self, tears: list[int]) -> None:
        self.driver.engine.tears = tears

    @invariant()
    def conserved(self) -> None:
        if hasattr(self, "driver"):
            self.driver.check_blocks()

    def teardown(self) -> None:
        if hasattr(self, "driver"):
            self.driver.drain()
            self.driver.check_idle()


TestRounds = Rounds.TestCase
TestRounds.settings = settings(
    max_examples=150,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
