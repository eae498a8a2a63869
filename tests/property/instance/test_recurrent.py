"""Prefixes of models with recurrent layers: of use only where a state after them is kept."""

from __future__ import annotations

from alipes.instance.contract import Counters, Started

from .simulated import BLOCK, Driver, answer, report, settings_of, submission

PROMPT = [1] * (6 * BLOCK) + [2]


def driver(slots: int = 12, **changes: object) -> Driver:
    settings = settings_of(["a", "b"], host_bytes=1_000_000, prefill_chunk=8 * BLOCK, **changes)
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


def test_states_that_nobody_used_for_long_give_way() -> None:
    made = driver(slots=3)
    served(made, 1, "a", PROMPT)
    for number in range(2, 6):
        served(made, number, "a", [number] * (3 * BLOCK), 1)
    assert served(made, 9, "a", PROMPT).cached_tokens == 0
    assert counters(made).declined_tokens == 6 * BLOCK
    made.check_idle()
