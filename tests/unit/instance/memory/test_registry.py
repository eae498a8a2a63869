from __future__ import annotations

import pytest

from alipes.instance.memory.changes import HostRemoved, HostStored
from alipes.instance.memory.registry import HostRegistry
from alipes.instance.memory.rows import HostBlock

A, B, C, D = b"a", b"b", b"c", b"d"


def reserved(registry: HostRegistry, key: bytes | None, slabs: int = 1) -> HostBlock:
    block = registry.reserve("r", key, slabs)
    assert block is not None
    return block


def stored(registry: HostRegistry, *keys: bytes, slabs: int = 1) -> list[HostBlock]:
    """A published path after ``root``."""
    path, new = registry.reserve_path("r", b"root", keys, slabs)
    assert len(path) == len(keys)
    registry.commit([path[index] for index in new])
    return path


def test_a_block_is_known_once_its_copy_has_ended() -> None:
    registry = HostRegistry(4)
    block = reserved(registry, A, 3)
    assert registry.find("r", A) is block
    assert registry.match("r", [A]) == []
    assert (registry.free, registry.used, registry.held) == (1, 3, 3)
    registry.commit([block])
    assert registry.match("r", [A, B]) == [block]
    assert (registry.free, registry.used, registry.held) == (1, 3, 0)
    assert registry.take_changes() == (HostStored("r", b"", (A,)),)


def test_keys_are_read_no_further_than_needed() -> None:
    registry = HostRegistry(2)
    stored(registry, A)
    keys = iter([A, B, C])
    registry.match("r", keys)
    assert list(keys) == [C]


def test_revisions_are_apart() -> None:
    registry = HostRegistry(2)
    stored(registry, A)
    assert registry.match("other", [A]) == []
    assert registry.find("other", A) is None
    assert registry.reserve("other", A, 1) is not None


def test_the_lowest_slabs_go_first() -> None:
    registry = HostRegistry(8)
    first, second, third = (reserved(registry, None, slabs) for slabs in (2, 3, 1))
    assert third.slabs == (5,)
    registry.abort([second])
    registry.abort([first])
    assert reserved(registry, A, 4).slabs == (0, 1, 2, 3)
    assert reserved(registry, B, 3).slabs == (4, 6, 7)


def test_the_end_of_the_least_recent_path_is_evicted_first() -> None:
    registry = HostRegistry(4)
    stored(registry, A, B)
    stored(registry, C, D)
    registry.touch(registry.match("r", [A]))
    gone = []
    for key in (b"1", b"2", b"3", b"4"):
        reserved(registry, key)
        removed = registry.take_changes()[-1]
        assert isinstance(removed, HostRemoved)
        gone += removed.keys
    assert gone == [B, D, C, A]
    assert registry.evicted == 4


def test_a_priority_function_decides_who_is_evicted() -> None:
    counts = {A: 1, B: 0}

    def counted_last(block: HostBlock) -> tuple[int, ...]:
        assert block.key is not None
        return (counts[block.key], block.access)

    registry = HostRegistry(2, counted_last)
    stored(registry, A)
    stored(registry, B)
    reserved(registry, None)
    assert registry.match("r", [A]) != []


@pytest.mark.parametrize("how", ["pin", "hold"])
def test_what_is_held_is_never_evicted(how: str) -> None:
    registry = HostRegistry(3)
    blocks = stored(registry, A, B)
    getattr(registry, how)(blocks)
    assert registry.held == 2
    assert registry.reserve("r", C, 2) is None
    assert registry.take_changes() == (HostStored("r", b"root", (A, B)),)
    assert (registry.free, registry.evicted) == (1, 0)
    getattr(registry, {"pin": "unpin", "hold": "drop"}[how])(blocks)
    assert reserved(registry, C, 2).slabs == (1, 2)
    assert registry.match("r", [A, B]) == blocks[:1]


def test_pins_and_references_are_apart() -> None:
    registry = HostRegistry(1)
    [block] = stored(registry, A)
    registry.pin([block])
    registry.hold([block])
    registry.unpin([block])
    assert registry.held == 1
    with pytest.raises(ValueError, match="block 61 of r has no such pin"):
        registry.unpin([block])
    registry.drop([block])
    assert registry.held == 0
    with pytest.raises(ValueError, match="has no reference"):
        registry.drop([block])


def test_a_private_block_lives_as_long_as_its_references() -> None:
    registry = HostRegistry(2)
    block = reserved(registry, None, 2)
    registry.hold([block, block])
    registry.commit([block])
    registry.drop([block])
    assert registry.held == 2
    registry.drop([block])
    assert (registry.free, block.slabs) == (2, ())
    with pytest.raises(ValueError, match="block private of r is gone"):
        registry.hold([block])


