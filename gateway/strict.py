"""YAML into frozen structs, with errors a person can act on: file, field, what is wrong."""

from __future__ import annotations

import difflib
import re
import types
import typing
from collections.abc import Hashable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

T = TypeVar("T")

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")
_AT = re.compile(r"(?P<what>.*) - at `(?P<path>.*)`", re.DOTALL)


class ConfigError(Exception):
    """One line: where, what is wrong, and the remedy."""


class FieldError(Exception):
    """A fault of one field, before the file's name is known."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.field = field


class _Loader(yaml.SafeLoader):
    """The safe loader, which by itself would let the last of two equal keys win."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            line = key_node.start_mark.line + 1
            if not isinstance(key, str):
                raise FieldError("", f"line {line}: the name {key!r} is not text; quote it")
            if key in seen:
                raise FieldError(key, f"written twice (again in line {line}); keep one")
            seen.add(key)
        return super().construct_mapping(node, deep)


# 5e-3 is a number to people, to JSON and to YAML 1.2; YAML 1.1 wants a dot in it.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)


def read_yaml(
    path: Path,
    keys: str = "`models` and `instances`",
    remedy: str = "`alipes init` writes one",
) -> dict[str, Any]:
    """The file's mapping, which has ``keys``. Raises FieldError, also for a file that cannot be
    read; ``remedy`` is for one that is not there."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise FieldError("", f"no such file; {remedy}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise FieldError("", f"cannot be read: {error}") from None
    try:
        value = yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise FieldError("", f"{line}not valid YAML: {error.problem}") from None
    except yaml.YAMLError as error:
        raise FieldError("", f"not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(value, dict):
        raise FieldError("", f"must be a mapping with {keys}")
    return value


def parse_size(value: object, field: str) -> object:
    """Bytes of ``2GiB``, ``512 MiB``, ``10GB``; anything but a string is returned as it is."""
    if not isinstance(value, str):
        return value
    match = _SIZE.fullmatch(value.strip())
    if match is None or match[2] not in _UNITS:
        raise FieldError(field, f"{value!r} is not a size; write bytes, or like 512MiB or 2GiB")
    return int(float(match[1]) * _UNITS[match[2]])


def with_sizes(value: Any, field: str) -> Any:
    """``value`` with the sizes in it as bytes: texts in fields whose names end in ``_bytes``."""
    if not isinstance(value, dict):
        return value
    return {
        key: parse_size(inner, f"{field}.{key}".lstrip("."))
        if str(key).endswith("_bytes")
        else with_sizes(inner, f"{field}.{key}".lstrip("."))
        for key, inner in value.items()
    }


def convert(value: object, kind: type[T], field: str) -> T:
    """``value`` as ``kind``; FieldError names the field under ``field`` and, for a field that
    does not exist, the nearest that does."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        match = _AT.fullmatch(str(error))
        what, path = (match["what"], match["path"][1:]) if match else (str(error), "")
        raise _explained(value, kind, field, path, what) from None


def _explained(value: object, kind: Any, field: str, path: str, what: str) -> FieldError:
    for part in re.findall(r"\.?([^.\[\]]+)", path):
        kind, value = _inner(kind, part), _element(value, part)
    where = (field + path).lstrip(".")
    unknown = re.search(r"unknown field `(.*)`", what)
    if unknown is not None:
        names = _fields(kind)
        hint = nearest(unknown[1], list(names))
        return FieldError(f"{where}.{unknown[1]}".lstrip("."), f"unknown field; {hint}")
    missing = re.search(r"missing required field `(.*)`", what)
    if missing is not None:
        return FieldError(f"{where}.{missing[1]}".lstrip("."), "missing; add it")
    choices = _choices(kind)
    if choices:
        return FieldError(where, f"{value!r} is not one of {', '.join(choices)}")
    wanted = what.replace("`", "").split(", got")[0]
    shown = type(value).__name__ if isinstance(value, dict | list) else repr(value)
    return FieldError(where, f"{wanted[:1].lower()}{wanted[1:]}, got {shown}")


def nearest(name: str, known: list[str]) -> str:
    """A hint: the known name that is nearest, or all of them."""
    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(sorted(known))}"


def _plain(kind: Any) -> Any:
    """Without ``Annotated`` and ``None``."""
    if typing.get_origin(kind) is typing.Annotated:
        return _plain(typing.get_args(kind)[0])
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        rest = [arg for arg in typing.get_args(kind) if arg is not type(None)]
        return _plain(rest[0]) if len(rest) == 1 else kind
    return kind


def _fields(kind: Any) -> Mapping[str, Any]:
    kind = _plain(kind)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return {f.encode_name: f.type for f in msgspec.structs.fields(kind)}
    return {}


def _inner(kind: Any, part: str) -> Any:
    args = typing.get_args(_plain(kind))
    return args[0] if part.isdigit() and args else _fields(kind).get(part)


def _element(value: Any, part: str) -> Any:
    if isinstance(value, list):
        return value[int(part)] if part.isdigit() and int(part) < len(value) else None
    return value.get(part) if isinstance(value, dict) else None


def _choices(kind: Any) -> list[str]:
    kind = _plain(kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return [str(member.value) for member in kind]
    return (
        [str(a) for a in typing.get_args(kind)] if typing.get_origin(kind) is typing.Literal else []
    )
