"""``alipes models``: the catalogue and its prepared folders."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from alipes.cli.cluster import DEFAULT_FILE, ConfigOption, JsonOption, load, model_folders
from alipes.cli.cluster import prepare_models as prepare_named
from alipes.cli.output import print_json, print_table, reported
from alipes.gateway.config import Cluster, ConfigError
from alipes.gateway.strict import nearest
from alipes.instance.checkpoints.folder import SourceError
from alipes.instance.checkpoints.sources import is_prepared
from alipes.instance.contract import LocalFolder, ModelSource, PackagedGguf

models = typer.Typer(help="Prepare and list the models of the catalogue.", no_args_is_help=True)


class ModelRow(msgspec.Struct, frozen=True):
    name: str
    source: str
    dtype: str
    prepared: bool
    size_bytes: int
    folder: str


@models.command("list")
def list_models(config: ConfigOption = DEFAULT_FILE, as_json: JsonOption = False) -> None:
    """Show every model, its source, and the bytes of its folder once it is prepared."""
    with reported():
        cluster = load(config)
        rows = [_row(cluster, name) for name in cluster.models]
    _show(rows, as_json)


@models.command("prepare")
def prepare_models(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="MODEL", help="All when none is named")
    ] = None,
    config: ConfigOption = DEFAULT_FILE,
    as_json: JsonOption = False,
) -> None:
    """Fetch and convert models into the cache; what is prepared already is left alone."""
    with reported(SourceError):
        cluster = load(config)
        wanted = names or list(cluster.models)
        for name in wanted:
            if name not in cluster.models:
                hint = nearest(name, list(cluster.models))
                raise ConfigError(f"{config}: models: unknown model {name!r}; {hint}")
        prepare_named(cluster, wanted)
        rows = [_row(cluster, name) for name in wanted]
    _show(rows, as_json)


def _row(cluster: Cluster, name: str) -> ModelRow:
    entry = cluster.models[name]
    folder = model_folders(cluster, [name])[name]
    ready = is_prepared(folder)
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) if ready else 0
    return ModelRow(name, _words(entry.source), entry.dtype, ready, size, str(folder))


def _words(source: ModelSource) -> str:
    if isinstance(source, LocalFolder):
        return source.path
    if isinstance(source, PackagedGguf):
        return f"{source.requirement} {Path(source.file).name}"
    return f"random {source.family} {source.size}, seed {source.seed}"


def _show(rows: list[ModelRow], as_json: bool) -> None:
    if as_json:
        print_json(rows)
        return
    table = [
        (r.name, r.source, r.dtype, f"{r.size_bytes:,}" if r.prepared else "not prepared")
        for r in rows
    ]
    print_table("Models", ("name", "source", "dtype", "bytes"), table, ("name", "source", "dtype"))