def test_a_private_block_dropped_under_its_copy_goes_when_that_ends() -> None:
    registry = HostRegistry(1)
    block = reserved(registry, None)
    registry.hold([block])
    registry.drop([block])
    assert registry.free == 0
    registry.commit([block])
    assert registry.free == 1
    assert registry.take_changes() == registry.known() == ()


def test_an_aborted_block_was_never_there() -> None:
    registry = HostRegistry(1)
    block = reserved(registry, A)
    registry.hold([block])
    with pytest.raises(ValueError, match="a saved call refers to it"):
        registry.abort([block])
    registry.drop([block])
    registry.abort([block])
    assert registry.free == 1
    assert registry.take_changes() == ()
    stored(registry, A)


def test_a_path_that_is_cut_short_keeps_its_beginning() -> None:
    registry = HostRegistry(4)
    old = stored(registry, A, slabs=1)
    path, new = registry.reserve_path("r", b"root", [A, B, C, D, b"e"], 1)
    assert path[0] is old[0]
    assert new == [1, 2, 3]
    assert [block.parent for block in path] == [b"root", A, B, C]
    assert registry.held == 3
    registry.commit(path[1:])
    assert registry.take_changes() == (HostStored("r", b"root", (A, B, C, D)),)


def test_a_path_does_not_evict_its_own_beginning() -> None:
    registry = HostRegistry(3)
    stored(registry, b"x")
    stored(registry, A, B)
    path, new = registry.reserve_path("r", b"root", [A, B, C, D], 1)
    assert (len(path), new) == (3, [2])
    assert registry.find("r", b"x") is None
    registry.commit([path[2]])
    reserved(registry, b"y")
    assert registry.match("r", [A, B, C]) == path[:2]


def test_what_is_known_is_told_again_in_rows() -> None:
    registry = HostRegistry(6)
    stored(registry, A, B)
    stored(registry, C)
    registry.reserve("s", A, 1)
    [late] = registry.reserve_path("r", b"root", [A, B, D], 1)[0][2:]
    rows = (HostStored("r", b"root", (A, B)), HostStored("r", b"root", (C,)))
    assert registry.known() == rows
    registry.commit([late])
    assert registry.known() == (*rows, HostStored("r", B, (D,)))


def test_changes_are_told_once_and_in_order() -> None:
    registry = HostRegistry(2)
    stored(registry, A, B)
    blocks, new = registry.reserve_path("r", b"root", [C, D], 1)
    registry.commit([blocks[index] for index in new])
    assert registry.take_changes() == (
        HostStored("r", b"root", (A, B)),
        HostRemoved("r", (B, A)),
        HostStored("r", b"root", (C, D)),
    )
    assert registry.take_changes() == ()


def test_the_eviction_order_stays_small_under_churn() -> None:
    registry = HostRegistry(4)
    blocks = stored(registry, A, B, C, D)
    for _ in range(1000):
        registry.touch(blocks[1:2])
    assert len(registry._queue) <= 2 * 4 + 65
    reserved(registry, None, 3)
    assert registry.match("r", [B]) == blocks[1:2]


def test_misuse_is_refused() -> None:
    registry = HostRegistry(2)
    block = reserved(registry, A)
    with pytest.raises(ValueError, match="is on the host already"):
        registry.reserve("r", A, 1)
    with pytest.raises(ValueError, match="at least one slab"):
        registry.reserve("r", B, 0)
    with pytest.raises(ValueError, match="still being copied"):
        registry.pin([block])
    registry.commit([block])
    with pytest.raises(ValueError, match="is not being copied"):
        registry.commit([block])
    reserved(registry, B, 2)
    with pytest.raises(ValueError, match="block 61 of r is gone"):
        registry.touch([block])


def test_no_host_memory_at_all() -> None:
    registry = HostRegistry(0)
    assert registry.reserve("r", None, 1) is None
    assert registry.reserve_path("r", b"root", [A], 1) == ([], [])


def test_what_is_used_together_becomes_one_row_until_paths_part() -> None:
    registry = HostRegistry(8)
    stored(registry, A, B)
    path = stored(registry, A, B, C, D)
    assert path[0].row is not path[2].row
    registry.touch(path)
    assert path[0].row is path[3].row
    registry.hold(path[:2])
    assert (path[0].references, path[2].references) == (1, 0)
    registry.drop(path[:2])
    registry.touch(path)
    assert path[1].row is not path[2].row
    reserved(registry, None, 5)
    assert registry.match("r", [A, B, C, D]) == path[:3]
