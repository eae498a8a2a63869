"""What the native engine tells of itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from alipes.instance.engine.native.staging import Switching
from alipes.instance.engine.protocol import EngineFacts
from alipes.instance.memory.device import DeviceMemory
from alipes.instance.memory.map import memory_map
from alipes.instance.memory.plan import MemoryPlan
from alipes.instance.memory.specs import StateSpec
from alipes.kernels.table import kernels_for, variants


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
        kernels=variants(kernels_for(memory.data.device, None)),
    )
