from __future__ import annotations

import pytest

from alipes.instance.contract import BlocksRemoved, BlocksStored, Tier
from alipes.instance.memory.blocks import BlockPool
from alipes.instance.memory.prefix import PrefixIndex, matchable_blocks


def taken(pool: BlockPool, count: int) -> list[int]:
    allocation = pool.allocate(count)
    assert allocation is not None
    return allocation.blocks


def test_the_lowest_free_block_goes_first() -> None:
    pool = BlockPool(6)
    first = taken(pool, 4)
    assert first == [0, 1, 2, 3]
    pool.release([2])
    pool.release([0])
    assert taken(pool, 3) == [0, 2, 4]


def test_too_few_blocks_change_nothing() -> None:
    pool = BlockPool(3)
    taken(pool, 2)
    assert pool.allocate(2) is None
    assert (pool.free, pool.cached, pool.held) == (1, 0, 2)


def test_the_end_of_the_least_recent_path_is_evicted_first() -> None:
    pool = BlockPool(4)
    old, new = taken(pool, 2), taken(pool, 2)
    pool.publish(old + new)
    pool.release(old)
    pool.release(new)
    allocation = pool.allocate(3)
    assert allocation is not None
    assert allocation.evicted == [old[1], old[0], new[1]]


def test_a_priority_function_decides_who_is_evicted() -> None:
    counts = {0: 1, 1: 0, 2: 0}
    pool = BlockPool(3, priority=lambda block, access: (counts[block] > 0, access))
    blocks = taken(pool, 3)
    for block in blocks:
        pool.publish([block])
        pool.release([block])
    allocation = pool.allocate(3)
    assert allocation is not None
    assert allocation.evicted == [1, 2, 0]


def test_a_shared_block_is_not_evicted() -> None:
    pool = BlockPool(2)
    blocks = taken(pool, 2)
    pool.publish(blocks[:1])
    pool.release(blocks)
    pool.share(blocks[:1])
    assert taken(pool, 1) == [1]
    assert pool.allocate(1) is None


def test_an_evicted_block_must_be_published_anew() -> None:
    pool = BlockPool(1)
    blocks = taken(pool, 1)
    pool.publish([0])
    pool.release(blocks)
    pool.release(taken(pool, 1))
    assert (pool.free, pool.cached) == (1, 0)


def test_the_eviction_order_stays_small_under_churn() -> None:
    pool = BlockPool(4)
    blocks = taken(pool, 4)
    pool.publish(blocks)
    pool.release(blocks)
    for _ in range(1000):
        pool.share([2])
        pool.release([2])
    assert len(pool._evictable) <= 2 * pool.total + 1
    allocation = pool.allocate(4)
    assert allocation is not None
    assert allocation.evicted == [3, 1, 0, 2]


@pytest.mark.parametrize("misuse", ["release", "share", "publish"])
def test_a_free_block_cannot_be_used(misuse: str) -> None:
    pool = BlockPool(2)
    with pytest.raises(ValueError, match="block 1"):
        getattr(pool, misuse)([1])


def test_one_token_at_least_is_computed() -> None:
    assert [matchable_blocks(n, 4) for n in (0, 1, 4, 5, 8, 9)] == [0, 0, 0, 1, 1, 2]


def test_events_are_unbroken_rows() -> None:
    index = PrefixIndex("m")
    index.publish(b"", [b"a", b"b"], [0, 1])
    entered, events = index.publish(b"", [b"x", b"b", b"c", b"d"], [5, 6, 7, 8])
    assert entered == [5, 7, 8]
    assert events == (
        BlocksStored("m", Tier.DEVICE, b"", (b"x",)),
        BlocksStored("m", Tier.DEVICE, b"b", (b"c", b"d")),
    )
    assert index.remove([7]) == (BlocksRemoved("m", Tier.DEVICE, (b"c",)),)
    assert index.remove([]) == ()
    assert index.match([b"b", b"c", b"d"]) == [1]
