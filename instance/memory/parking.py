"""Parking of what torch owns: the pools of graphs, work spaces that libraries want to allocate
themselves. The arena is not among it; its bytes are divided once.

Memory is allocated under a tag. While a tag is paused, its physical memory is given back for
others to use; it has the same addresses when it is resumed, so that captured graphs stay good. What
was in it is lost unless a backup was asked for: no graph may count on what an earlier replay left.

``MemorySaver`` is ``torch-memory-saver``, whose library has to be loaded before torch, in place of
``cudaMalloc`` (``preload.py``): its other way, an allocator that torch is given, cannot park the
pools of graphs. ``NoParking`` is for the CPU, and where that is not installed.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, Protocol

import torch

from alipes.instance.engine.protocol import EngineError
from alipes.instance.memory.preload import LIBRARY

_MODE: Final = "thread_local"
"""What spoils a capture; by default that is also what other threads ask for, as the writer of
staged weights does."""


class Parking(Protocol):
    """Driven by one thread. Pausing what is paused, or resuming what is not, does nothing; so
    does a tag that nothing was allocated under."""

    kind: str
    """``none``, or ``memory-saver``."""

    def region(self, tag: str, backup: bool = False) -> AbstractContextManager[None]:
        """What torch allocates in here, on this thread, belongs to ``tag``. With ``backup`` its
        content is kept, in pinned host memory. Raises ``EngineError`` while the tag is paused."""
        ...

    def capture(
        self, graph: Any, tag: str, pool: Any = None, stream: Any = None
    ) -> AbstractContextManager[None]:
        """``torch.cuda.graph`` of ``graph`` with this pool and stream, whose memory belongs to
        ``tag``. Graphs of one tag may share a pool, those of different tags may not. Raises
        ``EngineError`` while the tag is paused."""
        ...

    def pause(self, tag: str) -> None:
        """Give the memory of ``tag`` back; waits for what was asked of the device."""
        ...

    def resume(self, tag: str) -> None:
        """Have memory at the same addresses again. The process ends where the device has none
        left: what is paused at any time must have room when it is resumed."""
        ...


class NoParking:
    """All stays where it is."""

    kind = "none"

    def region(self, tag: str, backup: bool = False) -> AbstractContextManager[None]:
        return nullcontext()

    def capture(
        self, graph: Any, tag: str, pool: Any = None, stream: Any = None
    ) -> AbstractContextManager[None]:
        captured: AbstractContextManager[None] = torch.cuda.graph(
            graph, pool=pool, stream=stream, capture_error_mode=_MODE
        )
        return captured

    def pause(self, tag: str) -> None:
        pass

    def resume(self, tag: str) -> None:
        pass


class MemorySaver:
    """Over ``torch_memory_saver.torch_memory_saver``. That ends the process when memory is to be
    paused or resumed a second time, hence the books here; nor does it wait for the device."""

    kind = "memory-saver"

    def __init__(self, saver: Any, device: torch.device) -> None:
        self._saver = saver
        self._device = device
        self._tags: set[str] = set()
        self._paused: set[str] = set()

    def region(self, tag: str, backup: bool = False) -> AbstractContextManager[None]:
        self._allocates(tag)
        within: AbstractContextManager[None] = self._saver.region(tag, enable_cpu_backup=backup)
        return within

    def capture(
        self, graph: Any, tag: str, pool: Any = None, stream: Any = None
    ) -> AbstractContextManager[None]:
        self._allocates(tag)
        captured: AbstractContextManager[None] = self._saver.cuda_graph(
            graph, pool=pool, stream=stream, capture_error_mode=_MODE, tag=tag
        )
        return captured

    def pause(self, tag: str) -> None:
        if tag in self._tags - self._paused:
            torch.accelerator.synchronize(self._device)
            self._saver.pause(tag)
            self._paused.add(tag)

    def resume(self, tag: str) -> None:
        if tag in self._paused:
            self._saver.resume(tag)
            self._paused.remove(tag)

    def _allocates(self, tag: str) -> None:
        """Memory that a paused tag got now could not be told from what is to be resumed."""
        if not tag:
            raise EngineError("memory is parked under a tag: this one is empty, which means all")
        if tag in self._paused:
            raise EngineError(f"{tag} is paused: resume it before anything is allocated in it")
        self._tags.add(tag)


def parking_for(device: torch.device, environment: Mapping[str, str] = os.environ) -> Parking:
    """What there is for this device in this process."""
    if device.type != "cuda" or LIBRARY not in environment.get("LD_PRELOAD", ""):
        return NoParking()
    module = importlib.import_module("torch_memory_saver")
    return MemorySaver(module.torch_memory_saver, device)
