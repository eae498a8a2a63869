"""The cluster file as frozen structs, and how it is read."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec

from alipes.gateway.strict import ConfigError, FieldError, convert, nearest, read_yaml, with_sizes
from alipes.instance.contract import (
    FakeCosts,
    InstanceSettings,
    LocalFolder,
    ModelSettings,
    ModelSource,
    PackagedGguf,
    Pool,
    RandomWeights,
    Targets,
)

__all__ = [
    "Ablations",
    "ApiKey",
    "Cluster",
    "ConfigError",
    "GatewaySettings",
    "InstanceEntry",
    "Limits",
    "ModelEntry",
    "RecordSettings",
    "RoutingEntry",
    "StateSettings",
    "instance_settings",
    "json_schema",
    "load_cluster",
    "unserved",
]

CACHE_VARIABLE: Final = "ALIPES_CACHE"

_SOURCE_SCHEMA: Final[dict[str, Any]] = {
    "anyOf": [
        {"type": "string", "description": "a Hugging Face folder, relative to this file"},
        {
            "type": "object",
            "properties": {"package": {"type": "string"}, "file": {"type": "string"}},
            "required": ["package", "file"],
            "additionalProperties": False,
        },
        {
            "type": "object",
            "properties": {
                "random": {
                    "type": "object",
                    "properties": {
                        "family": {"type": "string"},
                        "size": {"type": "string"},
                        "seed": {"type": "integer"},
                    },
                    "required": ["family", "size"],
                    "additionalProperties": False,
                }
            },
            "required": ["random"],
            "additionalProperties": False,
        },
    ]
}

Count = Annotated[int, msgspec.Meta(ge=1)]
Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]
Seconds = Annotated[float, msgspec.Meta(gt=0, le=86400)]
Bytes = Annotated[int, msgspec.Meta(ge=1)]
Text = Annotated[str, msgspec.Meta(min_length=1)]


class ApiKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A key that a client sends, the tenant it speaks for, how many calls it may have open, and
    whether it may see and drain instances."""

    key: Text
    tenant: Text
    max_concurrent: Count = 64
    admin: bool = False


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bounds of the gateway: sizes in bytes, times in seconds. ``sessions`` counts branches: a
    session has at least one for each model that it uses. ``session_idle`` is also how long a
    stored response is kept after its last use."""

    body_bytes: Bytes = 32 << 20
    queue_depth: Count = 256
    queue_timeout: Seconds = 120.0
    keep_alive: Seconds = 5.0
    default_max_tokens: Count = 1024
    sessions: Count = 10_000
    session_idle: Seconds = 3600.0
    responses: Count = 10_000
    responses_bytes: Bytes = 256 << 20


class Ablations(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Each mechanism can be turned off, to measure what it is worth: ``session_prefill`` lets
    returning sessions into an open slot, ``host_kv`` keeps prefixes over switches and evictions,
    ``staging`` brings weights of the next model to the device while another serves, and leaves
    there what there is room for, ``prefill_turns`` lets short prompts in between the chunks of a
    long one (without it, prompts are computed as they come), ``leases`` hold a place for a likely
    return, ``residency_routing`` weighs where model and KV are (without it, the instance with the
    fewest calls is chosen), ``eviction_cost`` with it what KV a call pushes out."""

    session_prefill: bool = True
    host_kv: bool = True
    staging: bool = True
    prefill_turns: bool = True
    leases: bool = True
    residency_routing: bool = True
    eviction_cost: bool = True


class RoutingEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long a lease lasts (tau of Talaria 3.3), and what Eq. 2 holds against a further
    replica: ``replica_penalty`` (nu) seconds, over a control window of so many seconds."""

    lease_seconds: Annotated[float, msgspec.Meta(gt=0, le=600)] = 1.0
    control_window: Seconds = 10.0
    replica_penalty: Annotated[float, msgspec.Meta(ge=0, le=600)] = 0.1


class RecordSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Finished calls are appended to ``file`` until it has ``max_bytes``: lengths, times and keyed
    hashes, and with ``text`` the messages too."""

    file: Text
    text: bool = False
    max_bytes: Bytes = 256 << 20


class GatewaySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``endpoint`` is where instances connect (ZeroMQ); empty is a local socket of this user. Pages
    of ``cors_origins`` may ask from a browser; ``*`` is all."""

    host: Text = "127.0.0.1"
    port: Port = 8000
    endpoint: str = ""
    limits: Limits = Limits()
    api_keys: tuple[ApiKey, ...] = ()
    allow_forced_tokens: bool = False
    cors_origins: tuple[Text, ...] = ()
    record: RecordSettings | None = None


class StateSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Sessions and stored responses outlive the gateway in a file of ``max_bytes`` at most in
    ``folder``; empty is one in the cache for every cluster file."""

    keep: bool = True
    folder: str = ""
    max_bytes: Annotated[int, msgspec.Meta(ge=1 << 20)] = 512 << 20


class ModelEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A catalogue entry. ``dtype`` is how the arena holds weights, ``kv_dtype`` how it holds what
    attention keeps of every token: ``auto`` is float16 on CUDA where weights are, else float32.
    ``decode_step`` (seconds) overrides the estimate that ``check`` makes."""

    source: ModelSource
    dtype: Literal["float16", "float32"] = "float16"
    kv_dtype: Literal["auto", "float16", "float32"] = "auto"
    decode_step: Seconds | None = None


class InstanceEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One engine process. ``threads`` 0 means its share of the cores; ``local`` false means that
    it is started elsewhere with ``alipes instance`` and connects here. A cold instance
    lengthens its rounds, as far as the targets allow, until switches take no more than
    ``switch_share`` of them. Models are divided among ``ranks`` processes, each of which has
    ``device_bytes`` for its own. ``fake`` is what the work of the engine of that name takes."""

    pool: Pool
    models: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    engine: Literal["native", "fake"] = "native"
    device: Text = "cpu"
    device_bytes: Bytes = 2 << 30
    host_bytes: Bytes = 1 << 30
    prefill_chunk: Count = 512
    max_running: Count = 16
    max_waiting: Count = 256
    threads: Annotated[int, msgspec.Meta(ge=0)] = 0
    ranks: Count = 1
    switch_share: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.1
    local: bool = True
    fake: FakeCosts = FakeCosts()


