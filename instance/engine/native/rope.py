"""Rotary embeddings as values; no torch here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rope:
    """Pair i of ``dim / 2`` turns by position / theta ** (2i / dim)."""

    dim: int
    theta: float
