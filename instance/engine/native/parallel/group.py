"""The ranks of one instance as a group that adds up tensors, over gloo and loopback."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed

from alipes.instance.engine.native.parallel.share import Share

_GLOO: Final[Any] = torch.distributed
_LOOPBACK: Final = "127.0.0.1"


class Group:
    """Made by all ranks at once: raises ``RuntimeError`` when they do not meet within ``seconds``,
    and so does ``sum`` when one is late for it or gone. ``meeting`` is a file that is not there
    yet, in a folder that all can write."""

    def __init__(self, meeting: Path, share: Share, seconds: float) -> None:
        self.share: Final = share
        options = _GLOO.ProcessGroupGloo._Options()
        options._devices = [_GLOO.ProcessGroupGloo.create_device(hostname=_LOOPBACK)]
        options._timeout = timedelta(seconds=seconds)
        store = _GLOO.FileStore(str(meeting), share.ranks)
        store.set_timeout(options._timeout)
        self._gloo = _GLOO.ProcessGroupGloo(store, share.rank, share.ranks, options)

    def sum(self, x: torch.Tensor) -> None:
        """Replace ``x`` by the sum over all ranks, whose bits are the same in each."""
        self._gloo.allreduce([x]).wait()
