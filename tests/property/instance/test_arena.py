from __future__ import annotations

import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from alipes.instance.contract import InstanceSettings
from alipes.instance.engine.native.states import bind_states
from alipes.instance.memory.arena import Arena
from alipes.instance.memory.device import PlainMemory
from alipes.instance.memory.mapped import GRANULE, MappedMemory, can_exchange
from alipes.instance.memory.moves import Move
from alipes.instance.memory.plan import (
    PAGE,
    SNAPSHOT_SHARE,
    Footprint,
    ModelPlan,
    plan_instance,
)
from alipes.instance.memory.specs import slot_bytes

from .plans import ENOUGH, instances

Tensor = torch.Tensor
Place = tuple[int, tuple[int, ...], tuple[int, ...]]


def raw(tensor: Tensor) -> Tensor:
    """A copy of its bytes, one after another."""
    return tensor.clone(memory_format=torch.contiguous_format).flatten().view(torch.uint8)


def place(tensor: Tensor) -> Place:
    """Its address, counted from that of its memory; an empty tensor has no other."""
    offset = tensor.storage_offset() * tensor.element_size()
    return offset, tuple(tensor.shape), tensor.stride()


class Arenas(RuleBasedStateMachine):
    """An arena over real memory. The slow model has each region of the active model in memory of
    its own: ``copies`` of its weights, of every tensor of its layers' state, of what nobody uses
    and, which outlives switches, of the work space. All but that are written at a switch."""

    @initialize(instance=instances(ENOUGH), mapped=st.booleans())
    def build(self, instance: tuple[InstanceSettings, dict[str, Footprint]], mapped: bool) -> None:
        self.settings, self.footprints = instance
        self.plan = plan_instance(self.settings, self.footprints)
        assert not self.plan.refusals
        size = self.plan.device_bytes
        self.memory = (
            MappedMemory(size)
            if mapped and can_exchange()
            else PlainMemory(size, torch.device("cpu"))
        )
        self.arena = Arena(self.plan, self.memory)
        self.address = self.memory.data.data_ptr()
        self.known: dict[str, list[Place]] = {}
        self.switch(0)

    def bound(self, model: ModelPlan, runtime: Tensor) -> list[Tensor]:
        """All that an active model has, and at the end what nobody uses."""
        states, size = self.footprints[model.name].states, self.settings.block_tokens
        data, kv, plan = self.memory.data, self.arena.kv(model), self.plan
        slots = kv[model.kv_blocks * model.block_bytes :].view(model.slots, model.slot_bytes)
        return [
            self.arena.weights(model),
            *(tensor for layer in bind_states(states, kv, model, size) for tensor in layer),
            runtime,
            slots[:, slot_bytes(states) :],
            data[model.weight_bytes : model.kv_offset],
            data[model.kv_offset + model.kv_bytes : plan.runtime_offset],
            data[plan.runtime_offset + plan.runtime_bytes :],
        ]

    @rule(number=st.integers(0, 2))
    def switch(self, number: int) -> None:
        """Whatever was active before, all of a model is where it was."""
        self.model = self.plan.models[number % len(self.plan.models)]
        work = raw(self.arena.runtime)
        if isinstance(self.memory, MappedMemory):
            # As weights that leave do: pages change places with others of the KV pool.
            last = (self.plan.runtime_offset // GRANULE - 1) * GRANULE
            self.memory.exchange([Move(0, last, GRANULE), Move(last, 0, GRANULE)])
        runtime = self.arena.runtime
        self.regions = regions = self.bound(self.model, runtime)
        places = list(map(place, self.regions))
        assert self.known.setdefault(self.model.name, places) == places
        assert self.memory.data.data_ptr() == self.address
        self.copies = [work if r is runtime else self.fill(r, i) for i, r in enumerate(regions)]

    @rule(data=st.data(), value=st.integers(0, 255))
    def write(self, data: st.DataObject, value: int) -> None:
        """To a whole region or a part of it: of a layer's state, some positions or slots."""
        number = data.draw(st.sampled_from([i for i, r in enumerate(self.regions) if r.numel()]))
        region, copy = self.regions[number], self.copies[number]
        first = data.draw(st.integers(0, len(region) - 1), "first")
        last = data.draw(st.integers(first, len(region) - 1), "last")
        part, each = region[first : last + 1], len(copy) // len(region)
        copy[first * each : (last + 1) * each] = self.fill(part, value)

    @staticmethod
    def fill(region: Tensor, value: int) -> Tensor:
        """The bytes that are to be there now."""
        region.fill_(value)
        return raw(torch.full_like(region, value))

    @invariant()
    def apart(self) -> None:
        """What was written to a region is there and nowhere else, and each byte is in one."""
        for region, copy in zip(self.regions, self.copies, strict=True):
            assert torch.equal(raw(region), copy)
        assert sum(map(len, self.copies)) == self.plan.device_bytes

    @invariant()
    def exact(self) -> None:
        """KV is all that weights and work space leave, in whole pages, but for less than a block;
        states without a call have their share of it at most."""
        model = self.model
        (weights, *_), (kv, *_) = place(self.arena.weights(model)), place(self.arena.kv(model))
        gap = place(self.arena.runtime)[0] - kv
        assert 0 <= kv - weights - model.weight_bytes < PAGE
        assert 0 <= gap - len(self.arena.kv(model)) < model.block_bytes
        snapshots = model.slots - 2 * self.settings.max_running * (model.slot_bytes > 0)
        assert 0 <= snapshots * model.slot_bytes <= SNAPSHOT_SHARE * gap
        assert self.plan.device_bytes - self.plan.runtime_bytes - gap - kv + weights < PAGE

    @invariant()
    def aligned(self) -> None:
        arena = self.arena
        for region in (arena.weights(self.model), arena.kv(self.model), arena.runtime):
            assert region.data_ptr() % PAGE == 0
        assert all(region.data_ptr() % region.element_size() == 0 for region in self.regions)


TestArenas = Arenas.TestCase
TestArenas.settings = settings(max_examples=60, stateful_step_count=20, deadline=None)
