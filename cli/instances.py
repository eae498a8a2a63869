"""``alipes instance`` and ``alipes drain``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec.structs import replace

from alipes.cli.cluster import DEFAULT_FILE, ConfigOption, load, prepare_models
from alipes.cli.output import CommandError, reported
from alipes.gateway.config import (
    Cluster,
    ConfigError,
    GatewaySettings,
    InstanceEntry,
    instance_settings,
)
from alipes.gateway.strict import nearest
from alipes.instance.checkpoints.folder import SourceError

if TYPE_CHECKING:
    import httpx

ANY_HOST = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "": "127.0.0.1"}
DRAIN_SECONDS = 10.0


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
        folders = prepare_models(cluster, _entry(cluster, config, name).models)
        settings = instance_settings(cluster, name, folders, endpoint or cluster.gateway.endpoint)
        if threads:
            settings = replace(settings, threads=threads)
    raise typer.Exit(run_instance(settings))


def drain(
    name: Annotated[str, typer.Argument(metavar="INSTANCE", help="An entry under `instances`")],
    config: ConfigOption = DEFAULT_FILE,
    api_key: Annotated[str, typer.Option(envvar="ALIPES_API_KEY", help="Key of the gateway")] = "",
) -> None:
    """Let an instance finish what it has and give it no new calls."""
    with reported():
        cluster = load(config)
        _entry(cluster, config, name)
        _ask_to_drain(name, cluster.gateway, api_key)
    typer.echo(f"{name} drains: it finishes its calls and gets no new ones")


def _entry(cluster: Cluster, config: Path, name: str) -> InstanceEntry:
    if name not in cluster.instances:
        hint = nearest(name, list(cluster.instances))
        raise ConfigError(f"{config}: instances: unknown instance {name!r}; {hint}")
    return cluster.instances[name]


def _ask_to_drain(name: str, gateway: GatewaySettings, api_key: str) -> None:
    import httpx

    url = f"http://{ANY_HOST.get(gateway.host, gateway.host)}:{gateway.port}"
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        answer = httpx.post(
            f"{url}/admin/instances/{name}/drain", headers=headers, timeout=DRAIN_SECONDS
        )
    except httpx.HTTPError as error:
        raise CommandError(f"no gateway answers at {url} ({error}); is it serving?") from None
    if answer.is_error:
        raise CommandError(f"the gateway at {url} refuses: {_message(answer)}")


def _message(answer: httpx.Response) -> str:
    """The error's own words, in either dialect."""
    try:
        return str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"status {answer.status_code}"
