"""Sizes of random models."""

from __future__ import annotations

from typing import Final

import msgspec


class Size(msgspec.Struct, frozen=True):
    """Layers with a recurrent state have ``kv_heads`` keys of ``key_size`` and ``heads`` values
    of ``value_size``."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    experts: int
    experts_per_token: int
    expert_intermediate: int
    context: int
    key_size: int
    value_size: int


SIZES: Final = {
    "tiny": Size(64, 2, 4, 2, 16, 128, 4, 2, 64, 8192, 32, 32),
    "small": Size(256, 4, 8, 2, 64, 768, 8, 2, 256, 32768, 128, 64),
}
