"""The few calls of CUDA's driver that memory with exchangeable pages takes, over ``cuda.bindings``,
which torch's own builds for CUDA bring along."""

from __future__ import annotations

import importlib
from functools import cached_property
from typing import Any, Final

import torch

from alipes.instance.engine.protocol import EngineError


class CudaDriver:
    """Implements ``Driver`` for one device. ``module`` is ``cuda.bindings.driver``."""

    def __init__(self, device: torch.device, module: Any = None) -> None:
        self._cuda: Final = module or importlib.import_module("cuda.bindings.driver")
        self._index: Final = torch.cuda.current_device() if device.index is None else device.index
        # Also makes the context of the device, in which all of this happens.
        self.synchronize()

    @cached_property
    def granularity(self) -> int:
        least = self._cuda.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        return int(self._call("cuMemGetAllocationGranularity", self._properties, least))

    @property
    def can_map(self) -> bool:
        """Whether the device has what the rest of this takes."""
        attribute = self._cuda.CUdevice_attribute
        wanted = attribute.CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
        device = self._call("cuDeviceGet", self._index)
        return bool(self._call("cuDeviceGetAttribute", wanted, device))

    def reserve(self, nbytes: int) -> int:
        return int(self._call("cuMemAddressReserve", nbytes, 0, 0, 0))

    def free(self, address: int, nbytes: int) -> None:
        self._call("cuMemAddressFree", address, nbytes)

    def create(self, nbytes: int) -> int:
        return int(self._call("cuMemCreate", nbytes, self._properties, 0))

    def release(self, handle: int) -> None:
        self._call("cuMemRelease", handle)

    def map(self, address: int, nbytes: int, handle: int) -> None:
        self._call("cuMemMap", address, nbytes, 0, handle, 0)

    def unmap(self, address: int, nbytes: int) -> None:
        self._call("cuMemUnmap", address, nbytes)

    def allow(self, address: int, nbytes: int) -> None:
        self._call("cuMemSetAccess", address, nbytes, [self._access], 1)

    def synchronize(self) -> None:
        torch.cuda.synchronize(self._index)

    def tensor(self, owner: object, address: int, nbytes: int) -> torch.Tensor:
        return torch.as_tensor(_Bytes(owner, address, nbytes), device=f"cuda:{self._index}")

    @cached_property
    def _properties(self) -> Any:
        cuda = self._cuda
        properties = cuda.CUmemAllocationProp()
        properties.type = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.location.type = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        properties.location.id = self._index
        return properties

    @cached_property
    def _access(self) -> Any:
        access = self._cuda.CUmemAccessDesc()
        access.location = self._properties.location
        access.flags = self._cuda.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        return access

    def _call(self, name: str, *arguments: Any) -> Any:
        """What the call gives, if anything."""
        error, *results = getattr(self._cuda, name)(*arguments)
        if int(error) != 0:
            raise EngineError(f"{name}: {getattr(error, 'name', error)}")
        return results[0] if results else None


class _Bytes:
    """What torch takes memory from that it did not allocate. It keeps this object for as long as
    any view of the tensor, and asks nothing more of the memory; the other common protocol
    (DLPack) would take a structure laid out by hand for the same."""

    def __init__(self, owner: object, address: int, nbytes: int) -> None:
        self.owner: Final = owner
        self.__cuda_array_interface__: Final = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


def cuda_driver(device: torch.device) -> CudaDriver | None:
    """That of this device, where pages can be exchanged on it."""
    try:
        importlib.import_module("cuda.bindings.driver")
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    driver = CudaDriver(device)
    return driver if driver.can_map else None
