"""``alipes serve``: the gateway and its local instances."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import typer
from msgspec.structs import replace

from alipes.cli.check import Report, examine
from alipes.cli.cluster import (
    DEFAULT_FILE,
    ConfigOption,
    load,
    model_folders,
    prepare_models,
    served_models,
)
from alipes.cli.output import USAGE, CommandError, complain, remark, reported
from alipes.gateway.config import Cluster, instance_settings
from alipes.gateway.fleet.cores import divide_cores
from alipes.gateway.fleet.endpoints import FleetError
from alipes.gateway.fleet.fingerprint import code_digest, fingerprint
from alipes.gateway.fleet.launcher import LaunchSpec
from alipes.instance.checkpoints.folder import SourceError
from alipes.instance.contract import thread_environment
from alipes.instance.memory.preload import parking_environment


def serve(config: ConfigOption = DEFAULT_FILE) -> None:
    """Prepare the models, start the instances and serve until Ctrl-C. On SIGUSR1 it leaves the
    instances running, for a `serve` that follows."""
    with reported(SourceError, FleetError):
        cluster = load(config)
        folders = prepare_models(cluster, served_models(cluster))
        _refuse(examine(cluster, str(config)))
        # What nobody serves is in the catalogue, but not offered to clients.
        served = {name: cluster.models[name] for name in folders}
        _serve(replace(cluster, models=served), folders, launch_specs(cluster, config))


def _refuse(report: Report) -> None:
    for warning in report.warnings:
        remark(warning)
    if report.refusals:
        more = len(report.refusals) - 1
        others = f" (and {more} more: alipes check)" if more else ""
        raise CommandError(f"{report.file}: {report.refusals[0]}{others}")


def launch_specs(cluster: Cluster, config: Path) -> tuple[LaunchSpec, ...]:
    """How to start each local instance, the cores divided among them."""
    wanted = {name: entry.threads for name, entry in cluster.instances.items() if entry.local}
    threads = divide_cores(len(os.sched_getaffinity(0)), wanted)
    code = code_digest()
    return tuple(
        _launch_spec(name, cluster, config, count, code) for name, count in threads.items()
    )


def _launch_spec(name: str, cluster: Cluster, config: Path, threads: int, code: str) -> LaunchSpec:
    entry = cluster.instances[name]
    folders = model_folders(cluster, entry.models)
    settings = instance_settings(cluster, name, folders, cluster.gateway.endpoint)
    argv = _argv(name, cluster, config, threads)
    env = thread_environment(threads) | _parking(entry.device)
    return LaunchSpec(name, argv, env, fingerprint(code, settings, argv, env))


def _parking(device: str) -> dict[str, str]:
    return {} if device == "cpu" else parking_environment()


def _argv(name: str, cluster: Cluster, config: Path, threads: int) -> tuple[str, ...]:
    command = (sys.executable, "-P", "-m", "alipes.cli.main", "instance", name)
    options = ("--endpoint", cluster.gateway.endpoint, "--threads", str(threads))
    return (*command, "-c", str(config.absolute()), *options)


def _serve(cluster: Cluster, folders: Mapping[str, Path], specs: tuple[LaunchSpec, ...]) -> None:
    from alipes.gateway.app import NothingServes, serve_gateway

    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s"
    )

    def announce(url: str) -> None:
        typer.echo(f"ready: {url} serves {', '.join(cluster.models)}")
        sys.stdout.flush()

    try:
        state = Path(cluster.state.folder) if cluster.state.keep else None
        serve_gateway(cluster, folders, specs, announce, state=state)
    except NothingServes as error:
        complain(str(error))
        raise typer.Exit(USAGE) from None
