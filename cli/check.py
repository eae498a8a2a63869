"""``alipes check``: is the cluster file sound, and does everything fit?"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from alipes.cli.bandwidth import measure_bandwidth
from alipes.cli.cluster import (
    DEFAULT_FILE,
    ConfigOption,
    JsonOption,
    load,
    model_folders,
    served_models,
)
from alipes.cli.memory import show_map
from alipes.cli.output import FAILURE, complain, print_json, print_table, remark, reported
from alipes.gateway.config import Cluster, InstanceEntry, instance_settings, json_schema, unserved
from alipes.gateway.fleet.cores import divide_cores
from alipes.instance.checkpoints.folder import SourceError
from alipes.instance.checkpoints.sources import check_source, is_prepared
from alipes.instance.contract import BLOCK_TOKENS, MemoryMap, Pool
from alipes.instance.engine.native.config import ModelError
from alipes.instance.engine.native.parallel.share import Share, settings_of_rank
from alipes.instance.engine.native.shape import read_shape, shape_on
from alipes.instance.memory.map import memory_map
from alipes.instance.memory.plan import Footprint, MemoryPlan, plan_instance
from alipes.planner.cold_set import DecodeStep, decode_step, infeasible


class ModelBytes(msgspec.Struct, frozen=True):
    """One model on one instance; KV is what it can have while it is active."""

    name: str
    weight_bytes: int
    kv_offset: int
    kv_bytes: int
    kv_blocks: int
    context: int
    decode_step: float
    decode_step_basis: str
    fits: bool


class InstanceBytes(msgspec.Struct, frozen=True):
    """Of each of its ``ranks`` processes. ``memory`` maps the whole arena for each model that
    fits."""

    name: str
    pool: Pool
    ranks: int
    device_bytes: int
    runtime_bytes: int
    host_weight_bytes: int
    host_bytes: int
    models: tuple[ModelBytes, ...]
    memory: MemoryMap


class Report(msgspec.Struct, frozen=True):
    """``refusals`` keep the cluster from serving; ``warnings`` do not."""

    file: str
    instances: tuple[InstanceBytes, ...]
    refusals: tuple[str, ...]
    warnings: tuple[str, ...]


def check(
    config: ConfigOption = DEFAULT_FILE,
    as_json: JsonOption = False,
    with_map: Annotated[
        bool, typer.Option("--map", help="Print what lies where in every instance's arena too")
    ] = False,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON schema of the file instead")
    ] = False,
) -> None:
    """Validate the file and print the memory plan of every instance, in bytes."""
    if schema:
        print_json(json_schema())
        return
    with reported():
        report = examine(load(config), str(config))
    if as_json:
        print_json(report)
    else:
        for planned in report.instances:
            _show(planned)
            if with_map:
                show_map(f"{planned.name}: the arena while each model is active", planned.memory)
    for warning in report.warnings:
        remark(warning)
    for refusal in report.refusals:
        complain(f"{config}: {refusal}")
    if report.refusals:
        raise typer.Exit(FAILURE)
    if not as_json:
        typer.echo(f"{config} is sound")


def examine(cluster: Cluster, file: str) -> Report:
    """Plan every instance with a native engine; a model that is not prepared is refused."""
    refusals, footprints, notes = _read_footprints(cluster)
    warnings = notes + [
        f"models.{name}: no instance serves it; add it to one under `instances`"
        for name in unserved(cluster)
    ]
    steps = _decode_steps(cluster, footprints)
    planned = []
    for name, entry in cluster.instances.items():
        if entry.engine != "native" or any(model not in footprints for model in entry.models):
            continue
        try:
            own = _footprints_of(cluster, name)
        except ModelError as error:
            refusals.append(f"instances.{name}.ranks: {error}")
            continue
        plan = _plan(cluster, name, own)
        refusals += [f"instances.{name}: {text}" for text in plan.refusals]
        own_steps = {model: steps[model] for model in entry.models}
        too_slow = infeasible(name, own_steps, cluster.targets.tpot)
        if too_slow:
            (refusals if entry.pool is Pool.COLD else warnings).append(too_slow)
        states = {model: footprint.states for model, footprint in own.items()}
        memory = memory_map(plan, states, BLOCK_TOKENS)
        planned.append(_bytes(name, entry, plan, own_steps, memory))
    local = {name: entry.threads for name, entry in cluster.instances.items() if entry.local}
    warnings += _machine(planned, local)
    return Report(file, tuple(planned), tuple(refusals), tuple(warnings))


def _read_footprints(cluster: Cluster) -> tuple[list[str], dict[str, Footprint], list[str]]:
    """Refusals, footprints by model, and what a user should know of how one is served."""
    refusals, footprints, notes = [], {}, []
    for name, folder in model_folders(cluster, served_models(cluster)).items():
        try:
            check_source(cluster.models[name].source)
        except SourceError as error:
            refusals.append(f"models.{name}.{error}")
            continue
        if not is_prepared(folder):
            refusals.append(f"models.{name}: not prepared; run `alipes models prepare {name}`")
            continue
        try:
            shape = read_shape(folder, cluster.models[name].dtype)
            footprints[name] = shape.footprint(BLOCK_TOKENS)
            if shape.config.note:
                notes.append(f"models.{name}: {shape.config.note}")
        except ModelError as error:
            refusals.append(f"models.{name}: {error}")
    return refusals, footprints, notes


def _footprints_of(cluster: Cluster, name: str) -> dict[str, Footprint]:
    """Of the models of one instance, for each of its ranks and on its device. Raises
    ``ModelError``."""
    entry = cluster.instances[name]
    settings = instance_settings(cluster, name, model_folders(cluster, entry.models), "")
    share = Share(0, entry.ranks)
    return {
        model.name: shape_on(entry.device, model, share).footprint(BLOCK_TOKENS)
        for model in settings.models
    }


def _plan(cluster: Cluster, name: str, footprints: Mapping[str, Footprint]) -> MemoryPlan:
    # The plan depends on sizes alone, so any folder and endpoint will do.
    folders = dict.fromkeys(footprints, Path())
    settings = settings_of_rank(instance_settings(cluster, name, folders, ""))
    return plan_instance(settings, footprints)


def _decode_steps(cluster: Cluster, footprints: Mapping[str, Footprint]) -> dict[str, DecodeStep]:
    overrides = {name: cluster.models[name].decode_step for name in footprints}
    bandwidth = 0.0
    if None in overrides.values():
        local = {n: e.threads for n, e in cluster.instances.items() if e.local}
        threads = divide_cores(len(os.sched_getaffinity(0)), local)
        bandwidth = measure_bandwidth(max(threads.values(), default=1))
    return {
        name: decode_step(name, model.step_bytes, overrides[name], bandwidth)
        for name, model in footprints.items()
    }


def _bytes(
    name: str,
    entry: InstanceEntry,
    plan: MemoryPlan,
    steps: Mapping[str, DecodeStep],
    memory: MemoryMap,
) -> InstanceBytes:
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
        )
        for model in plan.models
    )
    return InstanceBytes(
        name,
        entry.pool,
        entry.ranks,
        plan.device_bytes,
        plan.runtime_bytes,
        plan.host_weight_bytes,
        plan.host_bytes,
        models,
        memory,
    )


def _machine(planned: list[InstanceBytes], local: Mapping[str, int]) -> list[str]:
    """What the ``local`` instances, with the threads that they ask for, may take beyond what
    this machine has. Sizes are upper bounds, so these are warnings."""
    import psutil

    cores = len(os.sched_getaffinity(0))
    crowded = [
        f"instances.{name}.threads: {threads} threads wait for each other on {cores} cores;"
        f" write {cores} at most, or 0 for a fair share"
        for name, threads in local.items()
        if threads > cores
    ]
    total = sum(
        plan.ranks * (plan.device_bytes + plan.host_weight_bytes + plan.host_bytes)
        for plan in planned
        if plan.name in local
    )
    available = int(psutil.virtual_memory().total)
    if total <= available:
        return crowded
    return [
        *crowded,
        f"local instances may use {total:,} bytes; this machine has {available:,}: lower "
        "device_bytes or host_bytes",
    ]


def _show(plan: InstanceBytes) -> None:
    columns = ("model", "bytes", "KV at", "KV bytes", "context", "step ms", "fits")
    rows: list[tuple[str, ...]] = [
        (
            model.name,
            f"{model.weight_bytes:,}",
            f"{model.kv_offset:,}",
            f"{model.kv_bytes:,}",
            f"{model.context:,}",
            f"{model.decode_step * 1e3:.1f}",
            "yes" if model.fits else "no",
        )
        for model in plan.models
    ]
    for what, nbytes in (
        ("runtime buffers", plan.runtime_bytes),
        ("device total", plan.device_bytes),
        ("host: weights", plan.host_weight_bytes),
        ("host: KV", plan.host_bytes),
    ):
        rows.append((what, f"{nbytes:,}", *[""] * (len(columns) - 2)))
    each = f", each of {plan.ranks} ranks" if plan.ranks > 1 else ""
    print_table(f"{plan.name} ({plan.pool.value}{each})", columns, rows, ("model", "fits"))
