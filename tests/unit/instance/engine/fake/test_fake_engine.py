from __future__ import annotations

import time

import numpy as np
import pytest
from numpy.typing import NDArray

from alipes.instance.contract import (
    FakeCosts,
    InstanceSettings,
    ModelSettings,
    Pool,
    Sampling,
    Targets,
)
from alipes.instance.engine.fake.engine import FORCED_PENALTY, FakeEngine
from alipes.instance.engine.protocol import (
    BlockCopy,
    CopyEnd,
    Draw,
    Engine,
    EngineError,
    HostSlabs,
    Row,
    Sampled,
)

BLOCK = 4
FREE = FakeCosts()
Ids = NDArray[np.int32]


def engine(costs: FakeCosts = FREE) -> FakeEngine:
    made = FakeEngine(
        InstanceSettings(
            name="i",
            pool=Pool.COLD,
            models=(ModelSettings("a", "/nowhere"), ModelSettings("b", "/nowhere")),
            targets=Targets(),
            endpoint="",
            block_tokens=BLOCK,
            device_bytes=16 * BLOCK * 4096,
            host_bytes=10 * BLOCK * 4096 + 1,
            fake=costs,
        )
    )
    made.activate("a")
    return made


def test_it_tells_of_the_memory_that_it_pretends() -> None:
    about = engine().about
    assert about.kernels == {}
    assert [model.model for model in about.memory.models] == ["a", "b"]
    for model in about.memory.models:
        [kv] = model.regions
        assert (kv.offset, kv.nbytes, kv.rows) == (0, about.memory.device_bytes, 16)
    assert (about.memory.slab_bytes, about.memory.slabs) == (BLOCK * 4096 // 2, 20)


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
    assert made.host == HostSlabs(BLOCK * 2048, 20)
    begin = decode(made, ids(*range(6)), [0, 1], 2)
    made.copy_out(1, [BlockCopy(0, (19, 2)), BlockCopy(1, (3, 4))])
    assert made.drain() == (CopyEnd(1),)
    made.activate("b")
    decode(made, ids(3, 3, 3), [0], 1)
    with pytest.raises(EngineError, match="one whole block of b"):
        made.copy_in([BlockCopy(4, (19, 2))])
    made.activate("a")
    made.copy_in([BlockCopy(4, (19, 2)), BlockCopy(5, (3, 4))])
    history = ids(*range(6), *begin)
    assert begin + decode(made, history, [4, 5, 6, 7], 6, start=7) == plain


def test_a_prefix_is_restored_and_the_rest_computed() -> None:
    prompt = ids(*range(10))
    plain = decode(engine(), prompt, [0, 1, 2, 3], 4)
    made = engine()
    decode(made, prompt, [0, 1, 2], 1)
    made.copy_out(1, [BlockCopy(0, (0, 1))])
    made.drain()
    made.activate("b")
    made.activate("a")
    made.copy_in([BlockCopy(9, (0, 1))])
    assert decode(made, prompt, [9, 0, 1, 2], 4, start=4) == plain


@pytest.fixture
def copying() -> FakeEngine:
    """Copy 7, under way, of blocks 0 and 1 to slabs 0 to 3; block 2 was copied to 4 and 5."""
    made = engine()
    decode(made, ids(*range(12)), [0, 1, 2], 1)
    made.copy_out(6, [BlockCopy(2, (4, 5))])
    assert made.copied() == (CopyEnd(6),)
    made.copy_out(7, [BlockCopy(0, (0, 1)), BlockCopy(1, (2, 3))])
    return made


def test_copies_end_in_order_and_are_told_once(copying: FakeEngine) -> None:
    copying.copy_out(8, [BlockCopy(0, (6, 7))])
    assert copying.copied() == (CopyEnd(7), CopyEnd(8))
    assert copying.copied() == copying.drain() == ()


def test_blocks_can_be_read_but_not_written_under_a_copy(copying: FakeEngine) -> None:
    assert decode(copying, ids(*range(12), 5), [0, 1, 2, 3], 1, start=8)
    with pytest.raises(EngineError, match="block 1 is being copied") as raised:
        copying.step([row(ids(*range(8)), 7, [0, 1])])
    assert raised.value.call_ids == (b"c",)
    with pytest.raises(EngineError, match="block 0 is being copied"):
        copying.copy_in([BlockCopy(0, (4, 5))])
    with pytest.raises(EngineError, match="drain them"):
        copying.activate("b")
    copying.drain()
    assert decode(copying, ids(*range(8)), [0, 1], 1, start=7)
    copying.copy_in([BlockCopy(0, (4, 5))])
    copying.activate("b")


def test_slabs_of_an_unfinished_copy_are_out_of_bounds(copying: FakeEngine) -> None:
    with pytest.raises(EngineError, match="slab 2 is still being copied by 7"):
        copying.copy_in([BlockCopy(9, (2, 3))])
    with pytest.raises(EngineError, match="slab 3 is still being copied by 7"):
        copying.copy_out(8, [BlockCopy(0, (8, 3))])


@pytest.mark.parametrize(
    ("slabs", "message"),
    [
        ((5, 4), "do not hold one whole block of a"),
        ((4, 1), "do not hold one whole block of a"),
        ((10, 11), "do not hold one whole block of a"),
        ((4,), "takes 2 different"),
        ((4, 4), "takes 2 different"),
        ((4, 20), "the host has 20"),
        ((-1, 4), "the host has 20"),
    ],
)
def test_slabs_that_are_not_one_block_are_refused(
    copying: FakeEngine, slabs: tuple[int, ...], message: str
) -> None:
    copying.drain()
    with pytest.raises(EngineError, match=message):
        copying.copy_in([BlockCopy(9, slabs)])


@pytest.mark.parametrize(
    ("ticket", "device", "message"),
    [(7, 0, "tickets must rise"), (8, 5, "no state"), (8, 16, "the device has 16")],
)
def test_copies_of_what_is_not_there_are_refused(
    copying: FakeEngine, ticket: int, device: int, message: str
) -> None:
    copying.drain()
    with pytest.raises(EngineError, match=message):
        copying.copy_out(ticket, [BlockCopy(device, (0, 1))])


def test_a_switch_voids_blocks() -> None:
    made = engine()
    decode(made, ids(*range(4)), [0], 1)
    made.activate("b")
    made.activate("a")
    with pytest.raises(EngineError, match="not computed"):
        made.step([row(ids(0, 1, 2, 3, 4), 4, [0, 1])])


def test_work_takes_what_the_settings_say(monkeypatch: pytest.MonkeyPatch) -> None:
    spent: list[float] = []
    monkeypatch.setattr(time, "sleep", spent.append)
    made = engine(FakeCosts(prefill_token=0.5, step=1.0, switch=7.0, restore_token=0.25))
    made.step([row(ids(*range(6)), 0, [0, 1])])
    made.copy_out(1, [BlockCopy(0, (0, 1)), BlockCopy(1, (2, 3))])
    made.drain()
    made.copy_in([BlockCopy(4, (0, 1)), BlockCopy(5, (2, 3))])
    assert spent == [7.0, 1.0 + 6 * 0.5, 2 * BLOCK * 0.25]


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
