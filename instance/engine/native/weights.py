"""From checkpoint tensors to the packed host copy that ``activate`` copies to the device."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from alipes.instance.engine.native.checkpoint import Source, locate, read_header
from alipes.instance.engine.native.layout import Halves, Layout, Packed, Part
from alipes.instance.memory.device import host_buffer


def view(memory: torch.Tensor, packed: Packed) -> torch.Tensor:
    """The tensor that ``packed`` describes inside ``memory`` (bytes,) uint8."""
    raw = memory[packed.offset : packed.offset + packed.nbytes]
    dtype: torch.dtype = getattr(torch, packed.dtype)
    return raw.view(dtype).view(packed.shape)


def load_packed(folder: Path, layout: Layout) -> torch.Tensor:
    """(layout.nbytes,) uint8 in process memory; raises ``ModelError`` for a broken folder."""
    host = host_buffer(layout.nbytes)
    header = read_header(folder)
    with ExitStack() as stack:
        files: dict[Path, Any] = {}
        for packed in layout.tensors:
            target, at = view(host, packed).flatten(), 0
            for part in packed.parts:
                source = locate(part, header, folder)
                if source.file not in files:
                    files[source.file] = stack.enter_context(safe_open(source.file, "pt"))
                tensor = _prepare(_read(files[source.file], source), part)
                target[at : at + tensor.numel()].copy_(tensor.flatten())
                at += tensor.numel()
    return host


def _read(file: Any, source: Source) -> torch.Tensor:
    if source.expert is None or source.rows is None:
        whole: torch.Tensor = file.get_tensor(source.name)
        return whole
    first, end = source.rows
    part: torch.Tensor = file.get_slice(source.name)[source.expert, first:end]
    return part


def _prepare(tensor: torch.Tensor, part: Part) -> torch.Tensor:
    if part.cut is not None:
        tensor = tensor.chunk(part.cut.of, part.cut.axis)[part.cut.index]
    if part.taken is not None:
        groups = tensor.view(-1, part.taken.size, *tensor.shape[1:])
        tensor = groups[:, part.taken.first :][:, : part.taken.count].flatten(0, 1)
    if part.rotary is not None:
        tensor = _interleave(tensor, part.rotary)
    return tensor.float() + part.plus if part.plus else tensor


def _interleave(tensor: torch.Tensor, halves: Halves) -> torch.Tensor:
    """Neighbours are what kernels rotate."""
    heads = tensor.reshape(-1, halves.head, *tensor.shape[1:]).clone()
    rotary = heads[:, halves.first : halves.first + halves.dim]
    pairs = rotary.reshape(len(heads), 2, -1, *tensor.shape[1:]).transpose(1, 2)
    rotary.copy_(pairs.reshape(rotary.shape))
    return heads.view(tensor.shape)
