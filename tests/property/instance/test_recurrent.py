"""Prefixes of models with recurrent layers: of use only where a state after them is kept."""

from __future__ import annotations

import pytest

from alipes.instance.contract import Counters, Started

from .simulated import BLOCK, Driver, answer, report, settings_of, submission

PROMPT = [1] * (6 * BLOCK) + [2]


def driver(slots: int = 12, **changes: object) -> Driver:
    fields: dict[str, object] = {"host_bytes": 1_000_000, "prefill_chunk": 8 * BLOCK}
    settings = settings_of(["a", "b"], **(fields | changes))
    return Driver(settings, tuple(report(name, 60, slots=slots) for name in ("a", "b")))


def served(made: Driver, number: int, model: str, prompt: list[int], tokens: int = 6) -> Started:
    call = submission(number, model, prompt, tokens)
    assert made.submit(call) is None
    made.drain()
    return made.started[call.call_id]


def counters(made: Driver) -> Counters:
    return made.scheduler.snapshot(made.engine.now).counters


def test_a_session_goes_on_from_the_last_block_of_its_reply() -> None:
    made = driver()
    served(made, 1, "a", PROMPT)
    longer = [*PROMPT, *answer(PROMPT, 6, ()), 3, 4]
    assert served(made, 2, "a", longer).cached_tokens == 7 * BLOCK
    assert counters(made).declined_tokens == 0


def test_a_session_goes_on_from_the_host_after_its_model_was_away() -> None:
    made = driver()
    served(made, 1, "a", PROMPT)
    served(made, 2, "b", [5] * 30)
    longer = [*PROMPT, *answer(PROMPT, 6, ()), 3, 4]
    started = served(made, 3, "a", longer)
    assert started.cached_tokens == started.restored_tokens == 7 * BLOCK
    assert counters(made).declined_tokens == 0


def test_the_same_prompt_goes_on_from_its_last_block() -> None:
    made = driver()
    served(made, 1, "a", PROMPT)
    assert served(made, 2, "a", PROMPT).cached_tokens == 6 * BLOCK


def test_a_prefix_without_a_state_is_declined_and_computed() -> None:
    made = driver()
    served(made, 1, "a", PROMPT)
    # The blocks of the beginning are there, but states only from the end of the prompt on.
    assert served(made, 2, "a", [*PROMPT[: 4 * BLOCK], 7, 7]).cached_tokens == 0
    assert counters(made).declined_tokens == 4 * BLOCK
    made.check_idle()


@pytest.mark.parametrize("away", [True, False])
@pytest.mark.parametrize("tail", [0, 1, 2, 3])
def test_a_prompt_that_is_sent_again_is_restored_except_for_its_end(tail: int, away: bool) -> None:
    made, prompt = driver(), [1] * (6 * BLOCK) + [2] * tail
    # Whatever was said: the reply passes several block boundaries.
    served(made, 1, "a", prompt, 5 * BLOCK)
    if away:
        served(made, 2, "b", [5] * 30)
    started = served(made, 3, "a", prompt)
    assert started.cached_tokens == (5 if tail == 0 else 6) * BLOCK
    assert started.restored_tokens == away * started.cached_tokens
    assert counters(made).declined_tokens == 0
    made.check_idle()


@pytest.mark.parametrize("chunk", [BLOCK, 10, 4 * BLOCK, 27])
def test_wherever_its_chunks_end(chunk: int) -> None:
    made, prompt = driver(prefill_chunk=chunk), [*PROMPT, 3, 3]
    served(made, 1, "a", prompt, 5 * BLOCK)
    served(made, 2, "b", [5] * 30)
    assert served(made, 3, "a", prompt).restored_tokens == 6 * BLOCK


def test_a_reply_that_comes_back_as_other_tokens_costs_no_more_than_itself() -> None:
    made = driver()
    served(made, 1, "a", PROMPT, 3 * BLOCK)
    served(made, 2, "b", [5] * 30)
    said = answer(PROMPT, 3 * BLOCK, ())
    assert served(made, 3, "a", [*PROMPT, said[0] + 1, *said, 3, 4]).restored_tokens == 6 * BLOCK


