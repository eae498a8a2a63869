from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch

from alipes.instance.contract import InstanceSettings, Pool, Targets
from alipes.instance.engine.native.host import BlockRows, HostPool, block_rows
from alipes.instance.engine.native.parallel.share import Share
from alipes.instance.engine.protocol import BlockCopy, CopyEnd, EngineError, HostSlabs
from alipes.instance.memory.plan import Footprint, MemoryPlan, ModelPlan, plan_instance
from alipes.instance.memory.specs import (
    PagedKV,
    PagedLatent,
    Recurrent,
    block_bytes,
    paged,
    slot_bytes,
)

TOKENS = 4
# Rows of 512, 1024 and 512 bytes: 1, 2 and 1 slabs; slots of 512 + 1024 bytes: 3 slabs.
STATES = (
    PagedKV(1, 16),
    Recurrent(((2, 64),)),
    PagedKV(1, 32),
    Recurrent(((128,), (2, 64))),
    PagedLatent(32),
)
BLOCKS, SLOTS = 5, 3
MODEL = ModelPlan("m", 0, 2048, BLOCKS, BLOCKS * TOKENS, slot_bytes=1536, slots=SLOTS)


def plan(host_bytes: int) -> MemoryPlan:
    settings = InstanceSettings(
        name="i0",
        pool=Pool.COLD,
        models=(),
        targets=Targets(),
        endpoint="",
        device_bytes=1 << 20,
        host_bytes=host_bytes,
        block_tokens=TOKENS,
    )
    return plan_instance(settings, {"m": Footprint(1, 1, 1, 8, STATES)})


@pytest.fixture
def host() -> Iterator[HostPool]:
    made = HostPool(plan(12 * 512 + 511), torch.device("cpu"))
    yield made
    made.close()


@pytest.fixture
def rows() -> BlockRows:
    return block_rows(STATES, TOKENS, MODEL, 512)


@pytest.fixture
def pool() -> torch.Tensor:
    """A pool of ``BLOCKS`` blocks and ``SLOTS`` slots, in which no two slabs are equal."""
    torch.manual_seed(0)
    return torch.randint(0, 255, (BLOCKS * 4 + SLOTS * 3, 512), dtype=torch.uint8)


def block(pool: torch.Tensor, index: int) -> torch.Tensor:
    """The bytes of one block, first layer to last, each of which holds all blocks."""
    flat, parts, at = pool.flatten(), [], 0
    for state in paged(STATES):
        size = TOKENS * state.token_bytes
        parts.append(flat[at + index * size : at + (index + 1) * size])
        at += BLOCKS * size
    return torch.cat(parts)


def test_the_room_is_told_in_slabs(host: HostPool) -> None:
    assert host.slabs == HostSlabs(512, 12)


def test_the_bytes_of_a_block_fill_its_slabs_in_order(
    host: HostPool, rows: BlockRows, pool: torch.Tensor
) -> None:
    host.copy_out(1, pool, rows, [BlockCopy(3, (7, 2, 9, 4)), BlockCopy(0, (0, 1, 10, 11))])
    assert host.drain() == (CopyEnd(1),)
    held = host._memory
    assert torch.equal(held[[7, 2, 9, 4]].flatten(), block(pool, 3))
    assert torch.equal(held[[0, 1, 10, 11]].flatten(), block(pool, 0))


def test_blocks_come_back_elsewhere_and_nothing_else_changes(
    host: HostPool, rows: BlockRows, pool: torch.Tensor
) -> None:
    was = pool.clone()
    host.copy_out(1, pool, rows, [BlockCopy(3, (7, 2, 9, 4)), BlockCopy(0, (0, 1, 10, 11))])
    host.drain()
    host.copy_in(pool, rows, [BlockCopy(1, (0, 1, 10, 11)), BlockCopy(4, (7, 2, 9, 4))])
    for index, source in enumerate((0, 0, 2, 3, 3)):
        assert torch.equal(block(pool, index), block(was, source))


def slot(pool: torch.Tensor, index: int) -> torch.Tensor:
    """The bytes of one slot: slots lie behind all blocks, each in one piece."""
    flat, begin = pool.flatten(), MODEL.kv_blocks * MODEL.block_bytes + index * MODEL.slot_bytes
    return flat[begin : begin + MODEL.slot_bytes]


