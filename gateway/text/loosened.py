"""Schemas of tools that are not strict, without what cannot be made a grammar.

Clients send schemas as libraries write them: patterns that look ahead, bounds that no integer has,
types of other languages, references that lead out of the schema. A tool with one of these is still
to be called.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

Schema = Mapping[str, Any]
OPEN: Final[Schema] = {"type": "object"}
_TYPES: Final = frozenset(("object", "array", "string", "number", "integer", "boolean", "null"))
_KEPT: Final = frozenset(("type", "required", "enum", "const", "additionalProperties"))
_SCHEMAS: Final = frozenset(("items", "additionalProperties"))
_BY_NAME: Final = frozenset(("properties", "$defs", "definitions"))
_LISTS: Final = frozenset(("anyOf", "oneOf", "allOf"))


def loosened(schema: Schema) -> dict[str, Any]:
    """The same types, members and choices, without patterns, formats, bounds, and references that
    lead nowhere."""
    return _loose(schema, schema)


def _loose(schema: Schema, root: Schema) -> dict[str, Any]:
    made = dict(filter(None, (_keyword(key, value, root) for key, value in schema.items())))
    names = made.get("required")
    if names is not None and not (
        isinstance(names, list) and all(isinstance(n, str) for n in names)
    ):
        del made["required"]
    return made


def _keyword(key: str, value: Any, root: Schema) -> tuple[str, Any] | None:
    """What stays of a keyword; None where that is nothing."""
    if key == "type":
        kinds = [kind for kind in (value if isinstance(value, list) else [value]) if _known(kind)]
        return (key, kinds if len(kinds) > 1 else kinds[0]) if kinds else None
    if key == "$ref":
        return (key, value) if leads_somewhere(value, root) else None
    if key in _BY_NAME and isinstance(value, Mapping):
        inner = {name: _loose(one, root) for name, one in value.items() if isinstance(one, Mapping)}
        # Any value is one of a schema that is none.
        return key, {name: inner.get(name, {}) for name in value}
    if key in _LISTS and isinstance(value, list) and value:
        return key, [_loose(one, root) if isinstance(one, Mapping) else {} for one in value]
    if key in _SCHEMAS and isinstance(value, Mapping):
        return key, _loose(value, root)
    return (key, value) if key in _KEPT and value is not None else None


def _known(kind: Any) -> bool:
    return isinstance(kind, str) and kind in _TYPES


def leads_somewhere(reference: Any, root: Schema) -> bool:
    """Whether a reference leads to a schema within ``root``."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return False
    found: Any = root
    for step in reference.removeprefix("#").split("/")[1:]:
        found = found.get(step) if isinstance(found, Mapping) else None
    return isinstance(found, Mapping)