@pytest.mark.parametrize("away", [True, False])
def test_the_third_prompt_with_a_beginning_is_restored_to_where_they_part(away: bool) -> None:
    made, beginning = driver(), PROMPT[: 4 * BLOCK]
    for number, (cached, declined) in enumerate([(0, 0), (0, 4), (4, 4), (4, 4)], 1):
        question = [10 + number] * (2 * BLOCK + 1)
        started = served(made, 2 * number, "a", [*beginning, *question], 2 * BLOCK)
        assert started.cached_tokens == cached * BLOCK
        assert started.restored_tokens == away * started.cached_tokens
        assert counters(made).declined_tokens == declined * BLOCK
        if away:
            served(made, 2 * number + 1, "b", [5] * 30)
    made.check_idle()


def test_a_call_leaves_three_states_on_the_host_at_most() -> None:
    made = driver()
    served(made, 1, "a", PROMPT, 3 * BLOCK)
    assert states(made) == {6, 9}
    # One state where the prompts part, and the two at its ends.
    served(made, 2, "a", [*PROMPT[: 2 * BLOCK], *[7] * (3 * BLOCK + 1)], 5 * BLOCK)
    assert states(made) == {2, 5, 6, 9, 10}


def states(made: Driver) -> set[int]:
    """After how many blocks the host has a state."""
    made._report(made.engine.drain)
    registry = made.scheduler._host.registry
    depth = {b"": 0}
    for key, block in registry._published["a:test"].items():
        depth[key] = depth.get(block.parent, 0) + 1
    return {depth[key] for key in registry._published["a:test/state"]}


def test_a_prompt_whose_reply_a_switch_interrupts() -> None:
    made = driver()
    made.engine.costs.step = 0.3
    first, other = submission(1, "a", PROMPT, 60), submission(2, "b", [5] * 30, 60)
    assert made.submit(first) is None
    while not made.tokens[first.call_id]:
        made.turn()
    assert made.submit(other) is None
    made.drain()
    assert counters(made).resumed > 0
    served(made, 3, "b", [6] * 30)
    assert served(made, 4, "a", PROMPT).restored_tokens == 6 * BLOCK
    made.check_idle()


def test_a_cancelled_call_leaves_the_state_of_its_prompt() -> None:
    made = driver()
    call = submission(1, "a", PROMPT, 60)
    assert made.submit(call) is None
    while len(made.tokens[call.call_id]) < 2 * BLOCK:
        made.turn(1)
    made.cancel(call.call_id)
    served(made, 2, "b", [5] * 30)
    assert served(made, 3, "a", PROMPT).restored_tokens == 6 * BLOCK
    made.check_idle()


def test_calls_come_in_where_others_anchor_all_that_is_left() -> None:
    made = driver(slots=6, host_kv=False)
    first = submission(1, "a", PROMPT, 60)
    assert made.submit(first) is None
    while not made.tokens[first.call_id]:
        made.turn(1)
    second = submission(2, "a", [3] * (5 * BLOCK), 60)
    assert made.submit(second) is None
    third = submission(3, "a", [4] * (5 * BLOCK), 60)
    assert made.submit(third) is None
    for _ in range(4):
        made.turn(1)
    active = made.scheduler._active
    assert active is not None
    assert len(active.state.resident) == 3
    made.drain()
    made.check_idle()


def test_without_prefixes_on_the_host_the_device_has_them() -> None:
    made = driver(host_kv=False)
    served(made, 1, "a", PROMPT, 5 * BLOCK)
    assert served(made, 2, "a", PROMPT).cached_tokens == 6 * BLOCK
    served(made, 3, "b", [5] * 30)
    assert served(made, 4, "a", PROMPT).cached_tokens == 0
    made.check_idle()


def test_states_that_nobody_used_for_long_give_way() -> None:
    made = driver(slots=3, host_kv=False)
    served(made, 1, "a", PROMPT)
    for number in range(2, 6):
        served(made, number, "a", [number] * (3 * BLOCK), 1)
    assert served(made, 9, "a", PROMPT).cached_tokens == 0
    assert counters(made).declined_tokens == 6 * BLOCK
    made.check_idle()
