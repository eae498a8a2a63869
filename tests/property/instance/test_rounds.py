from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from alipes.instance.contract import FailureClass

from .simulated import BLOCK, VOCABULARY, Driver, report, settings_of, submission

# Few different prompts that begin alike, so that prefixes are shared.
prompts = st.tuples(
    st.lists(st.sampled_from([1, 2]), max_size=4),
    st.integers(1, 70),
).map(lambda made: [token for token in made[0] for _ in range(BLOCK)] + [7] * made[1])


class Rounds(RuleBasedStateMachine):
    """Submissions, cancellations and time in any order; the driver checks every step."""

    @initialize(
        models=st.integers(1, 3),
        blocks=st.sampled_from([30, 48, 200]),
        host=st.sampled_from([0, 12_000, 1_000_000]),
        switch=st.sampled_from([0.0, 0.1, 2.0]),
        step=st.sampled_from([0.001, 0.02, 0.3]),
    )
    def build(self, models: int, blocks: int, host: int, switch: float, step: float) -> None:
        self.names = [f"m{index}" for index in range(models)]
        settings = settings_of(self.names, host_bytes=host, max_waiting=12)
        self.driver = Driver(settings, tuple(report(name, blocks) for name in self.names))
        self.driver.engine.costs.switch = switch
        self.driver.engine.costs.step = step
        self.capacity = blocks * BLOCK
        self.number = 0

    @rule(
        data=st.data(),
        prompt=prompts,
        max_tokens=st.integers(1, 40),
        stops=st.lists(st.integers(0, VOCABULARY - 1), max_size=4).map(tuple),
        priority=st.integers(-1, 1),
    )
    def submit(
        self,
        data: st.DataObject,
        prompt: list[int],
        max_tokens: int,
        stops: tuple[int, ...],
        priority: int,
    ) -> None:
        self.number += 1
        model = data.draw(st.sampled_from(self.names))
        call = submission(self.number, model, prompt, max_tokens, stops, priority)
        waiting = sum(len(state.waiting) for state in self.driver.scheduler._calls.models.values())
        failed = self.driver.submit(call)
        if len(prompt) + max_tokens > self.capacity + 1:
            assert failed is not None
            assert failed.failure is FailureClass.INVALID
        elif failed is not None:
            assert failed.failure is FailureClass.OVERLOADED
            assert waiting >= 12

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

    @rule(seconds=st.floats(0.0, 5.0))
    def wait(self, seconds: float) -> None:
        self.driver.engine.spend(seconds)

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
