"""The one device allocation of a rank (Talaria 4.2): weights and KV from the low end, runtime
buffers anchored at the high end."""

from __future__ import annotations

import torch

from alipes.instance.memory.device import DeviceMemory
from alipes.instance.memory.plan import MemoryPlan, ModelPlan


class Arena:
    """Views of the regions; ``runtime`` never moves, the other two belong to one model."""

    def __init__(self, plan: MemoryPlan, memory: DeviceMemory) -> None:
        self._plan = plan
        self.memory = memory

    @property
    def runtime(self) -> torch.Tensor:
        start = self._plan.runtime_offset
        return self.memory.data[start : start + self._plan.runtime_bytes]

    def weights(self, model: ModelPlan) -> torch.Tensor:
        return self.memory.data[: model.weight_bytes]

    @staticmethod
    def kv_offset(model: ModelPlan) -> int:
        return model.kv_offset

    def kv(self, model: ModelPlan) -> torch.Tensor:
        start = self.kv_offset(model)
        return self.memory.data[start : start + model.kv_bytes]
