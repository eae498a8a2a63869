from __future__ import annotations

import ctypes
import threading
from typing import Any

import pytest
import torch

from alipes.instance.memory import mapped
from alipes.instance.memory.mapped import GRANULE, SPARE, MappedMemory, can_exchange
from alipes.instance.memory.moves import Move

pytestmark = pytest.mark.skipif(not can_exchange(), reason="pages cannot be moved here")


def numbered(units: int, unit: int = GRANULE) -> MappedMemory:
    """Memory in which every unit is filled with its number."""
    memory = MappedMemory(units * unit)
    memory.data.view(units, unit).copy_(torch.arange(units, dtype=torch.uint8)[:, None])
    return memory


def numbers(memory: MappedMemory, unit: int = GRANULE) -> list[int]:
    """The number in every unit, which must be the same in all of it."""
    units = memory.data.view(-1, unit)
    assert bool((units == units[:, :1]).all())
    return units[:, 0].tolist()


def moves(*ends: tuple[int, int], unit: int = GRANULE) -> list[Move]:
    return [Move(source * unit, target * unit, unit) for source, target in ends]


def test_tensors_stay_where_they_are_and_see_what_was_moved() -> None:
    memory = numbered(6)
    first, address = memory.data[:GRANULE], memory.data.data_ptr()
    memory.exchange(moves((4, 0), (0, 2), (2, 5)))
    assert numbers(memory) == [4, 1, 0, 3, 5, 2]
    assert (int(first[7]), first.data_ptr(), memory.data.data_ptr()) == (4, address, address)
    # And what is written now stays there when pages move on.
    first.fill_(77)
    memory.exchange(moves((0, 3)))
    assert numbers(memory) == [3, 1, 0, 77, 5, 2]


def test_frames_that_came_from_apart_move_together() -> None:
    memory = numbered(8)
    memory.exchange(moves((0, 2), (5, 3)))
    memory.exchange(moves((1, 3), unit=2 * GRANULE))
    assert numbers(memory)[6:] == [0, 5]


def test_what_nobody_wants_fills_what_is_missing() -> None:
    memory = numbered(8)
    before = memory.data.clone().view(8, -1)[:, 0].tolist()
    memory.exchange(moves((0, 4), (1, 6), (2, 7), (5, 3), (3, 5)))
    after = numbers(memory)
    assert [after[4], after[6], after[7], after[3], after[5]] == [0, 1, 2, 5, 3]
    assert sorted(after) == before


def test_more_than_is_set_aside_at_once() -> None:
    memory = numbered(2, 2 * SPARE)
    memory.exchange(moves((0, 1), unit=2 * SPARE))
    assert numbers(memory, 2 * SPARE) == [1, 0]


def test_where_the_kernel_refuses_bytes_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing:
        def __init__(self) -> None:
            self.asked: list[int] = []

        def mremap(self, _source: int, nbytes: int, *_rest: Any) -> int | None:
            self.asked.append(nbytes)
            return ctypes.c_void_p(-1).value

    memory, kernel = numbered(6), Refusing()
    monkeypatch.setattr(mapped, "_libc", lambda: kernel)
    memory.exchange(moves((1, 0), unit=3 * GRANULE))
    assert numbers(memory) == [3, 4, 5, 0, 1, 2]
    assert kernel.asked[:5] == [3 * GRANULE, GRANULE, 2 * GRANULE, GRANULE, GRANULE]


def test_parts_of_a_unit_are_refused() -> None:
    memory = numbered(2)
    with pytest.raises(ValueError, match="not in whole units"):
        memory.exchange(moves((0, 1), unit=GRANULE // 2))
    assert numbers(memory) == [0, 1]


def test_other_mappings_find_no_hole_to_slip_into() -> None:
    """Another thread maps memory all the time: neither side ever sees the other's bytes."""
    memory, stop = numbered(8), threading.Event()
    spoiled: list[int] = []

    def allocate() -> None:
        while not stop.is_set():
            own = torch.full((GRANULE,), 99, dtype=torch.uint8)
            spoiled.extend([1] * (not bool((own == 99).all())))

    thread = threading.Thread(target=allocate)
    thread.start()
    expected = list(range(8))
    for turn in range(300):
        one, other = turn % 8, (turn * 3 + 1) % 8
        memory.exchange(moves((one, other)))
        expected[one], expected[other] = expected[other], expected[one]
        assert numbers(memory) == expected
    stop.set()
    thread.join()
    assert not spoiled
