"""Values that a model writes bare, as the schema of their argument has them: a string without
quotes, anything else as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import chain
from typing import Any, Final, NamedTuple

from alipes.gateway.text.reply.source import quoted

Schema = Mapping[str, Any]
ANY: Final[frozenset[str]] = frozenset()
_DEEPEST: Final = 8
_CONSTANTS: Final = {"true": "boolean", "false": "boolean", "null": "null", "none": "null"}


class Named(NamedTuple):
    """The members that an object's schema names, None where it leaves them open, and those among
    them that it needs."""

    schemas: dict[str, Any] | None
    needed: frozenset[str]


def members_in(root: Schema) -> Named:
    """Also where a schema is told by reference or in parts; of alternatives what each of them
    needs."""
    return _members(root, root, 0)


def _members(schema: Any, root: Schema, deep: int) -> Named:
    if not isinstance(schema, dict) or deep > _DEEPEST:
        return Named(None, frozenset())
    named, needed = schema.get("properties"), schema.get("required")
    parts = [
        Named(
            dict(named) if isinstance(named, dict) else None,
            frozenset(n for n in needed if isinstance(n, str))
            if isinstance(needed, list)
            else frozenset(),
        )
    ]
    if isinstance(schema.get("$ref"), str):
        parts.append(_members(_referred(schema["$ref"], root), root, deep + 1))
    if isinstance(schema.get("allOf"), list):
        parts += [_members(one, root, deep + 1) for one in schema["allOf"]]
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list) and schema[key]:
            each = [_members(one, root, deep + 1) for one in schema[key]]
            common = frozenset.intersection(*(one.needed for one in each))
            parts += [Named(one.schemas, common) for one in each]
    known = [one.schemas for one in parts if one.schemas is not None]
    schemas = {name: one for part in reversed(known) for name, one in part.items()}
    required = frozenset().union(*(one.needed for one in parts)) & schemas.keys()
    return Named(schemas if known else None, required)


def kinds(schema: Any, root: Schema, deep: int = 0) -> frozenset[str]:
    """The types that a value may have, by JSON schema's names; ``ANY`` where nothing says."""
    if not isinstance(schema, dict) or deep > _DEEPEST:
        return ANY
    if (named := schema.get("type")) is not None:
        several = named if isinstance(named, list) else [named]
        return frozenset(kind for kind in several if isinstance(kind, str))
    if isinstance(schema.get("$ref"), str):
        return kinds(_referred(schema["$ref"], root), root, deep + 1)
    if "const" in schema or isinstance(schema.get("enum"), list):
        return frozenset(map(_kind, schema.get("enum") or [schema.get("const")]))
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list):
            each = [kinds(one, root, deep + 1) for one in schema[key]]
            return frozenset().union(*each) if all(each) else ANY
    if isinstance(schema.get("allOf"), list):
        each = [kinds(one, root, deep + 1) for one in schema["allOf"]]
        return next((one for one in each if one), ANY)
    return ANY


def choices(schema: Any, root: Schema, deep: int = 0) -> tuple[str, ...] | None:
    """The texts that a value may be written as, where they are few; None where they are not."""
    if not isinstance(schema, dict) or deep > _DEEPEST:
        return None
    if isinstance(schema.get("$ref"), str):
        return choices(_referred(schema["$ref"], root), root, deep + 1)
    if "const" in schema or isinstance(schema.get("enum"), list):
        return tuple(map(_bare, schema.get("enum") or [schema.get("const")]))
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list):
            each = [choices(one, root, deep + 1) for one in schema[key]]
            known = [one for one in each if one is not None]
            return tuple(chain(*known)) if len(known) == len(each) else None
    return {"null": ("null",), "boolean": ("true", "false")}.get(str(schema.get("type")))


def value_of(text: str, allowed: frozenset[str]) -> str:
    """JSON text of a value that need not be a string: itself where it is JSON, Python's constants
    where their type is allowed, else a string."""
    bare = text.strip()
    if _is_json(bare):
        return bare
    if _CONSTANTS.get(bare.lower()) in allowed:
        return "null" if bare.lower() == "none" else bare.lower()
    return f'"{quoted(text)}"'


def _is_json(text: str) -> bool:
    try:
        json.dumps(json.loads(text), allow_nan=False)
    except (ValueError, RecursionError):
        return False
    return True


def _bare(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"


def _referred(reference: str, root: Schema) -> Any:
    """What a reference within ``root`` leads to."""
    found: Any = root
    for step in reference.removeprefix("#").split("/")[1:]:
        found = found.get(step) if isinstance(found, dict) else None
    return found
