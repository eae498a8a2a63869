"""The cluster file and its prepared models, as the commands need them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer
from msgspec.structs import replace
from rich.progress import Progress, TaskID

from alipes.cli.output import progress_bars
from alipes.gateway.config import Cluster, ConfigError, load_cluster
from alipes.gateway.fleet.endpoints import default_endpoint, default_state_folder
from alipes.instance.checkpoints.folder import SourceError
from alipes.instance.checkpoints.sources import check_source, folder_of, is_prepared, prepare
from alipes.instance.contract import RandomWeights

ConfigOption = Annotated[
    Path, typer.Option("-c", "--config", metavar="FILE", help="The cluster file")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables")]
DEFAULT_FILE = Path("alipes.yaml")


def load(path: Path) -> Cluster:
    """The cluster, its endpoint and the folder of its state resolved. Raises ConfigError."""
    cluster = load_cluster(path)
    for name, entry in cluster.models.items():
        if isinstance(entry.source, RandomWeights):
            try:
                check_source(entry.source)
            except SourceError as error:
                raise ConfigError(f"{path}: models.{name}.{error}") from None
    endpoint = cluster.gateway.endpoint or default_endpoint(str(path))
    folder = cluster.state.folder or str(default_state_folder(Path(cluster.cache), str(path)))
    return replace(
        cluster,
        gateway=replace(cluster.gateway, endpoint=endpoint),
        state=replace(cluster.state, folder=folder),
    )


def model_folders(cluster: Cluster, models: Iterable[str]) -> dict[str, Path]:
    """Where each model's folder is or will be."""
    cache = Path(cluster.cache)
    return {name: folder_of(cluster.models[name].source, cache) for name in models}


def served_models(cluster: Cluster) -> list[str]:
    """Models that instances serve, in the order of the catalogue."""
    served = {model for entry in cluster.instances.values() for model in entry.models}
    return [name for name in cluster.models if name in served]


def prepare_models(cluster: Cluster, models: Iterable[str]) -> dict[str, Path]:
    """Prepare what is not prepared yet, with a bar for each model. Raises SourceError."""
    folders = model_folders(cluster, models)
    missing = [name for name, folder in folders.items() if not is_prepared(folder)]
    if missing:
        with progress_bars() as progress:
            for name in missing:
                if progress.disable:
                    typer.echo(f"preparing {name}", err=True)
                _prepare(cluster, name, progress, progress.add_task(name, total=1.0))
    return folders


def _prepare(cluster: Cluster, name: str, progress: Progress, bar: TaskID) -> None:
    def tell(what: str, fraction: float) -> None:
        progress.update(bar, description=f"{name}: {what}", completed=fraction)

    try:
        prepare(cluster.models[name].source, Path(cluster.cache), tell)
    except SourceError as error:
        raise SourceError(f"models.{name}.{error}") from None
    except OSError as error:
        raise SourceError(
            f"models.{name}: cannot be prepared in {cluster.cache} ({error.strerror});"
            " set `cache` or ALIPES_CACHE to a folder that can be written, with room for it"
        ) from None
