"""``alipes profile``: what the work of an instance takes on this machine."""

from __future__ import annotations

import os
import platform
import tempfile
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec.structs import replace

from alipes.cli.cluster import DEFAULT_FILE, ConfigOption, JsonOption, load, prepare_models
from alipes.cli.output import print_json, print_table, reported
from alipes.cli.stack import serving
from alipes.gateway.config import Cluster, ConfigError, instance_settings
from alipes.gateway.fleet.cores import divide_cores
from alipes.gateway.strict import nearest
from alipes.instance.checkpoints.folder import SourceError
from alipes.instance.contract import InstanceSettings, thread_environment
from alipes.instance.engine.protocol import EngineError

if TYPE_CHECKING:
    from alipes.replay.sim.measure import Measured, Profile


def profile(
    config: ConfigOption = DEFAULT_FILE,
    instance: Annotated[
        str, typer.Option(metavar="NAME", help="An entry under `instances`; the first by default")
    ] = "",
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the profile here, YAML")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Time the engine of an instance and write what it takes as a hardware profile."""
    from alipes.replay.sim.hardware import save_hardware

    with reported(SourceError, EngineError, OSError):
        cluster = load(config)
        name = _chosen(cluster, instance, config)
        found = profile_instance(cluster, name)
        if out is not None:
            save_hardware(out, found.hardware)
    if as_json:
        print_json(found)
    else:
        _show(found)


def profile_instance(cluster: Cluster, name: str) -> Profile:
    """Must be called before torch is loaded, so that the threads are those of the instance."""
    folders = prepare_models(cluster, cluster.instances[name].models)
    alone = _alone(cluster, name)
    settings = instance_settings(alone, name, folders, "")
    os.environ.update(thread_environment(settings.threads))
    measured = measure(alone, settings, folders)

    from alipes.replay.sim.measure import profile as fitted

    return fitted(measured)


def measure(alone: Cluster, settings: InstanceSettings, folders: Mapping[str, Path]) -> Measured:
    """Time the engine in this process, then calls through a gateway and an instance."""
    from alipes.cli.timed_calls import time_calls
    from alipes.instance.driver import build_engine
    from alipes.replay.sim.measure import Measured
    from alipes.replay.sim.timed_engine import time_engine

    begin = time.perf_counter()
    engine = build_engine(settings)
    build = time.perf_counter() - begin
    try:
        models = time_engine(engine, settings, _layers(settings), time.perf_counter_ns)
        host, reports = engine.host, engine.reports
    finally:
        engine.close()
    del engine
    contexts = {report.name: report.context for report in reports}
    with (
        tempfile.TemporaryDirectory(prefix="alipes-profile-") as work,
        serving(alone, folders, Path(work) / "stack") as stack,
    ):
        calls = time_calls(stack, settings.name, contexts)
    return Measured(
        settings=settings,
        machine=f"{cpu_name()}, {settings.threads} thread{'s' * (settings.threads > 1)}",
        date=datetime.now(UTC).date().isoformat(),
        host=host,
        models=models,
        build=build,
        gateway=calls.gateway,
        loop=calls.loop,
    )


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _chosen(cluster: Cluster, name: str, config: Path) -> str:
    known = list(cluster.instances)
    if name and name not in known:
        raise ConfigError(f"{config}: instances: unknown instance {name!r}; {nearest(name, known)}")
    return name or known[0]


def _alone(cluster: Cluster, name: str) -> Cluster:
    """The instance by itself, with the threads that it has beside the others."""
    wanted = {each: entry.threads for each, entry in cluster.instances.items() if entry.local}
    entry = cluster.instances[name]
    threads = divide_cores(len(os.sched_getaffinity(0)), wanted | {name: entry.threads})[name]
    own = replace(entry, threads=threads, local=True)
    gateway = replace(cluster.gateway, allow_forced_tokens=True)
    models = {model: cluster.models[model] for model in entry.models}
    return replace(cluster, models=models, instances={name: own}, gateway=gateway)


def _layers(settings: InstanceSettings) -> dict[str, int]:
    """Layers with KV, where the engine has real ones."""
    if settings.engine != "native":
        return {}
    from alipes.instance.engine.native.shape import read_shape

    shapes = {one.name: read_shape(Path(one.folder), one.dtype) for one in settings.models}
    return {name: len(shape.states) for name, shape in shapes.items()}


def _show(found: Profile) -> None:
    from alipes.replay.sim.hardware import quantities

    hardware = found.hardware
    rows = [
        (path, f"{quantity.value:.4g}", "assumed" if quantity.assumed else "")
        for path, quantity in quantities(hardware)
        if quantity.value
    ]
    print_table(
        f"{hardware.name}: {hardware.about}",
        ("number", "value", "basis"),
        rows,
        ("number", "basis"),
    )
    fits = [
        (what, str(one.points), str(one.samples), f"{one.error_p50:.1%}", f"{one.error_max:.1%}")
        for what, one in found.fits.items()
    ]
    columns = ("work", "points", "samples", "error p50", "error max")
    print_table("how far measured points lie from the fitted forms", columns, fits, ("work",))
