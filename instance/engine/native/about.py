"""What the native engine tells of itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

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

RECORDED: Final = ("attend_step", "attend_latent_step")
"""Operations of recorded steps alone, which only accelerators have."""


def engine_facts(
    plan: MemoryPlan,
    states: Mapping[str, Sequence[StateSpec]],
    block_tokens: int,
    memory: DeviceMemory,
    switching: Switching,
) -> EngineFacts:
    """``states`` has the specs of every model, one a layer. Operations that the device never runs
    are left out of the kernels."""
    mapped = memory_map(plan, states, block_tokens)
    return EngineFacts(
        memory=replace(mapped, backend=memory.kind, switching=str(switching)),
        kernels=_kernels(memory.data.device, states),
    )


def _kernels(device: torch.device, states: Mapping[str, Sequence[StateSpec]]) -> dict[str, str]:
    found = variants(*_columns(device, states))
    unused = RECORDED if device.type == "cpu" else ()
    return {operation: variant for operation, variant in found.items() if operation not in unused}


def _columns(device: torch.device, states: Mapping[str, Sequence[StateSpec]]) -> list[Kernels]:
    return [kernels_for(device, None, heads_held(own)) for own in states.values()]
