"""A driver of a device that is process memory: its allocations are files in memory, and what is
mapped really is, so that tensors over it see what an accelerator would. Misuse that CUDA forbids
is an ``AssertionError``; reading what nobody has access to ends the process, as there."""

from __future__ import annotations

import ctypes
import mmap
import os
from dataclasses import dataclass, field
from typing import Any

import torch

from alipes.instance.engine.protocol import EngineError

_FIXED, _NORESERVE = 0x10, 0x4000
_NONE, _OPEN = 0, mmap.PROT_READ | mmap.PROT_WRITE
_EMPTY = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE


@dataclass
class Mapping:
    nbytes: int
    handle: int
    allowed: bool = False


@dataclass
class FakeCuda:
    """``fail_after`` calls the driver refuses one, and goes on. ``busy`` is work under way, which
    must have ended before memory goes."""

    granularity: int = 64 << 10
    fail_after: int = -1
    busy: bool = False
    calls: list[str] = field(default_factory=list)
    ranges: dict[int, int] = field(default_factory=dict)
    mapped: dict[int, Mapping] = field(default_factory=dict)
    handles: dict[int, int] = field(default_factory=dict)
    _outer: dict[int, int] = field(default_factory=dict)

    def reserve(self, nbytes: int) -> int:
        self._called("reserve", nbytes)
        # The kernel gives multiples of a page.
        outer = _mmap(None, nbytes + self.granularity, _NONE, _EMPTY, -1)
        address = -(-outer // self.granularity) * self.granularity
        self.ranges[address], self._outer[address] = nbytes, outer
        return address

    def free(self, address: int, nbytes: int) -> None:
        self._called("free", nbytes)
        assert self.ranges.pop(address) == nbytes
        assert not self._within(address, nbytes), "mapped memory under a range that is freed"
        _libc().munmap(self._outer.pop(address), nbytes + self.granularity)

    def create(self, nbytes: int) -> int:
        self._called("create", nbytes)
        handle = os.memfd_create("fake-cuda")
        os.ftruncate(handle, nbytes)
        self.handles[handle] = nbytes
        return handle

    def release(self, handle: int) -> None:
        self._called("release")
        del self.handles[handle]
        assert all(m.handle != handle for m in self.mapped.values()), "still mapped"
        os.close(handle)

    def map(self, address: int, nbytes: int, handle: int) -> None:
        self._called("map", nbytes, address)
        assert any(at <= address and address + nbytes <= at + n for at, n in self.ranges.items())
        assert not self._within(address, nbytes), "memory is mapped there"
        assert self.handles[handle] == nbytes, "not all of an allocation"
        _mmap(address, nbytes, _NONE, mmap.MAP_SHARED | _FIXED, handle)
        self.mapped[address] = Mapping(nbytes, handle)

    def unmap(self, address: int, nbytes: int) -> None:
        self._called("unmap", nbytes, address)
        assert not self.busy, "the device is at work"
        assert self.mapped.pop(address).nbytes == nbytes, "a part of a mapping"
        _mmap(address, nbytes, _NONE, _EMPTY | _FIXED, -1)

    def allow(self, address: int, nbytes: int) -> None:
        self._called("allow", nbytes, address)
        inside = self._within(address, nbytes)
        assert sum(self.mapped[at].nbytes for at in inside) == nbytes, "not mapped throughout"
        for at in inside:
            self.mapped[at].allowed = True
        assert _libc().mprotect(address, nbytes, _OPEN) == 0

    def synchronize(self) -> None:
        self.busy = False

    def tensor(self, owner: object, address: int, nbytes: int) -> torch.Tensor:
        memory: Any = (ctypes.c_uint8 * nbytes).from_address(address)
        memory.owner = owner
        return torch.frombuffer(memory, dtype=torch.uint8)

    @property
    def empty(self) -> bool:
        return not (self.ranges or self.mapped or self.handles)

    @property
    def usable(self) -> bool:
        """All addresses have memory that the device may read and write."""
        allowed = sum(m.nbytes for m in self.mapped.values() if m.allowed)
        return allowed == sum(self.ranges.values()) == sum(self.handles.values())

    def _within(self, address: int, nbytes: int) -> list[int]:
        end = address + nbytes
        return [at for at, m in self.mapped.items() if at < end and address < at + m.nbytes]

    def _called(self, name: str, *multiples: int) -> None:
        assert all(number % self.granularity == 0 for number in multiples), (name, multiples)
        if self.fail_after == 0:
            self.fail_after = -1
            raise EngineError(f"{name}: out of luck")
        self.fail_after -= self.fail_after > 0
        self.calls.append(name)


def _mmap(address: int | None, nbytes: int, protection: int, flags: int, handle: int) -> int:
    mapped = _libc().mmap(address, nbytes, protection, flags, handle, 0)
    assert mapped not in (None, ctypes.c_void_p(-1).value)
    return int(mapped)


def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    size, pointer, number = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int
    libc.mmap.restype = pointer
    libc.mmap.argtypes = [pointer, size, number, number, number, ctypes.c_longlong]
    libc.munmap.argtypes = [pointer, size]
    libc.mprotect.argtypes = [pointer, size, number]
    return libc
