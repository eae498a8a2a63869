"""Pages that change places, and memory that is parked, on a device."""

from __future__ import annotations

import gc
import os
import random
import subprocess
import sys

import pytest
import torch

from alipes.instance.engine.native.staging import Switching, best_switching, device_memory
from alipes.instance.memory.cuda_driver import CudaDriver, cuda_driver
from alipes.instance.memory.cuda_mapped import CudaMappedMemory
from alipes.instance.memory.moves import Move
from alipes.instance.memory.preload import parking_environment

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
CUDA = torch.device("cuda")


@pytest.fixture
def driver() -> CudaDriver:
    driver = cuda_driver(CUDA)
    if driver is None:
        pytest.skip("this device has no virtual memory management")
    return driver


def numbered(count: int, driver: CudaDriver, granule: int) -> CudaMappedMemory:
    """Memory in which every granule is filled with its number."""
    memory = CudaMappedMemory(count * granule, granule, driver)
    numbers = torch.arange(count, dtype=torch.uint8, device=CUDA)
    memory.data.view(count, granule).copy_(numbers[:, None])
    return memory


def numbers(memory: CudaMappedMemory) -> list[int]:
    granules = memory.data.view(-1, memory.granule)
    assert bool((granules == granules[:, :1]).all())
    return granules[:, 0].tolist()


def test_pages_change_places_and_addresses_stay(driver: CudaDriver) -> None:
    unit, rng = 2 * driver.granularity, random.Random(1)
    memory = numbered(16, driver, unit)
    address, view = memory.data.data_ptr(), memory.data[5 * unit :]
    assert memory.data.is_cuda
    expected = list(range(16))
    for _ in range(20):
        sources, targets = rng.sample(range(16), 9), rng.sample(range(16), 9)
        before = expected
        pairs = zip(sources, targets, strict=True)
        memory.exchange([Move(source * unit, target * unit, unit) for source, target in pairs])
        expected = numbers(memory)
        assert [expected[target] for target in targets] == [before[source] for source in sources]
        assert sorted(expected) == list(range(16))
        assert (memory.data.data_ptr(), int(view[0])) == (address, expected[5])


def test_the_device_has_its_memory_back(driver: CudaDriver) -> None:
    nbytes = 256 << 20
    free, _ = torch.cuda.mem_get_info()
    memory = device_memory(nbytes, CUDA, Switching.REMAP)
    view = memory.data[nbytes // 2 :]
    del memory
    gc.collect()
    view.fill_(3)
    held, _ = torch.cuda.mem_get_info()
    assert free - held >= nbytes
    del view
    gc.collect()
    after, _ = torch.cuda.mem_get_info()
    assert after - held >= nbytes


def test_work_under_way_ends_before_its_pages_move(driver: CudaDriver) -> None:
    unit = 16 * driver.granularity
    memory = numbered(2, driver, unit)
    one = memory.data[:unit]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(200):
            one.add_(1)
    memory.exchange([Move(0, unit, unit)])
    assert numbers(memory) == [1, 200]


def test_a_captured_graph_sees_what_was_moved(driver: CudaDriver) -> None:
    unit = driver.granularity
    memory = numbered(3, driver, unit)
    first, result = memory.data[:unit], torch.zeros(unit, dtype=torch.uint8, device=CUDA)
    torch.add(first, 100, out=result)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.add(first, 100, out=result)
    for moved in (2, 1, 1):
        memory.exchange([Move(moved * unit, 0, unit)])
        graph.replay()
        assert bool((result == 100 + first).all())
    assert sorted(numbers(memory)) == [0, 1, 2]


def test_the_best_way_here(driver: CudaDriver) -> None:
    assert best_switching(CUDA) is Switching.REMAP


PARKED = """
import torch
from alipes.instance.memory.parking import parking_for

device = torch.device("cuda")
parking = parking_for(device)
assert parking.kind == "memory-saver", parking.kind
given = torch.ones(1 << 20, device=device)
result = torch.zeros(1 << 20, device=device)

def work():
    large = given.repeat(256) * 2
    result.copy_(large.view(256, -1).sum(0))

stream = torch.cuda.Stream()
with torch.cuda.stream(stream):
    work()
stream.synchronize()
torch.cuda.empty_cache()
graph = torch.cuda.CUDAGraph()
with parking.capture(graph, "graphs"):
    work()
with parking.region("kept", backup=True):
    kept = torch.full((64 << 20,), 7, dtype=torch.uint8, device=device)
address = kept.data_ptr()
for turn in range(1, 4):
    active = torch.cuda.mem_get_info()[0]
    for _ in range(2):
        parking.pause("graphs")
        parking.pause("kept")
    paused = torch.cuda.mem_get_info()[0]
    assert paused - active >= 1 << 30, (active, paused)
    for _ in range(2):
        parking.resume("graphs")
        parking.resume("kept")
    given.fill_(turn)
    graph.replay()
    torch.cuda.synchronize()
    assert bool((result == 512 * turn).all())
    assert kept.data_ptr() == address and bool((kept == 7).all())
"""


def test_what_torch_owns_is_parked_and_comes_back() -> None:
    needed = parking_environment()
    if not needed:
        pytest.skip("torch-memory-saver is not installed")
    command = [sys.executable, "-P", "-c", PARKED]
    environment = os.environ | needed
    done = subprocess.run(command, env=environment, timeout=120, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
