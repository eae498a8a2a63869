"""From checkpoint tensors to the packed host copy that ``activate`` copies to the device."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from alipes.instance.engine.native.checkpoint import Source, locate, read_header
from alipes.instance.engine.native.layout import Layout, Packed, Part
from alipes.instance.memory.arena import host_buffer


def view(memory: torch.Tensor, packed: Packed) -> torch.Tensor:
    """The tensor that ``packed`` describes inside ``memory`` (bytes,) uint8."""
    raw = memory[packed.offset : packed.offset + packed.nbytes]
    dtype: torch.dtype = getattr(torch, packed.dtype)
    return raw.view(dtype).view(packed.shape)


def load_packed(folder: Path, layout: Layout, head_dim: int) -> torch.Tensor:
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
                tensor = _prepare(_read(files[source.file], source), part, head_dim)
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


def _prepare(tensor: torch.Tensor, part: Part, head_dim: int) -> torch.Tensor:
    """Rotary rows pair i with i + D/2 in checkpoints; neighbours are what kernels rotate."""
    if not part.rotary:
        return tensor
    halves = tensor.reshape(-1, 2, head_dim // 2, *tensor.shape[1:])
    return halves.transpose(1, 2).reshape(tensor.shape)
