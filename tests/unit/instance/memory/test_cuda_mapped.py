from __future__ import annotations

import gc
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from alipes.instance.engine.protocol import EngineError
from alipes.instance.memory.cuda_mapped import CudaMappedMemory
from alipes.instance.memory.moves import Move

from .fake_cuda import FakeCuda

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the fake maps files in memory")
UNIT = 64 << 10


def numbered(units: int, driver: FakeCuda, granule: int = UNIT) -> CudaMappedMemory:
    """Memory in which every granule is filled with its number."""
    memory = CudaMappedMemory(units * granule, granule, driver)
    memory.data.view(units, granule).copy_(torch.arange(units, dtype=torch.uint8)[:, None])
    return memory


def numbers(memory: CudaMappedMemory, driver: FakeCuda) -> list[int]:
    assert driver.usable
    granules = memory.data.view(-1, memory.granule)
    assert bool((granules == granules[:, :1]).all())
    return granules[:, 0].tolist()


def moves(*ends: tuple[int, int], unit: int = UNIT) -> list[Move]:
    return [Move(source * unit, target * unit, unit) for source, target in ends]


def test_tensors_stay_where_they_are_and_see_what_was_moved() -> None:
    driver = FakeCuda()
    memory = numbered(6, driver)
    first, address = memory.data[:UNIT], memory.data.data_ptr()
    memory.exchange(moves((4, 0), (0, 2), (2, 5)))
    assert numbers(memory, driver) == [4, 1, 0, 3, 5, 2]
    assert (int(first[7]), first.data_ptr(), memory.data.data_ptr()) == (4, address, address)
    first.fill_(77)
    memory.exchange(moves((0, 3)))
    assert numbers(memory, driver) == [3, 1, 0, 77, 5, 2]


def test_each_granule_is_moved_once_and_neighbours_are_allowed_together() -> None:
    driver = FakeCuda()
    memory = numbered(10, driver)
    del driver.calls[:]
    memory.exchange(moves((0, 5), (1, 6), (2, 2), (9, 8)))
    assert driver.calls == ["unmap"] * 6 + ["map"] * 6 + ["allow"] * 3
    assert numbers(memory, driver) == [5, 6, 2, 3, 4, 0, 1, 7, 9, 8]
    del driver.calls[:]
    memory.exchange([])
    memory.exchange(moves((3, 3)))
    assert driver.calls == []


def test_frames_of_several_granules() -> None:
    driver = FakeCuda()
    memory = numbered(6, driver)
    memory.exchange(moves((2, 0), unit=2 * UNIT))
    assert numbers(memory, driver) == [4, 5, 2, 3, 0, 1]


@pytest.mark.parametrize(
    ("move", "why"),
    [
        (Move(0, UNIT, UNIT), "not in whole units of 131072"),
        (Move(UNIT, 3 * UNIT, 2 * UNIT), "is not of a frame"),
        (Move(0, 4 * UNIT, 2 * UNIT), "leads beyond 327680 bytes"),
    ],
)
def test_what_is_not_in_whole_granules_stays(move: Move, why: str) -> None:
    driver = FakeCuda()
    memory = CudaMappedMemory(5 * UNIT - 1, 2 * UNIT, driver)
    del driver.calls[:]
    with pytest.raises(ValueError, match=why):
        memory.exchange([move])
    assert driver.calls == []


def test_what_the_device_does_ends_before_pages_move_or_go() -> None:
    driver = FakeCuda()
    memory = numbered(2, driver)
    driver.busy = True
    memory.exchange(moves((0, 1)))
    driver.busy = True
    del memory
    assert driver.empty


def test_memory_goes_with_the_last_tensor_over_it() -> None:
    driver = FakeCuda()
    memory = numbered(3, driver)
    memory.exchange(moves((0, 2)))
    view = memory.data[2 * UNIT :]
    del memory
    gc.collect()
    assert int(view[0]) == 0
    assert driver.usable
    del view
    gc.collect()
    assert driver.empty


def test_a_size_that_is_not_in_whole_granules() -> None:
    driver = FakeCuda()
    memory = CudaMappedMemory(5 * UNIT + 1, 4 * UNIT, driver)
    assert (len(memory.data), memory.granule, memory.kind) == (5 * UNIT + 1, 4 * UNIT, "mapped")
    assert sorted(driver.handles.values()) == [2 * UNIT, 4 * UNIT]
    del memory
    assert driver.empty


def test_granules_are_of_whole_units_of_the_driver() -> None:
    for granule in (0, UNIT // 2, UNIT + 1):
        with pytest.raises(ValueError, match="not in whole units of 65536"):
            CudaMappedMemory(UNIT, granule, FakeCuda())


@pytest.mark.parametrize("call", range(8))
def test_a_device_that_has_not_so_much_gets_all_back(call: int) -> None:
    """One reservation, three times memory and its place, and access."""
    driver = FakeCuda(fail_after=call)
    with pytest.raises(EngineError, match=r"out of luck") as error:
        CudaMappedMemory(3 * UNIT, UNIT, driver)
    assert driver.empty
    if call:
        assert str(error.value).startswith("no 196,608 bytes of device memory: lower device_bytes")


@pytest.mark.parametrize("call", range(5))
def test_an_exchange_that_fails_in_the_middle_ends_the_process(call: int) -> None:
    """And what is left of the memory can be given back."""
    driver = FakeCuda()
    memory = numbered(3, driver)
    driver.fail_after = call
    with pytest.raises(RuntimeError, match=r"incomplete, start anew: \w+: out of luck"):
        memory.exchange(moves((0, 1)))
    del memory
    assert driver.empty


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_any_exchange_is_a_permutation_of_bytes(data: st.DataObject) -> None:
    """What a target holds afterwards was at its source; where nothing was said nothing changes,
    and no granule is lost."""
    driver, count = FakeCuda(), data.draw(st.integers(1, 12), "granules")
    memory = numbered(count, driver)
    expected = list(range(count))
    for _ in range(data.draw(st.integers(1, 4), "exchanges")):
        some = st.lists(st.integers(0, count - 1), unique=True, max_size=count)
        sources = data.draw(some, "sources")
        targets = data.draw(st.permutations(range(count)), "targets")[: len(sources)]
        before = expected
        memory.exchange(moves(*zip(sources, targets, strict=True)))
        expected = numbers(memory, driver)
        assert [expected[target] for target in targets] == [before[source] for source in sources]
        assert sorted(expected) == sorted(before)
        untouched = set(range(count)) - set(sources) - set(targets)
        assert all(expected[i] == before[i] for i in untouched)
    del memory
    assert driver.empty
