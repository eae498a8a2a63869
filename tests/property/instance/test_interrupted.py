"""Calls that switches interrupt and that cannot be saved: what is computed again pays off."""

from __future__ import annotations

from alipes.instance.contract import Targets
from alipes.instance.scheduler.work import Switch

from .simulated import Driver, report, settings_of, submission


def test_what_is_computed_again_is_at_most_as_much_as_what_it_was_for() -> None:
    """No round with two such prompts meets its bound, and the host can save nothing: were each
    model to draw but a token in its slots, every token would cost a prompt."""
    tight = Targets(ttft=0.5, tpot=0.1, gamma=0.5)
    settings = settings_of(["a", "b"], host_bytes=0, targets=tight)
    driver = Driver(settings, (report("a", 90), report("b", 90)))
    for number, model in enumerate("ab"):
        driver.submit(submission(number, model, [number] * 200, max_tokens=100))
    driver.drain()
    driver.check_idle()
    costs, preempted = driver.engine.costs, driver.scheduler.counters().preempted
    assert preempted > 0
    again = preempted * 200 * costs.token
    drawing = 2 * 100 * (costs.step + costs.call)
    assert again <= drawing + 2 * 200 * costs.token
    assert sum(isinstance(work, Switch) for work in driver.works) <= preempted + 2
