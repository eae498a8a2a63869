"""The cluster file as frozen structs."""

from __future__ import annotations

import msgspec

from alipes.instance.contract import ModelSource, Pool, Targets


class ApiKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A key that a client sends, the tenant it speaks for, and how many calls it may have open."""

    key: str
    tenant: str
    max_concurrent: int = 64


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bounds of the gateway: sizes in bytes, times in seconds."""

    body_bytes: int = 32 << 20
    queue_depth: int = 256
    queue_timeout: float = 120.0
    keep_alive: float = 5.0
    default_max_tokens: int = 1024


class GatewaySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    host: str = "127.0.0.1"
    port: int = 8000
    endpoint: str = ""
    limits: Limits = Limits()
    api_keys: tuple[ApiKey, ...] = ()
    allow_forced_tokens: bool = False


class ModelEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A catalogue entry. ``dtype`` is how the arena holds weights: float16 or float32.
    ``decode_step`` (seconds) overrides the estimate that ``check`` makes."""

    source: ModelSource
    dtype: str = "float16"
    decode_step: float | None = None


class InstanceEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One engine process. ``threads`` 0 means its share of the cores; ``local`` false means that
    it is started elsewhere with ``alipes instance`` and connects here."""

    pool: Pool
    models: tuple[str, ...]
    engine: str = "native"
    device: str = "cpu"
    device_bytes: int = 2 << 30
    host_bytes: int = 1 << 30
    prefill_chunk: int = 512
    max_running: int = 16
    max_waiting: int = 256
    threads: int = 0
    local: bool = True


class Cluster(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    models: dict[str, ModelEntry]
    instances: dict[str, InstanceEntry]
    gateway: GatewaySettings = GatewaySettings()
    targets: Targets = Targets()
    cache: str = "~/.cache/alipes"
