"""What an instance's work takes on some hardware: data with a source for every number.

Profiles are the files in ``data``; whoever has measured a machine gives a path instead.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from alipes.gateway.strict import FieldError, convert, nearest, read_yaml
from alipes.replay.sim.entries import check_entries

PROFILES: Final = Path(__file__).parent / "data"
UNITS: Final = {
    "staging_share": "",
    "gamma": "",
    "prefill_token": "s/token",
    "prefill_context": "s/token^2",
    "decode_call": "s/call",
    "decode_context": "s/token",
}
"""Of numbers that are no plain seconds, bytes or rates."""
_FILE: Final = (
    "`models` and `rates`",
    "copy a profile and put your numbers in; docs/scenarios.md tells the form",
)


class HardwareError(Exception):
    """A profile cannot be used; one line says which file and field, what is wrong, what to do."""


class Quantity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A number and where it comes from: a ``source``, or an assumption and the reason for it.
    ``low`` and ``high`` are what a sensitivity table varies it to; 0 leaves it alone."""

    value: float
    source: str = ""
    assumed: str = ""
    low: float = 0.0
    high: float = 0.0


NOTHING: Final = Quantity(0.0)
"""What a profile leaves out: it costs nothing."""


class ModelCosts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One model on this hardware. Bytes are those of all devices of the instance together; seconds
    have the forms of ``contract.Estimate``. ``prefill_cold`` seconds are added once to a call
    whose prompt finds nothing cached. On the host a token's KV takes ``kv_host_token_bytes``, where
    0 stands for ``kv_token_bytes``: ranks that all hold the same KV need one copy there. ``layers``
    are those whose KV is stored by blocks."""

    weight_bytes: Quantity
    kv_token_bytes: Quantity
    prefill_base: Quantity
    prefill_token: Quantity
    prefill_context: Quantity
    decode_base: Quantity
    decode_call: Quantity
    decode_context: Quantity
    prefill_cold: Quantity = NOTHING
    kv_host_token_bytes: Quantity = NOTHING
    context: int = 262_144
    layers: int = 1


class Rates(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bytes a second, of all devices of an instance together: host to device, device to host,
    within the device, and between instances. KV comes from the host at ``kv_h2d`` where its blocks
    are slower to copy than weights, else at ``h2d``."""

    h2d: Quantity
    d2h: Quantity
    d2d: Quantity
    rdma: Quantity
    kv_h2d: Quantity = NOTHING


class Fixed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds that come with every such piece of work, whatever its size. ``role`` is a change
    between prefill and decode in place, without what it waits for running calls; ``checkpoint`` is
    one copy of blocks to the host."""

    switch: Quantity
    restore: Quantity
    relaunch: Quantity
    fetch: Quantity = NOTHING
    role: Quantity = NOTHING
    checkpoint: Quantity = NOTHING


class ServiceTargets(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the published runs were to meet, see ``contract.Targets``: seconds, and a margin."""

    ttft: Quantity
    tpot: Quantity
    gamma: Quantity


