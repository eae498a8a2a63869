"""Writes pieces of weights from the host to the device while the engine goes on."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Final, Protocol

import numpy as np
import torch

Copy = tuple[torch.Tensor, torch.Tensor]
"""(target, source), both (n,) uint8."""
_LEAST_PRIORITY: Final = 19


class Source(Protocol):
    """Where a writer gets its work; called on its thread alone."""

    def begin(self) -> Copy | None:
        """The next piece to write, or None while there is none."""
        ...

    def end(self) -> None:
        """The piece begun last is written."""
        ...

    def broke(self, error: Exception) -> None:
        """The thread ends with this: nothing will be written any more, and what was begun may be
        written in part."""
        ...


class Writer:
    """One thread that writes piece after piece and rests in between, so that it is busy for at
    most ``share`` of the time: of a link or a memory that it shares it takes no larger part. Where
    copies take the processor from the steps themselves it has what those leave idle."""

    def __init__(self, source: Source, device: torch.device, share: float) -> None:
        self._source = source
        self._rest: Final = 1 / share - 1
        self._copy = _copier(device)
        self._yields: Final = device.type == "cpu" and sys.platform.startswith("linux")
        self._wanted = threading.Event()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stage-weights", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """There may be something to write."""
        self._wanted.set()

    def close(self) -> None:
        self._closed.set()
        self._wanted.set()
        self._thread.join()

    def _run(self) -> None:
        if self._yields:
            # Of this thread alone, on Linux. Steps that wait for a row wait for a piece at most.
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LEAST_PRIORITY)
        try:
            while not self._closed.is_set():
                self._wanted.wait()
                self._wanted.clear()
                self._write()
        except Exception as error:
            self._source.broke(error)

    def _write(self) -> None:
        while not self._closed.is_set() and (piece := self._source.begin()):
            begin = time.perf_counter()
            self._copy(*piece)
            self._source.end()
            self._closed.wait(self._rest * (time.perf_counter() - begin))


def _copier(device: torch.device) -> Callable[[torch.Tensor, torch.Tensor], None]:
    if device.type == "cpu":
        # On this thread alone and without the interpreter lock: torch would divide it among as many
        # threads as a step has.
        return lambda target, source: np.copyto(target.numpy(), source.numpy())
    stream = torch.Stream(device)

    def copy(target: torch.Tensor, source: torch.Tensor) -> None:
        # Whatever the engine was asked for may still use these rows.
        stream.wait_stream(torch.accelerator.current_stream(device))
        with stream:
            target.copy_(source, non_blocking=True)
        stream.synchronize()

    return copy
