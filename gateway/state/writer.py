"""Writes changes to the file in a thread, so that nothing ever waits for the disk."""

from __future__ import annotations

import logging
import queue
import sqlite3
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from alipes.gateway.api.openai.responses.saved import ResponseChanges
from alipes.gateway.routing.saved import SessionChanges
from alipes.gateway.state.file import Change, StateFile, is_broken, is_full
from alipes.gateway.state.rows import response_changes, session_changes

CLOSE_SECONDS: Final = 5.0

log = logging.getLogger("alipes.gateway")


@dataclass(frozen=True, slots=True)
class Batch:
    """What is written together."""

    sessions: SessionChanges
    responses: ResponseChanges

    @property
    def turns(self) -> set[int]:
        """Those that are new."""
        return {number for number, turn in self.responses.turns.items() if turn is not None}


class StateWriter:
    """Takes one batch at a time while it is ``idle``. Content of responses for which the file has
    no room is left out. After any other error it has ``ended``, and the file is removed: nobody is
    to take up an old state."""

    def __init__(self, file: StateFile) -> None:
        self.ended = False
        self._file = file
        self._busy = False
        self._left_out: set[int] = set()
        self._told = False
        self._batches: queue.SimpleQueue[Batch | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="save-state", daemon=True)
        self._thread.start()

    @property
    def idle(self) -> bool:
        return not self._busy

    def write(self, batch: Batch) -> None:
        """Not to be called before it is idle."""
        self._busy = True
        self._batches.put(batch)

    def close(self, last: Batch) -> None:
        """Write what is left, for some seconds at most, and close the file."""
        self._batches.put(last)
        self._batches.put(None)
        self._thread.join(CLOSE_SECONDS)
        if self._thread.is_alive():
            log.warning("%s: the last changes are not saved: the disk is slow", self._file.path)

    def _run(self) -> None:
        while (batch := self._batches.get()) is not None:
            if not self.ended:
                self._try(batch)
            self._busy = False
        self._file.close()

    def _try(self, batch: Batch) -> None:
        try:
            self._save(batch)
        except Exception as error:
            self.ended = True
            log.warning(
                "%s: state is no longer saved, a restart will begin without: %s",
                self._file.path,
                error,
            )
            self._abandon(error)

    def _save(self, batch: Batch) -> None:
        try:
            self._file.write(self._changes(batch))
        except sqlite3.Error as error:
            if not is_full(error):
                raise
            self._left_out |= batch.turns
            self._file.write(self._changes(batch), reserve=True)
            if self._left_out and not self._told:
                self._told = True
                log.warning(
                    "%s: no room for more content of responses (%s): raise state.max_bytes, now"
                    " %d, or lower gateway.limits.responses_bytes",
                    self._file.path,
                    error,
                    self._file.max_bytes,
                )

    def _changes(self, batch: Batch) -> Iterator[Change]:
        yield from session_changes(batch.sessions)
        yield from response_changes(batch.responses, self._left_out)

    def _abandon(self, error: Exception) -> None:
        try:
            if isinstance(error, sqlite3.Error) and is_broken(error):
                self._file.set_aside()
            else:
                self._file.remove()
        except (OSError, sqlite3.Error) as another:
            log.warning("%s: cannot be removed: %s", self._file.path, another)