class Hardware(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An instance's hardware and what the models take on it. Bytes are of the whole instance:
    ``runtime_bytes`` of the device are neither weights nor KV; ``host_bytes`` are for KV, beside
    the host copy of every model's weights. ``staging_share`` is the part of the host-to-device
    rate that staging gets while a model serves, in pieces of ``staging_chunk`` bytes. Where devices
    can ``exchange`` memory, weights that leave stay as long as there is room. A call takes
    ``gateway_seconds`` beside its iterations: HTTP, text, routing and messages."""

    name: str
    about: str
    device_bytes: Quantity
    host_bytes: Quantity
    runtime_bytes: Quantity
    staging_share: Quantity
    rates: Rates
    fixed: Fixed
    models: dict[str, ModelCosts]
    prefill_chunk: int
    max_running: int
    block_tokens: int = 64
    staging_chunk: int = 64 << 20
    exchange: bool = False
    targets: ServiceTargets | None = None
    gateway_seconds: Quantity = NOTHING


def profiles() -> tuple[str, ...]:
    """Names that ``load_hardware`` knows."""
    return tuple(sorted(path.stem for path in PROFILES.glob("*.yaml")))


def load_hardware(name_or_path: str | Path) -> Hardware:
    """The profile of this name, or of this YAML file. Raises ``HardwareError``."""
    path = Path(name_or_path)
    if path.suffix not in (".yaml", ".yml", ".json"):
        path = PROFILES / f"{name_or_path}.yaml"
        if str(name_or_path) not in profiles():
            hint = nearest(str(name_or_path), list(profiles()))
            raise HardwareError(f"no hardware profile {name_or_path}; {hint}, or give a .yaml file")
    try:
        raw = read_yaml(path, *_FILE)
        _check_bare(raw)
        check_entries(raw.get("models"), ModelCosts, "models")
        hardware = convert(raw, Hardware, "")
        _check(hardware)
    except FieldError as error:
        raise HardwareError(f"{path}: {error}") from None
    return hardware


def save_hardware(path: Path, hardware: Hardware) -> None:
    """Write a profile as ``load_hardware`` reads it, without what is left at its default."""
    path.write_bytes(msgspec.yaml.encode(_told(hardware)))


def _told(part: object) -> object:
    if isinstance(part, dict):
        return {name: _told(value) for name, value in part.items()}
    if not isinstance(part, msgspec.Struct):
        return part
    defaults = {f.name: f.default for f in msgspec.structs.fields(part)}
    values = {name: getattr(part, name) for name in defaults}
    return {name: _told(value) for name, value in values.items() if value != defaults[name]}


def quantities(part: object, path: str = "") -> Iterator[tuple[str, Quantity]]:
    """Every number of a profile with its dotted name, in the order of the fields."""
    if isinstance(part, Quantity):
        yield path, part
        return
    inner: Iterable[tuple[str, object]] = ()
    if isinstance(part, msgspec.Struct):
        inner = ((name, getattr(part, name)) for name in part.__struct_fields__)
    elif isinstance(part, dict):
        inner = part.items()
    for name, value in inner:
        yield from quantities(value, f"{path}.{name}" if path else name)


def unit(path: str) -> str:
    """Of the number with this dotted name; empty for one that has none."""
    _, _, name = path.rpartition(".")
    if path.startswith("rates."):
        return "bytes/s"
    if name.endswith("_bytes"):
        return "bytes/token" if "token" in name else "bytes"
    return UNITS.get(name, "s")


def _check_bare(raw: dict[str, Any], field: str = "") -> None:
    """A number that does not say where it comes from is the likeliest fault."""
    parts = (Hardware, Rates, Fixed, ServiceTargets, ModelCosts)
    names = {f.name for part in parts for f in msgspec.structs.fields(part) if f.type is Quantity}
    for name, value in raw.items():
        if isinstance(value, dict):
            _check_bare(value, f"{field}{name}.")
        elif name in names and isinstance(value, int | float):
            problem = f"is a bare number; write {{value: {value:g}, source: WHERE IT IS FROM}}"
            raise FieldError(f"{field}{name}", f"{problem}, or `assumed` and why")


def _check(hardware: Hardware) -> None:
    for path, quantity in quantities(hardware):
        _check_quantity(path, quantity)
    for name in ("prefill_chunk", "max_running", "block_tokens", "staging_chunk"):
        if getattr(hardware, name) < 1:
            raise FieldError(name, "must be at least 1")
    for name, rate in quantities(hardware.rates, "rates"):
        if rate.value <= 0 and (rate != NOTHING or name != "rates.kv_h2d"):
            raise FieldError(name, "must be above 0")
    if hardware.staging_share.value > 1:
        raise FieldError("staging_share", "is a part of the rate; write at most 1")
    if not hardware.models:
        raise FieldError("models", "is empty; add a model")
    for name, model in hardware.models.items():
        _check_model(f"models.{name}", model, hardware)


def _check_quantity(path: str, quantity: Quantity) -> None:
    numbers = (quantity.value, quantity.low, quantity.high)
    if not all(math.isfinite(number) and number >= 0 for number in numbers):
        raise FieldError(path, "must be finite and not negative")
    if quantity == NOTHING:
        return
    if not (quantity.source.strip() or quantity.assumed.strip()):
        raise FieldError(path, "has no source; name one, or say in `assumed` why this number")
    if quantity.low > quantity.value or 0 < quantity.high < quantity.value:
        raise FieldError(path, "value must lie between low and high")


def _check_model(path: str, model: ModelCosts, hardware: Hardware) -> None:
    for name in ("weight_bytes", "kv_token_bytes", "decode_base"):
        if getattr(model, name).value <= 0:
            raise FieldError(f"{path}.{name}", "must be above 0")
    for name in ("context", "layers"):
        if getattr(model, name) < 1:
            raise FieldError(f"{path}.{name}", "must be at least 1")
    if model.kv_host_token_bytes.value > model.kv_token_bytes.value:
        raise FieldError(f"{path}.kv_host_token_bytes", "must not exceed kv_token_bytes")
    needed = model.weight_bytes.value + hardware.runtime_bytes.value
    room = hardware.device_bytes.value - needed
    if room < model.kv_token_bytes.value * hardware.prefill_chunk:
        raise FieldError(
            f"{path}.weight_bytes",
            f"leaves {max(room, 0):,.0f} of {hardware.device_bytes.value:,.0f} device bytes for KV,"
            " less than one prefill chunk; lower it or raise device_bytes",
        )
