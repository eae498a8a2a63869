"""Names that are not taken yet."""

from __future__ import annotations

from collections.abc import Collection


def unused(name: str, taken: Collection[str]) -> str:
    """``name``, or the first of ``name#2``, ``name#3``, ... that is not ``taken``."""
    number, free = 1, name
    while free in taken:
        number += 1
        free = f"{name}#{number}"
    return free
