from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from alipes.instance.contract import InstanceSettings, ModelSettings, Pool, Sampling, Targets
from alipes.instance.engine.fake.engine import FORCED_PENALTY, FakeEngine
from alipes.instance.engine.protocol import Draw, Engine, EngineError, Row, Sampled

BLOCK = 4
Ids = NDArray[np.int32]


def engine() -> FakeEngine:
    made = FakeEngine(
        InstanceSettings(
            name="i",
            pool=Pool.COLD,
            models=(ModelSettings("a", "/nowhere"), ModelSettings("b", "/nowhere")),
            targets=Targets(),
            endpoint="",
            block_tokens=BLOCK,
            device_bytes=16 * BLOCK * 4096,
        )
    )
    made.activate("a")
    return made


def ids(*tokens: int) -> Ids:
    return np.asarray(tokens, np.int32)


def row(
    history: Ids,
    start: int,
    blocks: list[int],
    *,
    call: bytes = b"c",
    forced: int | None = None,
    top: int = -1,
) -> Row:
    draw = Draw(Sampling(top_logprobs=top), history, len(history), forced)
    return Row(call, history[start:], start, blocks, draw)


def decode(made: Engine, history: Ids, blocks: list[int], steps: int, start: int = 0) -> list[int]:
    """Prefill from ``start`` and decode on; the drawn ids."""
    drawn: list[int] = []
    for _ in range(steps):
        (sampled,) = made.step([row(history, start, blocks)])
        drawn.append(sampled.token)
        start = len(history)
        history = np.append(history, np.int32(sampled.token))
    return drawn


def test_tokens_do_not_depend_on_chunks_blocks_or_batch() -> None:
    prompt = ids(*range(10))
    whole = decode(engine(), prompt, [0, 1, 2, 3], 6)
    chunked = engine()
    for start, end in ((0, 3), (3, 8)):
        chunked.step([Row(b"c", prompt[start:end], start, [9, 3, 7, 1], None)])
    assert decode(chunked, prompt, [9, 3, 7, 1], 6, start=8) == whole
    batched = engine()
    other = row(ids(5, 6, 7), 0, [11], call=b"d")
    first = batched.step([other, row(prompt, 0, [0, 1, 2, 3])])
    assert [s.call_id for s in first] == [b"d", b"c"]
    assert first[1].token == whole[0]


def test_tokens_depend_on_every_token_and_the_model() -> None:
    base = decode(engine(), ids(*range(10)), [0, 1, 2], 1)
    for place in range(10):
        prompt = ids(*range(10))
        prompt[place] = 77
        assert decode(engine(), prompt, [0, 1, 2], 1) != base
    other = engine()
    other.activate("b")
    assert decode(other, ids(*range(10)), [0, 1, 2], 1) != base


def test_a_cached_prefix_is_accepted_and_changes_nothing() -> None:
    made = engine()
    decode(made, ids(*range(8), 1), [0, 1, 2], 1)
    fresh = decode(engine(), ids(*range(8), 2), [0, 1, 2], 3)
    assert decode(made, ids(*range(8), 2), [0, 1, 5], 3, start=8) == fresh


def test_a_whole_cached_prompt_may_recompute_its_last_token() -> None:
    made = engine()
    first = decode(made, ids(*range(8)), [0, 1], 1)
    assert decode(made, ids(*range(8)), [0, 1], 1, start=7) == first
    assert decode(made, ids(*range(8), 9), [0, 1, 2], 1, start=8)


