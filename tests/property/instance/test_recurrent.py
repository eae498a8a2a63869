"""Prefixes of models with recurrent layers: of use only where a state after them is kept."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alipes.instance.contract import Counters, Started

from .simulated import BLOCK, SLAB, Driver, answer, report, settings_of, submission

PROMPT = [1] * (6 * BLOCK) + [2]


def driver(slots: int = 12, **changes: object) -> Driver:
    fields: dict[str, object] = {"host_bytes": 1_000_000, "prefill_chunk": 8 * BLOCK}
    chosen = settings_of(["a", "b"], **(fields | changes))
    return Driver(chosen, tuple(report(name, 60, slots=slots) for name in ("a", "b")))


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


def test_a_state_that_is_used_outlasts_those_that_are_not() -> None:
    """Also where those that begin with it find it on the device."""
    made, beginning = driver(slots=40, host_bytes=20_000), PROMPT[: 4 * BLOCK]
    for number in range(1, 12):
        served(made, number, "a", [*beginning, *[10 + number] * (BLOCK + 1)], 1)
        assert number < 3 or made.started[submission(number, "a", []).call_id].cached_tokens == 16
    assert counters(made).host_evicted_blocks > 0
    served(made, 20, "b", [5] * 30)
    assert served(made, 21, "a", [*beginning, 7, 7]).restored_tokens == 4 * BLOCK


class Ledger:
    """The slow model, of a host that evicts nothing: beginnings whose blocks it has, and of which
    it has the state."""

    def __init__(self) -> None:
        self.blocks: set[tuple[int, ...]] = set()
        self.states: set[tuple[int, ...]] = set()

    def serve(self, prompt: list[int], tokens: int) -> tuple[int, int]:
        """How many tokens are restored, and how many declined."""
        usable = (len(prompt) - 1) // BLOCK * BLOCK
        starts = [tuple(prompt[:n]) for n in range(BLOCK, usable + 1, BLOCK)]
        known = max((len(start) for start in starts if start in self.blocks), default=0)
        with_state = [
            len(start) for start in starts if start in self.states and len(start) <= known
        ]
        restored = max(with_state, default=0)
        computed = [*prompt, *answer(prompt, tokens, ())][:-1]
        last = len(computed) // BLOCK * BLOCK
        parting = known if known > restored else 0
        self.states |= {tuple(computed[:n]) for n in (parting, usable, last)}
        self.blocks |= {tuple(computed[:n]) for n in range(BLOCK, last + 1, BLOCK)}
        return restored, known - restored


# So many tokens of a reply pass a block boundary.
CALLS = st.lists(
    st.tuples(
        st.lists(st.sampled_from([1, 2]), min_size=1, max_size=5),
        st.integers(0, 5),
        st.integers(BLOCK + 1, 4 * BLOCK),
        st.booleans(),
    ),
    min_size=2,
    max_size=6,
)


@settings(deadline=None, max_examples=60)
@given(calls=CALLS, chunk=st.sampled_from([BLOCK, 7, 10, 100]), slots=st.sampled_from([7, 40]))
def test_what_comes_back_is_what_the_states_allow(
    calls: list[tuple[list[int], int, int, bool]], chunk: int, slots: int
) -> None:
    made, ledger, before = driver(slots, prefill_chunk=chunk), Ledger(), list[int]()
    made.engine.costs.copy = 0.0
    declined = 0
    for number, (begin, tail, tokens, goes_on) in enumerate(calls):
        prompt = [token for token in begin for _ in range(BLOCK)] + [7] * tail
        prompt = [*before, *prompt] if goes_on else prompt
        if len(prompt) > 200:
            prompt = prompt[:8]
        restored, less = ledger.serve(prompt, tokens)
        declined += less
        started = served(made, 2 * number, "a", prompt, tokens)
        assert started.cached_tokens == started.restored_tokens == restored
        assert counters(made).declined_tokens == declined
        before = [*prompt, *answer(prompt, tokens, ())]
        served(made, 2 * number + 1, "b", [5, 6], 1)
    made.check_idle()


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


def test_a_state_that_was_not_copied_is_copied_by_the_next_that_uses_it() -> None:
    made = driver()
    made.engine.refusals = 1
    served(made, 1, "a", PROMPT)
    assert served(made, 2, "a", PROMPT).cached_tokens == 6 * BLOCK
    served(made, 3, "b", [5] * 30)
    assert served(made, 4, "a", PROMPT).restored_tokens == 6 * BLOCK


@pytest.mark.parametrize("slabs", range(20, 40, 3))
def test_states_leave_alone_what_running_calls_need_to_be_saved(slabs: int) -> None:
    made = driver(host_bytes=slabs * SLAB)
    short, longer = submission(1, "a", [3] * 20, 60), submission(2, "a", PROMPT, 60)
    for call in (short, longer):
        assert made.submit(call) is None
    while not made.tokens[longer.call_id]:
        made.turn(1)
    made.cancel(short.call_id)
    host = made.scheduler._host
    assert host.copying
    assert host.room("a") >= host.to_save(made.scheduler._calls[longer.call_id])
    made.drain()


def test_calls_come_in_where_others_anchor_all_that_is_left() -> None:
    made = driver(slots=5, host_kv=False)
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
