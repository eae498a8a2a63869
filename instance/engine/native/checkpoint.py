"""Safetensors headers of a model folder: which tensors exist, where and in what shape."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from alipes.instance.engine.native.config import ModelError
from alipes.instance.engine.native.layout import Layout, Part

_EXPERT: Final = re.compile(r"(.*\.experts)\.(\d+)\.(gate|up|down)_proj\.weight")
_FLOATS: Final = frozenset({"F64", "F32", "F16", "BF16"})


@dataclass(frozen=True, slots=True)
class Stored:
    """One tensor as a file holds it."""

    file: Path
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Source:
    """Where a part comes from: a whole tensor, or ``rows`` of entry ``expert`` of a stack."""

    name: str
    file: Path
    expert: int | None = None
    rows: tuple[int, int] | None = None


def read_header(folder: Path) -> dict[str, Stored]:
    """Tensors of all ``*.safetensors`` files in ``folder``; raises ``ModelError``."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ModelError(f"{folder} has no *.safetensors file: prepare the model first")
    return {name: stored for file in files for name, stored in _read_file(file)}


def _read_file(file: Path) -> list[tuple[str, Stored]]:
    try:
        with file.open("rb") as stream:
            (size,) = struct.unpack("<Q", stream.read(8))
            entries = json.loads(stream.read(size))
    except (struct.error, ValueError) as error:
        raise ModelError(f"{file} has no safetensors header ({error}): prepare it again") from None
    found = []
    for name, entry in entries.items():
        if name == "__metadata__":
            continue
        if entry["dtype"] not in _FLOATS:
            raise ModelError(f"{file}: {name} is {entry['dtype']}; only float weights are served")
        found.append((name, Stored(file, tuple(entry["shape"]))))
    return found


def locate(part: Part, header: Mapping[str, Stored], folder: Path) -> Source:
    """The source of ``part``, checked against its shape; experts may be stored one by one or
    stacked as ``experts.gate_up_proj`` and ``experts.down_proj``. Raises ``ModelError``."""
    stored = header.get(part.name)
    if stored is not None:
        if stored.shape != part.stored_shape:
            raise ModelError(
                f"{stored.file}: {part.name} has shape {stored.shape}, config.json says "
                f"{part.stored_shape}: config and weights are of different models"
            )
        return Source(part.name, stored.file)
    source = _in_stack(part, header)
    if source is None:
        raise ModelError(f"{folder}: tensor {part.name} is missing: prepare the model again")
    return source


def _in_stack(part: Part, header: Mapping[str, Stored]) -> Source | None:
    match = _EXPERT.fullmatch(part.name)
    if match is None:
        return None
    prefix, expert, kind = match.groups()
    name = f"{prefix}.{'down' if kind == 'down' else 'gate_up'}_proj"
    stored = header.get(name)
    rows, width = part.stored_shape
    height = rows if kind == "down" else 2 * rows
    if stored is None or stored.shape[1:] != (height, width):
        return None
    if int(expert) >= stored.shape[0]:
        return None
    first = rows if kind == "up" else 0
    return Source(name, stored.file, int(expert), (first, first + rows))


def check_weights(folder: Path, layout: Layout) -> None:
    """Raises ``ModelError`` unless every part of ``layout`` exists with its shape."""
    header = read_header(folder)
    for tensor in layout.tensors:
        for part in tensor.parts:
            locate(part, header, folder)