@pytest.mark.parametrize(
    ("history", "start", "blocks", "message"),
    [
        (ids(0, 1, 2, 9, 4), 4, [0, 3], "position 3 holds the state of token 3"),
        (ids(0, 1, 2, 3, 4), 4, [5, 3], "block 5 at place 0 of its table is not computed"),
        (ids(4, 5, 6, 7, 8), 4, [1, 3], "block 1 at place 0 of its table belongs to another"),
        (ids(0, 1, 2, 3, 4), 4, [0], "1 blocks for 5 positions"),
        (ids(0, 1, 2, 3, 4), 4, [0, 99], "out of range"),
        (ids(0, 1, 2, 3, 4), 4, [0, 0], "twice"),
    ],
)
def test_wrong_block_tables_are_refused(
    history: Ids, start: int, blocks: list[int], message: str
) -> None:
    made = engine()
    decode(made, ids(*range(8)), [0, 1], 1)
    with pytest.raises(EngineError, match=message):
        made.step([row(history, start, blocks)])


def test_a_block_taken_by_another_call_is_noticed() -> None:
    made = engine()
    decode(made, ids(*range(8)), [0, 1], 1)
    decode(made, ids(0, 1, 2, 50), [0], 1)
    with pytest.raises(EngineError, match="belongs to another context"):
        made.step([row(ids(*range(9)), 8, [0, 1, 2])])


def test_a_refused_step_names_the_culprit_and_spares_the_others() -> None:
    plain = decode(engine(), ids(*range(6)), [0, 1], 2)
    made = engine()
    good, bad = row(ids(*range(6)), 0, [0, 1]), row(ids(1, 2, 3, 4, 5), 4, [8, 9], call=b"bad")
    with pytest.raises(EngineError) as raised:
        made.step([good, bad])
    assert raised.value.call_ids == (b"bad",)
    assert decode(made, ids(*range(6)), [0, 1], 2) == plain


def test_history_must_end_where_the_row_does() -> None:
    draw = Draw(Sampling(), ids(1, 2, 3), 3)
    with pytest.raises(EngineError, match="its history"):
        engine().step([Row(b"c", ids(1, 2), 0, [0], draw)])


def test_a_call_survives_a_switch_in_other_blocks() -> None:
    plain = decode(engine(), ids(*range(6)), [0, 1, 2, 3], 8)
    made = engine()
    begin = decode(made, ids(*range(6)), [0, 1], 2)
    made.save(b"c", [0, 1], 7)
    assert made.host_used == 2 * BLOCK * 4096
    made.activate("b")
    decode(made, ids(3, 3, 3), [0], 1)
    with pytest.raises(EngineError, match="is of a, active is b"):
        made.load(b"c", [4, 5])
    made.activate("a")
    made.load(b"c", [4, 5])
    assert made.host_used == 0
    history = ids(*range(6), *begin)
    assert begin + decode(made, history, [4, 5, 6, 7], 6, start=7) == plain


def test_a_switch_voids_blocks() -> None:
    made = engine()
    decode(made, ids(*range(4)), [0], 1)
    made.activate("b")
    made.activate("a")
    with pytest.raises(EngineError, match="not computed"):
        made.step([row(ids(0, 1, 2, 3, 4), 4, [0, 1])])


def test_discarded_state_cannot_be_loaded() -> None:
    made = engine()
    decode(made, ids(*range(4)), [0], 1)
    made.save(b"c", [0], 4)
    made.discard(b"c")
    made.discard(b"c")
    with pytest.raises(EngineError, match="no saved state"):
        made.load(b"c", [0])


def test_forced_tokens_keep_their_logprobs() -> None:
    (natural,) = engine().step([row(ids(1, 2), 0, [0], top=2)])
    (forced,) = engine().step([row(ids(1, 2), 0, [0], top=2, forced=7)])
    assert forced.token == 7
    assert forced.top == natural.top
    assert len(natural.top) == 2
    assert natural.top[0].token == natural.token
    assert natural.logprob == natural.top[0].logprob
    assert natural.logprob is not None
    assert forced.logprob == natural.logprob - FORCED_PENALTY
    (plain,) = engine().step([row(ids(1, 2), 0, [0])])
    assert plain == Sampled(b"c", natural.token)


def test_an_unknown_model_is_refused() -> None:
    with pytest.raises(EngineError, match="model z"):
        engine().activate("z")
