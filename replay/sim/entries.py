"""Faults in mappings of named entries, told with the entry's name."""

from __future__ import annotations

from typing import Any

from alipes.gateway.strict import FieldError, convert


def check_entries(entries: object, kind: Any, field: str) -> None:
    """Raises ``FieldError`` for the first entry that is no ``kind``. What is no mapping is left to
    whoever converts the whole, which tells entries of a list apart but not those of a mapping."""
    for name, entry in entries.items() if isinstance(entries, dict) else ():
        if entry is None:
            raise FieldError(f"{field}.{name}", "says nothing; give it a value, or leave it out")
        convert(entry, kind, f"{field}.{name}")
