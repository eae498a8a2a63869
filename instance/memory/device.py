"""The memory under an arena: bytes at addresses that never change, and, where the machine can, an
exchange of what is at them without a copy (Talaria 4.2, 4.4)."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from typing import Any, Final, Protocol

import torch

from alipes.instance.engine.protocol import EngineError
from alipes.instance.memory.moves import Move

_CUDA: Final[Any] = torch.cuda
_HUGE: Final = getattr(mmap, "MADV_HUGEPAGE", None)


class DeviceMemory(Protocol):
    """``data`` is (nbytes,) uint8. ``granule`` is the unit, in bytes, in which ``exchange`` moves;
    0 where it cannot."""

    kind: str
    data: torch.Tensor
    granule: int

    def exchange(self, moves: Sequence[Move]) -> None:
        """Bring what is at each source to its target, all at once. What targets held is lost.
        Nobody else may use either end meanwhile. All moves are of frames: as many bytes each, in
        multiples of ``granule``, at multiples of that. Raises ``ValueError`` otherwise."""
        ...


class PlainMemory:
    """One allocation; whoever wants bytes elsewhere copies them."""

    kind = "plain"
    granule = 0

    def __init__(self, nbytes: int, device: torch.device) -> None:
        if device.type == "cpu":
            self.data = host_buffer(nbytes)
        else:
            self.data = torch.empty(nbytes, dtype=torch.uint8, device=device)

    def exchange(self, moves: Sequence[Move]) -> None:
        raise EngineError(f"{len(moves)} moves in plain memory: it has no pages to exchange")


def private_region(nbytes: int) -> mmap.mmap:
    """Zeroed process memory that is paged in on first touch, in huge pages where the kernel gives
    them: weights are streamed through every step. Private, because shared memory gets none on most
    machines. Raises ``EngineError`` when the machine refuses so much."""
    try:
        region = mmap.mmap(-1, max(nbytes, 1), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        remedy = "lower device_bytes or host_bytes"
        raise EngineError(f"no {nbytes:,} bytes of memory: {remedy} ({error})") from error
    if _HUGE is not None:
        region.madvise(_HUGE)
    return region


def host_buffer(nbytes: int) -> torch.Tensor:
    """(nbytes,) uint8 of a ``private_region``."""
    return torch.frombuffer(private_region(nbytes), dtype=torch.uint8)[:nbytes]


def pinned_buffer(nbytes: int, device: torch.device) -> torch.Tensor:
    """Host memory (nbytes,) uint8 that ``device`` copies from and to without a stop between; on
    the CPU any will do. Raises ``EngineError`` when the machine refuses so much."""
    memory = host_buffer(nbytes)
    pin(memory, device)
    return memory


def pin(memory: torch.Tensor, device: torch.device) -> None:
    """Make host memory what ``pinned_buffer`` gives, where it is: torch's own pinned memory is a
    copy, and comes in powers of two. Raises ``EngineError`` when the machine refuses so much."""
    if device.type == "cpu" or not memory.nbytes:
        return
    error = _CUDA.cudart().cudaHostRegister(memory.data_ptr(), memory.nbytes, 0)
    if int(error) != 0:
        remedy = "lower host_bytes or serve fewer models"
        raise EngineError(f"no {memory.nbytes:,} bytes of pinned memory: {remedy} ({error})")


def unpin(memory: torch.Tensor, device: torch.device) -> None:
    """To be called before pinned memory is let go."""
    if device.type != "cpu" and memory.nbytes:
        _CUDA.cudart().cudaHostUnregister(memory.data_ptr())
