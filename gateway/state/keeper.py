"""Keeps sessions and stored responses beyond the process: loads them, then saves what changes."""

from __future__ import annotations

import asyncio
import gc
import logging
import sqlite3
import time
from pathlib import Path
from typing import Final

from alipes.gateway.api.openai.responses.store import ResponseStore
from alipes.gateway.routing.sessions import SessionTable
from alipes.gateway.state.file import BrokenError, StateError, StateFile
from alipes.gateway.state.rows import index_change, saved_of
from alipes.gateway.state.writer import Batch, StateWriter

PERIOD: Final = 0.25
"""Seconds from one look for changes to the next; what happened in them is lost in a crash."""

log = logging.getLogger("alipes.gateway")


class StateKeeper:
    """Lives on the event loop; ``start`` before the first call, ``stop`` after the last. Whatever
    is wrong with ``folder`` or the file there costs what is in it and nothing else, and one line
    in the log says so. The clock of both tables is ``time.monotonic_ns``."""

    def __init__(
        self, folder: Path, max_bytes: int, sessions: SessionTable, responses: ResponseStore
    ) -> None:
        self._file = StateFile(folder, max_bytes)
        self._sessions = sessions
        self._responses = responses
        self._writer: StateWriter | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Take back what the file holds, and save from now on."""
        # Nobody else uses the tables yet.
        if await asyncio.to_thread(self._load):
            self._writer = StateWriter(self._file)
            self._tick()

    def save(self) -> bool:
        """Begin to write what has changed, unless a write is under way. False once saving has
        ended."""
        if self._writer is None or self._writer.ended:
            self._sessions.notes.end()
            self._responses.notes.end()
            return False
        if self._writer.idle and (self._sessions.notes or self._responses.notes):
            self._writer.write(self._take())
        return True

    def stop(self) -> None:
        """Save what is left."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._writer is not None:
            self._writer.close(self._take())
            self._writer = None

    def _load(self) -> bool:
        """Whether the file can be written."""
        try:
            self._file.claim()
            self._restore()
        except (OSError, sqlite3.Error, StateError) as error:
            log.warning(
                "%s: state is neither restored nor saved: %s; set state.folder to a folder of this"
                " gateway's own, or state.keep to false",
                self._file.path,
                error,
            )
            self._file.close()
            return False
        return True

    def _restore(self) -> None:
        # Nearly all that comes to be here stays: looking for garbage takes longer than the rest.
        gc.disable()
        try:
            self._take_back()
        except BrokenError as error:
            log.warning("%s: broken, set aside as *.broken: %s", self._file.path, error)
            self._file.set_aside()
            self._take_back()
        finally:
            gc.enable()

    def _take_back(self) -> None:
        began = time.monotonic()
        saved = saved_of(self._file.read())
        if saved is None:
            self._file.write([index_change(self._sessions.seed, self._sessions.block_tokens)])
            self._sessions.notes.begin()
            self._responses.notes.begin()
            return
        epoch, now = _epoch(), time.monotonic_ns()
        try:
            self._sessions.restore(saved.sessions, epoch, now)
        except ValueError as error:
            raise BrokenError(str(error)) from None
        self._responses.restore(saved.responses, epoch, now)
        log.info(
            "%s: %d sessions and %d responses are back after %.2f s",
            self._file.path,
            len(self._sessions),
            len(self._responses),
            time.monotonic() - began,
        )

    def _tick(self) -> None:
        if self.save():
            self._timer = asyncio.get_running_loop().call_later(PERIOD, self._tick)

    def _take(self) -> Batch:
        epoch = _epoch()
        return Batch(self._sessions.notes.take(epoch), self._responses.notes.take(epoch))


def _epoch() -> int:
    """The calendar time at which the tables' clock was 0; it moves when the calendar is set, or
    the machine has slept."""
    return time.time_ns() - time.monotonic_ns()
