"""What an instance's work takes on some hardware: data with a source for every number."""

from __future__ import annotations

import msgspec


class Quantity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A number and where it comes from: a ``source``, or an assumption and the reason for it.
    ``low`` and ``high`` are what a sensitivity table varies it to; 0 leaves it alone."""

    value: float
    source: str = ""
    assumed: str = ""
    low: float = 0.0
    high: float = 0.0


class ModelCosts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One model on this hardware. Bytes are those of all devices of the instance together; seconds
    have the forms of ``contract.Estimate``. ``prefill_cold`` seconds are added once to a call
    whose prompt finds nothing cached."""

    weight_bytes: Quantity
    kv_token_bytes: Quantity
    prefill_base: Quantity
    prefill_token: Quantity
    prefill_context: Quantity
    decode_base: Quantity
    decode_call: Quantity
    decode_context: Quantity
    prefill_cold: Quantity = Quantity(0.0)
    context: int = 262_144


class Rates(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bytes a second, of all devices of an instance together: host to device, device to host,
    within the device, and between instances."""

    h2d: Quantity
    d2h: Quantity
    d2d: Quantity
    rdma: Quantity


class Fixed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds that come with every such piece of work, whatever its size."""

    switch: Quantity
    restore: Quantity
    relaunch: Quantity


class Hardware(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An instance's hardware and what the models take on it. Bytes are of the whole instance:
    ``runtime_bytes`` of the device are neither weights nor KV, ``reserved_kv_bytes`` are kept for
    KV when staged weights are placed. ``staging_share`` is the part of the host-to-device rate
    that staging gets while a model serves."""

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
