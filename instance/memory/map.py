"""Which bytes of an arena hold what, as an operator is shown it: regions that tile it exactly."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from alipes.instance.contract import Content, MemoryMap, ModelMap, Region
from alipes.instance.memory.plan import MemoryPlan, ModelPlan
from alipes.instance.memory.specs import Recurrent, StateSpec


def memory_map(
    plan: MemoryPlan, states: Mapping[str, Sequence[StateSpec]], block_tokens: int
) -> MemoryMap:
    """``states`` has the specs of every model, one a layer. A model that was refused has no map."""
    return MemoryMap(
        device_bytes=plan.device_bytes,
        models=tuple(
            ModelMap(model.name, _tiled(plan, model, states[model.name], block_tokens))
            for model in plan.models
            if not model.refusal
        ),
        host_weight_bytes=plan.host_weight_bytes,
        slab_bytes=plan.slab_bytes,
        slabs=plan.host_slabs,
    )


def _tiled(
    plan: MemoryPlan, model: ModelPlan, states: Sequence[StateSpec], block_tokens: int
) -> tuple[Region, ...]:
    """The model's regions with what nobody uses between them, from 0 to ``device_bytes``."""
    regions, end = [], 0
    runtime = Region(Content.RUNTIME, plan.runtime_offset, plan.runtime_bytes)
    last = Region(Content.UNUSED, plan.device_bytes, 0)
    for region in (*_of_model(model, states, block_tokens), runtime, last):
        if region.offset > end:
            regions.append(Region(Content.UNUSED, end, region.offset - end))
        if region.nbytes:
            regions.append(region)
        end = region.offset + region.nbytes
    return tuple(regions)


def _of_model(model: ModelPlan, states: Sequence[StateSpec], block_tokens: int) -> Iterator[Region]:
    """Weights, then paged layers, neighbours that keep the same in one region, then slots."""
    yield Region(Content.WEIGHTS, 0, model.weight_bytes)
    at = model.kv_offset
    paged = [(i, state) for i, state in enumerate(states) if not isinstance(state, Recurrent)]
    for state, run in groupby(paged, key=lambda layer: layer[1]):
        layers = tuple(index for index, _ in run)
        row, rows = block_tokens * state.token_bytes, model.kv_blocks
        yield Region(Content.KV, at, len(layers) * rows * row, layers, rows, row, str(state))
        at += len(layers) * rows * row
    kept = tuple(index for index, state in enumerate(states) if isinstance(state, Recurrent))
    nbytes = model.slots * model.slot_bytes
    yield Region(Content.SLOTS, at, nbytes, kept, model.slots, model.slot_bytes)
