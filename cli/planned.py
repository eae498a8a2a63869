"""What ``alipes check`` plans, as it is printed."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from alipes.cli.memory import show_map
from alipes.cli.output import print_table
from alipes.gateway.config import InstanceEntry
from alipes.instance.contract import BLOCK_TOKENS, MemoryMap, Pool
from alipes.instance.memory.map import memory_map
from alipes.instance.memory.plan import Footprint, MemoryPlan, ModelPlan
from alipes.instance.memory.specs import paged
from alipes.instance.memory.staging_plan import GRANULE, StagingArea, frame_bytes, part_held
from alipes.planner.cold_set import DecodeStep


class ModelBytes(msgspec.Struct, frozen=True):
    """One model on one instance; KV is what it can have while it is active, and ``others_fit`` the
    part of the other models' weights for which that has room as long as it is empty: None where
    there are no others, or they are not staged. Without ``fits`` only the weights and the decode
    step mean anything."""

    name: str
    weight_bytes: int
    kv_offset: int
    kv_bytes: int
    kv_blocks: int
    context: int
    decode_step: float
    decode_step_basis: str
    fits: bool
    others_fit: float | None = None


class InstanceBytes(msgspec.Struct, frozen=True):
    """Of each of its ``ranks`` processes. ``memory`` maps the whole arena for each model that
    fits. Models that are ``absent`` are not prepared: nothing here counts them."""

    name: str
    pool: Pool
    ranks: int
    device_bytes: int
    runtime_bytes: int
    host_weight_bytes: int
    host_bytes: int
    models: tuple[ModelBytes, ...]
    memory: MemoryMap
    absent: tuple[str, ...] = ()


def planned_bytes(
    name: str,
    entry: InstanceEntry,
    plan: MemoryPlan,
    footprints: Mapping[str, Footprint],
    steps: Mapping[str, DecodeStep],
    staging: bool,
) -> InstanceBytes:
    """``footprints`` and ``steps`` are those of the models of ``plan``."""
    held = _others_fit(plan, footprints) if staging and len(plan.models) > 1 else {}
    models = tuple(
        ModelBytes(
            name=model.name,
            weight_bytes=model.weight_bytes,
            kv_offset=model.kv_offset,
            kv_bytes=model.kv_bytes,
            kv_blocks=model.kv_blocks,
            context=model.context,
            decode_step=steps[model.name].seconds,
            decode_step_basis=steps[model.name].basis,
            fits=not model.refusal,
            others_fit=held.get(model.name),
        )
        for model in plan.models
    )
    states = {model: footprint.states for model, footprint in footprints.items()}
    return InstanceBytes(
        name,
        entry.pool,
        entry.ranks,
        plan.device_bytes,
        plan.runtime_bytes,
        plan.host_weight_bytes,
        plan.host_bytes,
        models,
        memory_map(plan, states, BLOCK_TOKENS),
        tuple(model for model in entry.models if model not in footprints),
    )


def _others_fit(plan: MemoryPlan, footprints: Mapping[str, Footprint]) -> dict[str, float]:
    """By model that fits. Chunks are those of process memory; an accelerator whose pages are
    larger may have somewhat larger ones, and so a little less room."""
    rows = {
        model.name: tuple(
            BLOCK_TOKENS * state.token_bytes for state in paged(footprints[model.name].states)
        )
        for model in plan.models
    }
    fitting = [model for model in plan.models if not model.refusal]
    layer = min((model.kv_blocks * min(rows[model.name]) for model in fitting), default=0)
    chunk = frame_bytes(layer, max(m.weight_bytes for m in plan.models), GRANULE)

    def part(model: ModelPlan) -> float:
        area = StagingArea(model.kv_blocks, rows[model.name], chunk, model.kv_offset, chunk)
        return part_held(area, [m.weight_bytes for m in plan.models if m is not model])

    return {model.name: part(model) for model in fitting}


def show_plan(plan: InstanceBytes) -> None:
    columns = ["model", "bytes", "KV bytes", "context", "step ms", "fits"]
    if any(model.others_fit is not None for model in plan.models):
        columns.append("others fit")
    rows = [_cells(model)[: len(columns)] for model in plan.models]
    for what, nbytes in (
        ("runtime buffers", plan.runtime_bytes),
        ("device total", plan.device_bytes),
        ("host: weights", plan.host_weight_bytes),
        ("host: KV", plan.host_bytes),
    ):
        rows.append((what, f"{nbytes:,}", *[""] * (len(columns) - 2)))
    each = f", each of {plan.ranks} ranks" if plan.ranks > 1 else ""
    without = f", without {', '.join(plan.absent)}" if plan.absent else ""
    title = f"{plan.name} ({plan.pool.value}{each}{without})"
    print_table(title, columns, rows, ("model", "fits"))


def _cells(model: ModelBytes) -> tuple[str, ...]:
    kv = (f"{model.kv_bytes:,}", f"{model.context:,}")
    others = "-" if model.others_fit is None else f"{model.others_fit:.0%}"
    return (
        model.name,
        f"{model.weight_bytes:,}",
        *(kv if model.fits else ("-", "-")),
        f"{model.decode_step * 1e3:.1f}",
        "yes" if model.fits else "no",
        others,
    )


def show_planned_map(plan: InstanceBytes, dtypes: Mapping[str, str]) -> None:
    """``dtypes`` are those of weights, by model."""
    unfit = [model.name for model in plan.models if not model.fits]
    title = f"{plan.name}: the arena while each model is active"
    show_map(title, plan.memory, BLOCK_TOKENS, dtypes, unfit)


def as_json(plans: tuple[InstanceBytes, ...]) -> list[dict[str, object]]:
    """Without what only an instance that runs can tell of its memory."""
    rows: list[dict[str, object]] = msgspec.to_builtins(plans)
    for row in rows:
        memory = row["memory"]
        assert isinstance(memory, dict)
        del memory["backend"], memory["switching"]
    return rows
