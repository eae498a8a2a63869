"""Who gets which bytes of an instance, worked out before anything is allocated.

The device arena, for the model that is active (Talaria 4.2)::

    0              weights        KV pool, layer by layer, slots    runtime     device_bytes
    |--------------|--------------|---------------------------------|-----------|
    base of every model           grows with what weights leave     same for all models
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from alipes.instance.contract import InstanceSettings
from alipes.instance.memory.specs import StateSpec, block_bytes, paged, slot_bytes

PAGE: Final = 4096
SNAPSHOT_SHARE: Final = 0.1
"""The snapshot budget: of the room that no running call needs, what may hold state of the past."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a model asks of memory, in bytes: its packed weights, those of them that one decode
    iteration of one call reads, its work space. ``states`` holds one spec a layer; ``context``
    is in tokens."""

    weight_bytes: int
    step_bytes: int
    runtime_bytes: int
    context: int
    states: tuple[StateSpec, ...]


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """One model on one instance, in bytes. ``context`` is what its KV pool can hold, at most
    the model's own. ``slots`` of ``slot_bytes`` each follow the blocks; none for a model without
    recurrent layers. ``refusal`` is empty when the model fits, else says why not."""

    name: str
    weight_bytes: int
    block_bytes: int
    kv_blocks: int
    context: int
    refusal: str = ""
    slot_bytes: int = 0
    slots: int = 0

    @property
    def kv_offset(self) -> int:
        """The page after the weights."""
        return _pages(self.weight_bytes)

    @property
    def kv_bytes(self) -> int:
        return self.kv_blocks * self.block_bytes + self.slots * self.slot_bytes


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Offsets and sizes in bytes. Host memory holds a packed copy of every model's weights and,
    apart from that, ``host_bytes`` for KV: slabs of the largest size that divides what a block
    takes in any layer of any model, so that one pool serves all and none of it is lost."""

    device_bytes: int
    runtime_bytes: int
    host_bytes: int
    slab_bytes: int
    models: tuple[ModelPlan, ...]

    @property
    def runtime_offset(self) -> int:
        return (self.device_bytes - self.runtime_bytes) // PAGE * PAGE

    @property
    def host_slabs(self) -> int:
        return self.host_bytes // self.slab_bytes

    @property
    def host_weight_bytes(self) -> int:
        return sum(model.weight_bytes for model in self.models)

    @property
    def refusals(self) -> tuple[str, ...]:
        return tuple(model.refusal for model in self.models if model.refusal)


def plan_instance(settings: InstanceSettings, models: Mapping[str, Footprint]) -> MemoryPlan:
    """Divide the arena of one instance. Pure: a model that can never fit gets a ``refusal``."""
    runtime = max((_pages(model.runtime_bytes) for model in models.values()), default=0)
    tokens = settings.block_tokens
    rows = [tokens * s.token_bytes for model in models.values() for s in paged(model.states)]
    plan = MemoryPlan(settings.device_bytes, runtime, settings.host_bytes, math.gcd(*rows), ())
    planned = tuple(_plan_model(name, model, settings, plan) for name, model in models.items())
    return replace(plan, models=planned)


def _plan_model(
    name: str, model: Footprint, settings: InstanceSettings, plan: MemoryPlan
) -> ModelPlan:
    weights, block = model.weight_bytes, block_bytes(model.states, settings.block_tokens)
    # In whole slabs: a slot's own size has few divisors, and all models share the slabs.
    slot = -(-slot_bytes(model.states) // plan.slab_bytes) * plan.slab_bytes
    # A call needs room for one prefill chunk and the token after it; less serves nobody.
    least = min(model.context, settings.prefill_chunk + 1)
    needed = -(-least // settings.block_tokens) * block + _running_slots(slot, settings) * slot
    room = max(0, plan.runtime_offset - _pages(weights))
    slots = _running_slots(slot, settings) + _snapshots(slot, room - needed)
    blocks = max(0, room - slots * slot) // block
    context = min(model.context, blocks * settings.block_tokens)
    refusal = ""
    if context < least:
        total = _pages(weights) + needed + plan.runtime_bytes + PAGE
        refusal = (
            f"model {name} needs {total:,} bytes (weights {weights:,}, KV for "
            f"{least} tokens {needed:,}, runtime {plan.runtime_bytes:,}) but device_bytes is "
            f"{settings.device_bytes:,}: raise it or leave the model out"
        )
    return ModelPlan(name, weights, block, blocks, context, refusal, slot, slots)


def _running_slots(slot: int, settings: InstanceSettings) -> int:
    """Two for every running call: one moves on with it, one takes its next block boundary."""
    return 2 * settings.max_running if slot else 0


def _snapshots(slot: int, spare: int) -> int:
    """Slots for states without a running call."""
    return int(max(0, spare) * SNAPSHOT_SHARE) // slot if slot else 0


def _pages(nbytes: int) -> int:
    return -(-nbytes // PAGE) * PAGE