def test_the_model_is_what_its_states_ask_for() -> None:
    sizes = (block_bytes(STATES, TOKENS), slot_bytes(STATES))
    assert sizes == (MODEL.block_bytes, MODEL.slot_bytes)


def test_slots_are_copied_among_blocks_and_come_back_elsewhere(
    host: HostPool, rows: BlockRows, pool: torch.Tensor
) -> None:
    was = pool.clone()
    held = [BlockCopy(7, (7, 2, 9)), BlockCopy(3, (0, 1, 10, 11)), BlockCopy(5, (3, 4, 5))]
    host.copy_out(1, pool, rows, held)
    host.drain()
    assert torch.equal(host._memory[[7, 2, 9]].flatten(), slot(was, 2))
    assert torch.equal(host._memory[[0, 1, 10, 11]].flatten(), block(was, 3))
    assert torch.equal(host._memory[[3, 4, 5]].flatten(), slot(was, 0))
    back = [BlockCopy(6, (7, 2, 9)), BlockCopy(0, (0, 1, 10, 11)), BlockCopy(7, (3, 4, 5))]
    host.copy_in(pool, rows, back)
    for index, source in enumerate((0, 2, 0)):
        assert torch.equal(slot(pool, index), slot(was, source))
    for index, source in enumerate((3, 1, 2, 3, 4)):
        assert torch.equal(block(pool, index), block(was, source))


def test_the_end_of_a_copy_is_told_when_it_is_there(
    host: HostPool, rows: BlockRows, pool: torch.Tensor
) -> None:
    gate = threading.Event()
    host._lane.begin(lambda: assert_set(gate))
    host.copy_out(4, pool, rows, [BlockCopy(0, (0, 1, 2, 3))])
    host.copy_out(7, pool, rows, [BlockCopy(1, (4, 5, 6, 7))])
    assert host.copied() == ()
    assert host.busy
    gate.set()
    assert host.drain() == (CopyEnd(4), CopyEnd(7))
    assert host.copied() == host.drain() == ()
    assert not host.busy
    assert torch.equal(host._memory[4:8].flatten(), block(pool, 1))


def assert_set(gate: threading.Event) -> None:
    assert gate.wait(30)


@pytest.mark.parametrize(
    ("copy", "message"),
    [
        (BlockCopy(0, (1, 2, 3)), "block 0 takes 4 slabs"),
        (BlockCopy(5, (0, 1, 2, 3)), "block 5 takes 3 slabs"),
        (BlockCopy(8, (0, 1, 2)), "device block 8 is not one of 8"),
        (BlockCopy(-1, (0, 1, 2, 3)), "device block -1"),
        (BlockCopy(0, (0, 1, 2, 12)), "slab 12 is not one of 12"),
    ],
)
def test_what_is_not_there_is_refused(
    host: HostPool, rows: BlockRows, pool: torch.Tensor, copy: BlockCopy, message: str
) -> None:
    with pytest.raises(EngineError, match=message):
        host.copy_out(1, pool, rows, [copy])
    with pytest.raises(EngineError, match=message):
        host.copy_in(pool, rows, [copy])
    assert not host.busy


def test_no_host_memory_is_no_slabs() -> None:
    empty = HostPool(plan(0), torch.device("cpu"))
    assert empty.slabs.count == 0
    assert empty.drain() == ()
    empty.close()


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_divide_what_they_have_in_common(ranks: int) -> None:
    """Latents of 5 slabs a block in all: each is stored once, its own parts with every rank."""
    states = (PagedLatent(96), PagedKV(1, 16), PagedLatent(64))
    shares = [block_rows(states, TOKENS, MODEL, 512, Share(r, ranks)) for r in range(ranks)]
    stored = set()
    for rank, rows in enumerate(shares):
        assert rows.common.tolist() == [True] * 3 + [False] + [True] * 2
        assert int(rows.writer[3]) == rank
        assert rows.slabs == 1 + -(-5 // ranks)
        places = list(zip(rows.writer.tolist(), rows.place.tolist(), strict=True))
        assert len(set(places)) == 6
        stored.add(tuple(place for place in places if place != places[3]))
    assert len(stored) == 1
    alone = block_rows(states, TOKENS, MODEL, 512)
    assert alone.place.tolist() == list(range(6))
    assert not alone.writer.any()
