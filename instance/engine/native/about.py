"""What the native engine tells of itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from msgspec.structs import replace

from alipes.instance.engine.native.staging import Switching
from alipes.instance.engine.native.states import heads_held
from alipes.instance.engine.protocol import EngineFacts
from alipes.instance.memory.device import DeviceMemory
from alipes.instance.memory.map import memory_map
from alipes.instance.memory.plan import MemoryPlan
from alipes.instance.memory.specs import StateSpec
from alipes.kernels.table import Kernels, kernels_for, variants


def engine_facts(
    plan: MemoryPlan,
    states: Mapping[str, Sequence[StateSpec]],
    block_tokens: int,
    memory: DeviceMemory,
    switching: Switching,
) -> EngineFacts:
    """``states`` has the specs of every model, one a layer."""
    mapped = memory_map(plan, states, block_tokens)
    return EngineFacts(
        memory=replace(mapped, backend=memory.kind, switching=str(switching)),
        kernels=variants(*_columns(memory.data.device, states)),
    )


def _columns(device: torch.device, states: Mapping[str, Sequence[StateSpec]]) -> list[Kernels]:
    return [kernels_for(device, None, heads_held(own)) for own in states.values()]
