"""``alipes instance`` and ``alipes drain``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from msgspec.structs import replace

from alipes.cli.admin import KeyOption, ask
from alipes.cli.cluster import DEFAULT_FILE, ConfigOption, load, prepare_models
from alipes.cli.output import reported
from alipes.gateway.config import Cluster, ConfigError, InstanceEntry, instance_settings
from alipes.gateway.strict import nearest
from alipes.instance.checkpoints.folder import SourceError


def instance(
    name: Annotated[str, typer.Argument(metavar="NAME", help="An entry under `instances`")],
    config: ConfigOption = DEFAULT_FILE,
    endpoint: Annotated[
        str, typer.Option(help="Where the gateway listens, instead of gateway.endpoint")
    ] = "",
    threads: Annotated[
        int, typer.Option(min=0, help="Compute threads; 0 is what the file says")
    ] = 0,
) -> None:
    """Run one engine process; `alipes serve` starts the local ones by itself."""
    from alipes.instance.server import run_instance

    with reported(SourceError):
        cluster = load(config)
        folders = prepare_models(cluster, entry_of(cluster, config, name).models)
        settings = instance_settings(cluster, name, folders, endpoint or cluster.gateway.endpoint)
        if threads:
            settings = replace(settings, threads=threads)
    raise typer.Exit(run_instance(settings))


def drain(
    name: Annotated[str, typer.Argument(metavar="INSTANCE", help="An entry under `instances`")],
    config: ConfigOption = DEFAULT_FILE,
    api_key: KeyOption = "",
) -> None:
    """Let an instance finish what it has and give it no new calls."""
    with reported():
        cluster = load(config)
        entry_of(cluster, config, name)
        ask(cluster.gateway, api_key, "POST", f"/admin/instances/{name}/drain")
    typer.echo(f"{name} drains: it finishes its calls and gets no new ones")


def entry_of(cluster: Cluster, config: Path, name: str) -> InstanceEntry:
    """Raises ConfigError."""
    if name not in cluster.instances:
        hint = nearest(name, list(cluster.instances))
        raise ConfigError(f"{config}: instances: unknown instance {name!r}; {hint}")
    return cluster.instances[name]
