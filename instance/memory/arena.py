"""The one device allocation of a rank (Talaria 4.2): weights and KV from the low end, runtime
buffers anchored at the high end."""

from __future__ import annotations

import mmap
from typing import Any, Final

import torch

from alipes.instance.engine.protocol import EngineError
from alipes.instance.memory.plan import PAGE, MemoryPlan, ModelPlan

_CUDA: Final[Any] = torch.cuda
_HUGE: Final = getattr(mmap, "MADV_HUGEPAGE", None)


def host_buffer(nbytes: int) -> torch.Tensor:
    """Zeroed process memory (nbytes,) uint8 that is paged in on first touch, in huge pages
    where the kernel gives them: weights are streamed through every step. Raises
    ``EngineError`` when the machine refuses so much."""
    try:
        region = mmap.mmap(-1, max(nbytes, 1))
    except (OSError, OverflowError) as error:
        remedy = "lower device_bytes or host_bytes"
        raise EngineError(f"no {nbytes:,} bytes of memory: {remedy} ({error})") from error
    if _HUGE is not None:
        region.madvise(_HUGE)
    return torch.frombuffer(region, dtype=torch.uint8)[:nbytes]


def pinned_buffer(nbytes: int, device: torch.device) -> torch.Tensor:
    """Host memory (nbytes,) uint8 that ``device`` copies from and to without a stop between; on
    the CPU any will do. Raises ``EngineError`` when the machine refuses so much."""
    memory = host_buffer(nbytes)
    if device.type == "cpu" or not nbytes:
        return memory
    # Registered in place: torch's own pinned memory comes in powers of two.
    error = _CUDA.cudart().cudaHostRegister(memory.data_ptr(), nbytes, 0)
    if int(error) != 0:
        raise EngineError(f"no {nbytes:,} bytes of pinned memory: lower host_bytes ({error})")
    return memory


def release_pinned(memory: torch.Tensor, device: torch.device) -> None:
    """To be called before a ``pinned_buffer`` is let go."""
    if device.type != "cpu" and len(memory):
        _CUDA.cudart().cudaHostUnregister(memory.data_ptr())


class Arena:
    """Views of the regions; ``runtime`` never moves, the other two belong to one model."""

    def __init__(self, plan: MemoryPlan, device: torch.device) -> None:
        self._plan = plan
        if device.type == "cpu":
            self._memory = host_buffer(plan.device_bytes)
        else:
            self._memory = torch.empty(plan.device_bytes, dtype=torch.uint8, device=device)

    @property
    def runtime(self) -> torch.Tensor:
        start = self._plan.runtime_offset
        return self._memory[start : start + self._plan.runtime_bytes]

    def weights(self, model: ModelPlan) -> torch.Tensor:
        return self._memory[: model.weight_bytes]

    def kv(self, model: ModelPlan) -> torch.Tensor:
        """Starts on the page after the weights."""
        start = -(-model.weight_bytes // PAGE) * PAGE
        return self._memory[start : start + model.kv_bytes]
