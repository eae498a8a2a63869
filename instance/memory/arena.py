"""The one device allocation of a rank (Talaria 4.2): weights and KV from the low end, runtime
buffers anchored at the high end."""

from __future__ import annotations

import mmap
from typing import Final

import torch

from alipes.instance.engine.protocol import EngineError
from alipes.instance.memory.plan import PAGE, MemoryPlan, ModelPlan

_HUGE: Final = getattr(mmap, "MADV_HUGEPAGE", None)


def host_buffer(nbytes: int) -> torch.Tensor:
    """Zeroed process memory (nbytes,) uint8 that is paged in on first touch, in huge pages
    where the kernel gives them: weights are streamed through every step. Raises
    ``EngineError`` when the machine refuses so much."""
    try:
        region = mmap.mmap(-1, max(nbytes, 1))
    except (OSError, OverflowError) as error:
        raise EngineError(f"no {nbytes:,} bytes of memory: lower device_bytes ({error})") from error
    if _HUGE is not None:
        region.madvise(_HUGE)
    return torch.frombuffer(region, dtype=torch.uint8)[:nbytes]


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
