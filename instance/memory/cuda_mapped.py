"""Device memory whose pages change places under live tensors, by the virtual memory management of
CUDA's driver.

The arena is one reserved range of addresses, filled with allocations of one size, the *granule*.
A mapping cannot be split, so what moves is whole granules, and each takes the driver a call to
unmap and one to map, whatever its size. Published measurements put those at microseconds to some
tens of them (vAttention, arXiv 2405.04437): in the driver's own unit of 2 MiB, weights of 60 GB
would take 30 thousand of either. So the owner says how large a granule is, for which it must know
the models: the same weights are 900 granules of 64 MiB. Access is granted for neighbours together.

Work of the device does not survive that its pages go: ``exchange`` waits for all of it. Addresses
stay, and with them captured graphs. Only memory that keeps its pages may be registered with a
network card, for it remembers pages, not addresses: host memory, never this.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import torch

from alipes.instance.engine.protocol import EngineError
from alipes.instance.memory.moves import Move, exchange_cycles


class Driver(Protocol):
    """Of one device. Addresses and handles are plain numbers; every call raises ``EngineError``
    with what the driver says where it refuses."""

    @property
    def granularity(self) -> int:
        """Bytes of which sizes and addresses are multiples."""
        ...

    def reserve(self, nbytes: int) -> int:
        """Addresses without memory; the first one."""
        ...

    def free(self, address: int, nbytes: int) -> None:
        """Of a whole range reserved before, in which nothing is mapped."""
        ...

    def create(self, nbytes: int) -> int:
        """Physical memory without an address; its handle."""
        ...

    def release(self, handle: int) -> None: ...

    def map(self, address: int, nbytes: int, handle: int) -> None:
        """All of this memory to where none is mapped. Nobody has access yet."""
        ...

    def unmap(self, address: int, nbytes: int) -> None:
        """Of exactly what one ``map`` mapped."""
        ...

    def allow(self, address: int, nbytes: int) -> None:
        """Let the device read and write a range that is mapped throughout."""
        ...

    def synchronize(self) -> None:
        """Until all that the device was asked for is done."""
        ...

    def tensor(self, owner: object, address: int, nbytes: int) -> torch.Tensor:
        """(nbytes,) uint8 over a mapped range. ``owner`` lives as long as any view of it."""
        ...


class CudaMappedMemory:
    """Implements ``DeviceMemory``. Raises ``EngineError`` when the device has not so much. The
    memory is given back with the last tensor over it."""

    kind = "mapped"

    def __init__(self, nbytes: int, granule: int, driver: Driver) -> None:
        if granule < 1 or granule % driver.granularity:
            unit = driver.granularity
            raise ValueError(f"granules of {granule} bytes are not in whole units of {unit}")
        self.granule = granule
        self._driver = driver
        self._range = _Range(driver, nbytes, granule)
        self.data = driver.tensor(self._range, self._range.address, nbytes)

    def exchange(self, moves: Sequence[Move]) -> None:
        """Whoever holds the other end of the memory, the writer of staged weights above all, must
        have ended; what the device still does is waited for here. Raises ``RuntimeError`` when
        the driver fails in the middle: addresses are without memory then, and the process is of
        no more use."""
        cycles = exchange_cycles(list(self._by_granule(moves)))
        if not cycles:
            return
        self._driver.synchronize()
        try:
            self._range.exchange([cycle.starts for cycle in cycles])
        except EngineError as error:
            raise RuntimeError(f"device memory is incomplete, start anew: {error}") from error

    def _by_granule(self, moves: Sequence[Move]) -> Iterator[Move]:
        exchange_cycles(moves)
        for move in moves:
            if move.nbytes % self.granule:
                unit = self.granule
                raise ValueError(f"frames of {move.nbytes} bytes are not in whole units of {unit}")
            if max(move.source, move.target) + move.nbytes > self._range.nbytes:
                raise ValueError(f"{move} leads beyond {self._range.nbytes} bytes of memory")
            for at in range(0, move.nbytes, self.granule):
                yield Move(move.source + at, move.target + at, self.granule)


class _Range:
    """Addresses, the memory mapped to them, and the way back of both. ``nbytes`` is in whole units
    of the driver."""

    def __init__(self, driver: Driver, nbytes: int, granule: int) -> None:
        self._driver = driver
        self._granule = granule
        self.nbytes = max(1, -(-nbytes // driver.granularity)) * driver.granularity
        # By offset. The last may be smaller than the others, and then never moves.
        self._mapped: dict[int, int] = {}
        self._unmapped: set[int] = set()
        self.address = 0
        self.address = driver.reserve(self.nbytes)
        try:
            for offset in range(0, self.nbytes, granule):
                handle = driver.create(self._size(offset))
                self._unmapped.add(handle)
                self._map(offset, handle)
            driver.allow(self.address, self.nbytes)
        except EngineError as error:
            self.close()
            remedy = "lower device_bytes, or free the device"
            raise EngineError(
                f"no {nbytes:,} bytes of device memory: {remedy} ({error})"
            ) from error

    def exchange(self, cycles: Iterable[tuple[int, ...]]) -> None:
        """What is at each offset of a cycle goes to the next, and the last to the first."""
        targets: dict[int, int] = {}
        for starts in cycles:
            for source, target in zip(starts, (*starts[1:], starts[0]), strict=True):
                targets[target] = self._mapped[source]
        for offset in targets:
            self._driver.unmap(self.address + offset, self._granule)
            self._unmapped.add(self._mapped.pop(offset))
        for offset, handle in targets.items():
            self._map(offset, handle)
        for start, end in _runs(sorted(targets), self._granule):
            self._driver.allow(self.address + start, end - start)

    def close(self) -> None:
        """Give everything back, once the device is done with it."""
        if not self.address:
            return
        self._driver.synchronize()
        for offset in self._mapped:
            self._driver.unmap(self.address + offset, self._size(offset))
        for handle in (*self._mapped.values(), *self._unmapped):
            self._driver.release(handle)
        self._driver.free(self.address, self.nbytes)
        self.address = 0

    def __del__(self) -> None:
        # A process that ends gives everything back, and the driver may be gone before this.
        if not sys.is_finalizing():
            self.close()

    def _size(self, offset: int) -> int:
        return min(self._granule, self.nbytes - offset)

    def _map(self, offset: int, handle: int) -> None:
        self._driver.map(self.address + offset, self._size(offset), handle)
        self._unmapped.remove(handle)
        self._mapped[offset] = handle


def _runs(starts: Iterable[int], size: int) -> list[tuple[int, int]]:
    """Neighbours together, of starts that rise: where each run begins and ends."""
    runs: list[tuple[int, int]] = []
    for start in starts:
        first = runs.pop()[0] if runs and runs[-1][1] == start else start
        runs.append((first, start + size))
    return runs
