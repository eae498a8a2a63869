"""Every call against the real library, as far as a machine without CUDA's driver lets it go: what
is wrong with names or arguments shows before the driver is looked for."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from alipes.instance.engine.protocol import EngineError
from alipes.instance.memory.cuda_driver import CudaDriver, cuda_driver

CUDA = torch.device("cuda:3")
CALLS: dict[str, Callable[[CudaDriver], Any]] = {
    "granularity": lambda driver: driver.granularity,
    "can_map": lambda driver: driver.can_map,
    "reserve": lambda driver: driver.reserve(1 << 21),
    "free": lambda driver: driver.free(1 << 40, 1 << 21),
    "create": lambda driver: driver.create(1 << 21),
    "release": lambda driver: driver.release(7),
    "map": lambda driver: driver.map(1 << 40, 1 << 21, 7),
    "unmap": lambda driver: driver.unmap(1 << 40, 1 << 21),
    "allow": lambda driver: driver.allow(1 << 40, 1 << 21),
}


@pytest.fixture(autouse=True)
def _no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CudaDriver, "synchronize", lambda self: None)


@pytest.mark.parametrize("name", CALLS)
def test_the_library_knows_every_call(name: str) -> None:
    module = pytest.importorskip("cuda.bindings.driver")
    if torch.cuda.is_available():
        pytest.skip("a driver is here, which these numbers would mean something to")
    with pytest.raises(RuntimeError, match="driver library"):
        CALLS[name](CudaDriver(CUDA, module))


class Recorded:
    """The library with calls that answer what they were set to, or (0, 5)."""

    def __init__(self, module: Any, **answers: tuple[Any, ...]) -> None:
        self._module, self._answers = module, answers
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu"):
            return getattr(self._module, name)

        def call(*arguments: Any) -> tuple[Any, ...]:
            self.calls.append((name, *arguments))
            return self._answers.get(name, (0, 5))

        return call


def test_memory_is_the_devices_own() -> None:
    cuda = pytest.importorskip("cuda.bindings.driver")
    recorded = Recorded(cuda)
    driver = CudaDriver(CUDA, recorded)
    assert (driver.create(1 << 21), driver.granularity, driver.can_map) == (5, 5, True)
    driver.allow(1 << 40, 1 << 21)
    (_, nbytes, properties, _), *_, (_, _, _, (access,), count) = recorded.calls
    assert (nbytes, count) == (1 << 21, 1)
    for location in (properties.location, access.location):
        assert location.type == cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        assert location.id == 3
    assert access.flags == cuda.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE


def test_what_the_driver_refuses_is_said() -> None:
    cuda = pytest.importorskip("cuda.bindings.driver")
    error = (cuda.CUresult.CUDA_ERROR_OUT_OF_MEMORY, None)
    driver = CudaDriver(CUDA, Recorded(cuda, cuMemCreate=error))
    with pytest.raises(EngineError, match=r"^cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY$"):
        driver.create(1 << 21)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device here")
def test_none_without_a_device() -> None:
    assert cuda_driver(torch.device("cuda")) is None


@pytest.mark.parametrize("supported", [False, True])
def test_none_where_the_device_cannot(supported: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = pytest.importorskip("cuda.bindings.driver")
    answers = Recorded(cuda, cuDeviceGetAttribute=(0, int(supported)))
    library = SimpleNamespace(import_module=lambda name: answers)
    monkeypatch.setattr("alipes.instance.memory.cuda_driver.importlib", library)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert (cuda_driver(CUDA) is not None) is supported
