"""``alipes check``: is the cluster file sound, and does everything fit?"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
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
from alipes.cli.machine import cuda_devices
from alipes.cli.output import FAILURE, complain, print_json, remark, reported
from alipes.cli.planned import InstanceBytes, planned_bytes, show_plan, show_planned_map
from alipes.cli.planned import as_json as plans_as_json
from alipes.gateway.config import Cluster, instance_settings, json_schema, unserved
from alipes.gateway.fleet.cores import divide_cores
from alipes.instance.checkpoints.folder import SourceError
from alipes.instance.checkpoints.sources import check_source, is_prepared
from alipes.instance.contract import BLOCK_TOKENS, Pool
from alipes.instance.engine.native.config import ModelError
from alipes.instance.engine.native.parallel.share import Share, settings_of_rank
from alipes.instance.engine.native.shape import read_shape, shape_on
from alipes.instance.memory.plan import Footprint, MemoryPlan, plan_instance
from alipes.planner.cold_set import DecodeStep, decode_step, infeasible


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
        cluster = load(config)
        report = examine(cluster, str(config))
    if as_json:
        print_json(msgspec.structs.asdict(report) | {"instances": plans_as_json(report.instances)})
    else:
        dtypes = {name: entry.dtype for name, entry in cluster.models.items()}
        for planned in report.instances:
            show_plan(planned)
            if with_map:
                show_planned_map(planned, dtypes)
    for warning in report.warnings:
        remark(warning)
    for refusal in report.refusals:
        complain(f"{config}: {refusal}")
    if report.refusals:
        raise typer.Exit(FAILURE)
    if not as_json:
        typer.echo(f"{config} is sound")


def examine(cluster: Cluster, file: str) -> Report:
    """Plan every instance with a native engine, without models that are not prepared: these are
    refused."""
    refusals, footprints, notes = _read_footprints(cluster, file)
    warnings = notes + [
        f"models.{name}: no instance serves it; add it to one under `instances`"
        for name in unserved(cluster)
    ]
    steps = _decode_steps(cluster, footprints)
    planned = []
    for name, entry in cluster.instances.items():
        here = tuple(model for model in entry.models if model in footprints)
        if entry.engine != "native" or not here:
            continue
        try:
            own = _footprints_of(cluster, name, here)
        except ModelError as error:
            refusals.append(f"instances.{name}.ranks: {error}")
            continue
        plan = _plan(cluster, name, own)
        refusals += [f"instances.{name}: {text}" for text in plan.refusals]
        warnings += [f"instances.{name}: {text}" for text in _cut(plan, own)]
        own_steps = {model: steps[model] for model in here}
        too_slow = infeasible(name, own_steps, cluster.targets.tpot)
        if too_slow:
            (refusals if entry.pool is Pool.COLD else warnings).append(too_slow)
        staging = cluster.ablations.staging
        planned.append(planned_bytes(name, entry, plan, own, own_steps, staging))
    local = {name: entry.threads for name, entry in cluster.instances.items() if entry.local}
    warnings += _machine(planned, local) + _devices(cluster)
    return Report(file, tuple(planned), tuple(refusals), tuple(warnings))


def _cut(plan: MemoryPlan, footprints: Mapping[str, Footprint]) -> list[str]:
    """Models that fit, with less than their context."""
    whole = {name: footprint.context for name, footprint in footprints.items()}
    return [
        f"context of {model.name} is cut from {whole[model.name]:,} to {model.context:,} by "
        "device_bytes"
        for model in plan.models
        if not model.refusal and model.context < whole[model.name]
    ]


def _devices(cluster: Cluster) -> list[str]:
    """Local instances on CUDA devices that this machine lacks. The file may be meant for another
    one, so these are warnings."""
    wanted = {
        name: int(entry.device.partition(":")[2] or 0)
        for name, entry in cluster.instances.items()
        if entry.local and entry.engine == "native" and entry.device != "cpu"
    }
    count = cuda_devices() if wanted else 0
    return [
        f"instances.{name}.device: this machine has {count} CUDA devices that torch could use, so "
        "that `alipes serve` cannot start it here; write `device: cpu`"
        for name, index in wanted.items()
        if index >= count
    ]


def _read_footprints(
    cluster: Cluster, file: str
) -> tuple[list[str], dict[str, Footprint], list[str]]:
    """Refusals, footprints by model, and what a user should know of how one is served."""
    refusals, footprints, notes = [], {}, []
    for name, folder in model_folders(cluster, served_models(cluster)).items():
        try:
            check_source(cluster.models[name].source)
        except SourceError as error:
            refusals.append(f"models.{name}.{error}")
            continue
        if not is_prepared(folder):
            command = f"alipes models prepare {name}{_option(file)}"
            refusals.append(f"models.{name}: not prepared; run `{command}`")
            continue
        try:
            shape = read_shape(folder, cluster.models[name].dtype)
            footprints[name] = shape.footprint(BLOCK_TOKENS)
            if shape.config.note:
                notes.append(f"models.{name}: {shape.config.note}")
        except ModelError as error:
            refusals.append(f"models.{name}: {error}")
    return refusals, footprints, notes


def _option(file: str) -> str:
    """What tells another command of the file, unless it would find it by itself."""
    return "" if Path(file) == DEFAULT_FILE else f" -c {shlex.quote(file)}"


def _footprints_of(cluster: Cluster, name: str, models: Sequence[str]) -> dict[str, Footprint]:
    """Of these models of one instance, for each of its ranks and on its device. Raises
    ``ModelError``."""
    entry = cluster.instances[name]
    settings = instance_settings(cluster, name, model_folders(cluster, entry.models), "")
    share = Share(0, entry.ranks)
    return {
        model.name: shape_on(entry.device, model, share).footprint(BLOCK_TOKENS)
        for model in settings.models
        if model.name in models
    }


def _plan(cluster: Cluster, name: str, footprints: Mapping[str, Footprint]) -> MemoryPlan:
    # The plan depends on sizes alone, so any folder and endpoint will do.
    folders = dict.fromkeys(cluster.instances[name].models, Path())
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
