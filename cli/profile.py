"""``alipes profile``: what the work of an instance takes on this machine."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from msgspec.structs import replace

from alipes.cli.cluster import DEFAULT_FILE, ConfigOption, JsonOption, load, prepare_models
from alipes.cli.machine import cpu_name
from alipes.cli.output import CommandError, print_json, print_table, remark, reported
from alipes.cli.stack import FILE, PYTHON, end_in_order, serving
from alipes.cli.timed_calls import time_calls
from alipes.gateway.config import Cluster, ConfigError, instance_settings
from alipes.gateway.fleet.cores import divide_cores
from alipes.gateway.strict import nearest
from alipes.instance.checkpoints.folder import SourceError
from alipes.replay.sim.hardware import Quantity, quantities, save_hardware, unit
from alipes.replay.sim.measure import Measured, Profile, Recording, merged
from alipes.replay.sim.measure import profile as fitted


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
    """Time an instance while it serves; write what its work takes as a hardware profile."""
    end_in_order()
    with reported(SourceError, OSError):
        cluster = load(config)
        name = _chosen(cluster, instance, config)
        found = fit_all([time_instance(cluster, name)])
        if out is not None:
            save_hardware(out, found.hardware)
    for line in found.remarks:
        remark(line)
    if as_json:
        print_json(found)
    else:
        _show(found)


def time_instance(cluster: Cluster, name: str) -> Measured:
    """Serve the instance by itself for a while. Raises ``CommandError`` and ``SourceError``."""
    alone = _alone(cluster, name)
    folders = prepare_models(alone, alone.models)
    with tempfile.TemporaryDirectory(prefix="alipes-profile-") as work:
        return _measure(alone, name, folders, Path(work))


def fit_all(measured: Sequence[Measured]) -> Profile:
    """One profile of all that was measured of an instance. Raises ``CommandError``."""
    try:
        return fitted(merged(measured))
    except ValueError as error:
        name = measured[0].settings.name
        raise CommandError(f"instance {name} cannot be profiled: {error}") from None


def _measure(alone: Cluster, name: str, folders: Mapping[str, Path], work: Path) -> Measured:
    out, served = work / "recording.json", work / "stack"
    settings = instance_settings(alone, name, folders, "")
    beside = (*PYTHON, "alipes.cli.timed_instance", str(served / FILE), name, str(out))
    with serving(alone, folders, served, beside) as stack:
        gateway = time_calls(stack, settings)
    if not out.exists():
        raise CommandError(f"instance {name} ended without a word; see {stack.log}")
    return Measured(
        settings=settings,
        machine=f"{cpu_name()}, {settings.threads} thread{'s' * (settings.threads > 1)}",
        date=datetime.now(UTC).date().isoformat(),
        recording=msgspec.json.decode(out.read_bytes(), type=Recording),
        launch=stack.seconds,
        gateway=gateway,
    )


def _chosen(cluster: Cluster, name: str, config: Path) -> str:
    known = list(cluster.instances)
    if name and name not in known:
        raise ConfigError(f"{config}: instances: unknown instance {name!r}; {nearest(name, known)}")
    return name or known[0]


def _alone(cluster: Cluster, name: str) -> Cluster:
    """The instance by itself, with the threads that it has beside the others; it is started here,
    not by the gateway."""
    wanted = {each: entry.threads for each, entry in cluster.instances.items() if entry.local}
    entry = cluster.instances[name]
    threads = divide_cores(len(os.sched_getaffinity(0)), wanted | {name: entry.threads})[name]
    own = replace(entry, threads=threads, local=False)
    models = {model: cluster.models[model] for model in entry.models}
    return replace(cluster, models=models, instances={name: own})


def _show(found: Profile) -> None:
    hardware = found.hardware
    rows = [
        (path, *_ends(quantity), unit(path), "assumed" if quantity.assumed else "")
        for path, quantity in quantities(hardware)
        if quantity.value
    ]
    columns = ("number", "value", "low", "high", "unit", "basis")
    print_table(hardware.about, columns, rows, ("number", "unit", "basis"))
    errors = [
        (what, str(one.samples), f"{one.error_p50:.1%}", f"{one.error_p90:.1%}")
        for what, one in found.fits.items()
    ]
    title = "how far single pieces of work lie from the fitted forms"
    print_table(title, ("work", "samples", "error p50", "error p90"), errors, ("work",))


def _ends(quantity: Quantity) -> Iterator[str]:
    for number in (quantity.value, quantity.low, quantity.high):
        yield f"{number:.4g}" if number else ""
