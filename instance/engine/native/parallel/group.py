"""The ranks of one instance as a group that adds up tensors, over gloo and loopback."""

from __future__ import annotations

import mmap
import os
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed

from alipes.instance.engine.native.parallel.share import Share
from alipes.instance.engine.protocol import EngineError

_GLOO: Final[Any] = torch.distributed
_LOOPBACK: Final = "127.0.0.1"


class Group:
    """Made by all ranks at once: raises ``RuntimeError`` when they do not meet within ``seconds``,
    and so does ``sum`` when one is late for it or gone. ``meeting`` is a file that is not there
    yet, in a folder that all can write; ``memory`` is an empty file that all have open."""

    def __init__(self, meeting: Path, share: Share, seconds: float, memory: int) -> None:
        self.share: Final = share
        self._memory: Final = memory
        options = _GLOO.ProcessGroupGloo._Options()
        options._devices = [_GLOO.ProcessGroupGloo.create_device(hostname=_LOOPBACK)]
        options._timeout = timedelta(seconds=seconds)
        store = _GLOO.FileStore(str(meeting), share.ranks)
        store.set_timeout(options._timeout)
        self._gloo = _GLOO.ProcessGroupGloo(store, share.rank, share.ranks, options)

    def sum(self, x: torch.Tensor) -> None:
        """Replace ``x`` by the sum over all ranks, whose bits are the same in each."""
        self._gloo.allreduce([x]).wait()

    def shared(self, nbytes: int) -> torch.Tensor:
        """Memory (ranks * nbytes,) uint8 that all ranks see: ``nbytes`` of each, zeroed, in the
        order of ranks. To be called once, with the same size. Raises ``EngineError``."""
        total = self.share.ranks * nbytes
        if not total:
            return torch.empty(0, dtype=torch.uint8)
        try:
            os.ftruncate(self._memory, total)
            region = mmap.mmap(self._memory, total)
        except (OSError, OverflowError) as error:
            raise EngineError(
                f"no {total:,} bytes of memory: lower host_bytes ({error})"
            ) from error
        return torch.frombuffer(region, dtype=torch.uint8)