class Cluster(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``aliases`` are other names that clients may use for models; one that ends in ``*`` stands
    for all names that begin so."""

    models: dict[str, ModelEntry]
    instances: dict[str, InstanceEntry]
    aliases: dict[str, str] = {}
    gateway: GatewaySettings = GatewaySettings()
    targets: Targets = Targets()
    routing: RoutingEntry = RoutingEntry()
    ablations: Ablations = Ablations()
    state: StateSettings = StateSettings()
    cache: Text = "~/.cache/alipes"


_NAMES: Final = {
    "models": re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}"),
    "instances": re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"),
}


def load_cluster(path: Path | str, environ: Mapping[str, str] = os.environ) -> Cluster:
    """Read and validate a cluster file. Paths in it are relative to it and come back absolute;
    ``ALIPES_CACHE`` in ``environ`` overrides ``cache``. Raises ConfigError, one line."""
    path = Path(path)
    try:
        return _cluster(read_yaml(path), path.absolute().parent, environ)
    except FieldError as error:
        raise ConfigError(f"{path}: {error}") from None


def json_schema() -> dict[str, Any]:
    """JSON schema of the file as it is written."""
    schema = msgspec.json.schema(Cluster)
    definitions = schema["$defs"]
    definitions["ModelEntry"]["properties"]["source"] = _SOURCE_SCHEMA
    for struct in (LocalFolder, PackagedGguf, RandomWeights):
        del definitions[struct.__name__]
    for definition in definitions.values():
        for name, field in definition.get("properties", {}).items():
            if name.endswith("_bytes"):
                field["type"] = ["integer", "string"]
    return schema


def unserved(cluster: Cluster) -> tuple[str, ...]:
    """Models of the catalogue that no instance serves."""
    served = {model for entry in cluster.instances.values() for model in entry.models}
    return tuple(model for model in cluster.models if model not in served)


def _model_settings(cluster: Cluster, name: str, folder: Path) -> ModelSettings:
    entry = cluster.models[name]
    return ModelSettings(name, str(folder), entry.dtype, entry.kv_dtype)


def instance_settings(
    cluster: Cluster, name: str, folders: Mapping[str, Path], endpoint: str
) -> InstanceSettings:
    """What the process of instance ``name`` needs, given the folders of its prepared models.
    Raises ConfigError when there is no such instance."""
    entry = cluster.instances.get(name)
    if entry is None:
        hint = nearest(name, list(cluster.instances))
        raise ConfigError(f"instances: unknown instance {name!r}; {hint}")
    models = tuple(_model_settings(cluster, model, folders[model]) for model in entry.models)
    return InstanceSettings(
        name=name,
        pool=entry.pool,
        models=models,
        targets=cluster.targets,
        endpoint=endpoint,
        engine=entry.engine,
        device=entry.device,
        device_bytes=entry.device_bytes,
        host_bytes=entry.host_bytes,
        prefill_chunk=entry.prefill_chunk,
        max_running=entry.max_running,
        max_waiting=entry.max_waiting,
        threads=max(1, entry.threads),
        allow_forced_tokens=cluster.gateway.allow_forced_tokens,
        switch_share=entry.switch_share,
        ranks=entry.ranks,
        session_prefill=cluster.ablations.session_prefill,
        host_kv=cluster.ablations.host_kv,
        staging=cluster.ablations.staging,
        prefill_turns=cluster.ablations.prefill_turns,
        fake=entry.fake,
    )


def _cluster(raw: dict[str, Any], folder: Path, environ: Mapping[str, str]) -> Cluster:
    # The outer shape first, with the entries left as they are: an error inside one is to name it.
    top = convert(raw, _Outline, "")
    entries = _named(top.models, "models")
    models = {
        name: convert(_sourced(entry, folder, f"models.{name}"), ModelEntry, f"models.{name}")
        for name, entry in entries.items()
    }
    instances = {
        name: convert(with_sizes(entry, f"instances.{name}"), InstanceEntry, f"instances.{name}")
        for name, entry in _named(top.instances, "instances").items()
    }
    gateway = _placed(
        convert(with_sizes(top.gateway, "gateway"), GatewaySettings, "gateway"), folder
    )
    targets = convert(top.targets, Targets, "targets")
    cache = environ.get(CACHE_VARIABLE) or top.cache
    cluster = Cluster(
        models=models,
        instances=instances,
        gateway=gateway,
        targets=targets,
        routing=convert(top.routing, RoutingEntry, "routing"),
        ablations=convert(top.ablations, Ablations, "ablations"),
        state=_kept(convert(with_sizes(top.state, "state"), StateSettings, "state"), folder),
        cache=str(_absolute(cache, folder)),
        aliases=convert(top.aliases, dict[str, str], "aliases"),
    )
    _check_aliases(cluster)
    _check_instances(cluster)
    _check_targets(targets)
    _check_keys(gateway.api_keys)
    return cluster


class _Outline(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    models: dict[str, Any]
    instances: dict[str, Any]
    aliases: dict[str, Any] = {}
    gateway: dict[str, Any] = {}
    targets: dict[str, Any] = {}
    routing: dict[str, Any] = {}
    ablations: dict[str, Any] = {}
    state: dict[str, Any] = {}
    cache: Text = "~/.cache/alipes"


def _named(entries: dict[str, Any], section: str) -> dict[str, Any]:
    if not entries:
        raise FieldError(section, "is empty; name at least one")
    for name in entries:
        if not _NAMES[section].fullmatch(name):
            raise FieldError(
                f"{section}.{name}",
                "not a usable name; start with a letter or digit, go on with those, '.', '_', '-'",
            )
    return entries


def _absolute(path: str, folder: Path) -> Path:
    return Path(os.path.normpath(folder / Path(path).expanduser()))


def _placed(gateway: GatewaySettings, folder: Path) -> GatewaySettings:
    """With the recording's file where it is, if there is one."""
    if gateway.record is None:
        return gateway
    file = str(_absolute(gateway.record.file, folder))
    record = msgspec.structs.replace(gateway.record, file=file)
    return msgspec.structs.replace(gateway, record=record)


def _kept(state: StateSettings, folder: Path) -> StateSettings:
    """With the folder where it is, if one is named."""
    if not state.folder:
        return state
    return msgspec.structs.replace(state, folder=str(_absolute(state.folder, folder)))


def _sourced(entry: Any, folder: Path, field: str) -> Any:
    if not isinstance(entry, dict) or "source" not in entry:
        return entry
    return {**entry, "source": _source(entry["source"], folder, f"{field}.source")}


def _source(value: Any, folder: Path, field: str) -> ModelSource:
    """The three ways to write a source, as structs."""
    if isinstance(value, str) and value:
        return LocalFolder(str(_absolute(value, folder)))
    if isinstance(value, dict) and "package" in value:
        renamed = {"requirement" if k == "package" else k: v for k, v in value.items()}
        return convert(renamed, PackagedGguf, field)
    if isinstance(value, dict) and list(value) == ["random"]:
        return convert(value["random"], RandomWeights, f"{field}.random")
    raise FieldError(
        field, "write a folder, {package: NAME==VERSION, file: PATH} or {random: {family, size}}"
    )


def _check_instances(cluster: Cluster) -> None:
    for name, entry in cluster.instances.items():
        field = f"instances.{name}.models"
        for index, model in enumerate(entry.models):
            if model not in cluster.models:
                known = ", ".join(cluster.models)
                raise FieldError(f"{field}[{index}]", f"unknown model {model!r}; known: {known}")
            if model in entry.models[:index]:
                raise FieldError(f"{field}[{index}]", f"{model!r} is named twice; keep one")
        if entry.pool is Pool.HOT and len(entry.models) != 1:
            raise FieldError(
                field,
                f"a hot instance serves exactly one model, not {len(entry.models)}; "
                "keep one, or write `pool: cold`",
            )
        if not re.fullmatch(r"cpu|cuda(:\d+)?", entry.device):
            raise FieldError(
                f"instances.{name}.device", f"{entry.device!r} is not cpu, cuda or cuda:N"
            )
        if entry.ranks > 1 and (entry.engine, entry.device) != ("native", "cpu"):
            raise FieldError(
                f"instances.{name}.ranks",
                "models are divided by `engine: native` on `device: cpu` alone; leave ranks at 1",
            )
        if not entry.local and not cluster.gateway.endpoint:
            raise FieldError(
                "gateway.endpoint", f"set it, like tcp://HOST:PORT: instance {name!r} is not local"
            )


def _check_targets(targets: Targets) -> None:
    for name in ("ttft", "tpot"):
        if not 0 < getattr(targets, name) <= 86400:
            raise FieldError(f"targets.{name}", "must be above 0 and at most 86400 (seconds)")
    if not 0 < targets.gamma < 1:
        raise FieldError("targets.gamma", f"must be between 0 and 1, got {targets.gamma:g}")


def _check_aliases(cluster: Cluster) -> None:
    for alias, model in cluster.aliases.items():
        if alias in cluster.models:
            raise FieldError(f"aliases.{alias}", "is a model of the file; leave the alias out")
        if model not in cluster.models:
            raise FieldError(
                f"aliases.{alias}",
                f"unknown model {model!r}; {nearest(model, list(cluster.models))}",
            )


def _check_keys(keys: tuple[ApiKey, ...]) -> None:
    seen: set[str] = set()
    for index, entry in enumerate(keys):
        if entry.key in seen:
            raise FieldError(f"gateway.api_keys[{index}].key", "is given twice; keep one")
        seen.add(entry.key)
