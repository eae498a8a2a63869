"""Records finished calls to a file, beside serving, which never waits for it nor fails by it."""

from __future__ import annotations

import logging
import os
import queue
import secrets
import threading
import time
from pathlib import Path
from typing import Final

from alipes.gateway.calls.call import Call
from alipes.gateway.calls.events import CallEvent, Satisfied
from alipes.gateway.strict import ConfigError
from alipes.gateway.telemetry.recording import Decode, RecordedCall, Recording
from alipes.instance.contract import Finished

QUEUE: Final = 512
CLOSE_SECONDS: Final = 5.0
_KEY_BYTES: Final = 32

log = logging.getLogger("alipes.gateway")


class RecordError(ConfigError):
    """The file cannot be written; one line says why."""


class CallRecorder:
    """Appends to ``path`` (mode 0600) until it has ``limit`` bytes. What comes while the queue is
    full, or after that, is dropped and counted. ``open`` before, ``close`` after all calls."""

    def __init__(self, path: Path, limit: int, decode: Decode | None = None) -> None:
        self.path = path
        self.dropped = 0
        self._limit = limit
        self._decode = decode
        self._queue: queue.Queue[RecordedCall | None] = queue.Queue(QUEUE)
        self._thread: threading.Thread | None = None
        self._file = -1
        self._size = 0
        self._stopped = False

    def open(self, now: int) -> None:
        """Begin a recording at the end of the file. Raises ``RecordError``."""
        try:
            self._file = os.open(
                self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600
            )
            os.fchmod(self._file, 0o600)
            self._size = os.fstat(self._file).st_size
            # A line that an earlier gateway could not end is to spoil no other one.
            torn = self._size and os.pread(self._file, 1, self._size - 1) != b"\n"
            self._write((b"\n" if torn else b"") + Recording.header(time.time()))
        except OSError as error:
            self._close_file()
            raise RecordError(
                f"gateway.record.file: {self.path}: {error.strerror or error};"
                " give a file in a folder that can be written"
            ) from None
        recording = Recording(secrets.token_bytes(_KEY_BYTES), now, self._decode)
        self._thread = threading.Thread(
            target=self._run, args=(recording,), name="record-calls", daemon=True
        )
        self._thread.start()

    def of_call(self, call: Call, event: CallEvent, now: int) -> None:
        """Record a call that finished."""
        if isinstance(event, Finished | Satisfied):
            self.take(RecordedCall.of(call, now))

    def take(self, call: RecordedCall) -> None:
        """Record the call unless there is no room."""
        if self._stopped:
            self.dropped += 1
            return
        try:
            self._queue.put_nowait(call)
        except queue.Full:
            self.dropped += 1

    def close(self) -> None:
        """Write what is waiting, for some seconds at most."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        deadline = time.monotonic() + CLOSE_SECONDS
        try:
            self._queue.put(None, timeout=CLOSE_SECONDS)
        except queue.Full:
            self._stopped = True
        thread.join(max(0.0, deadline - time.monotonic()))
        if self.dropped:
            log.warning("%s: %d calls were not recorded", self.path, self.dropped)

    def _run(self, recording: Recording) -> None:
        while (call := self._queue.get()) is not None:
            if self._stopped:
                self.dropped += 1
                continue
            try:
                self._append(recording.line(call))
            except Exception as error:
                self._stop(f"recording failed: {error}")
        self._close_file()

    def _append(self, line: bytes) -> None:
        if self._size + len(line) > self._limit:
            self._stop(f"it has reached gateway.record.max_bytes ({self._limit})")
            return
        before = self._size
        try:
            self._write(line)
        except OSError:
            # Half a line is none.
            os.ftruncate(self._file, before)
            raise

    def _write(self, data: bytes) -> None:
        while data:
            written = os.write(self._file, data)
            self._size += written
            data = data[written:]

    def _stop(self, reason: str) -> None:
        self._stopped = True
        self.dropped += 1
        log.warning("%s: no more calls are recorded: %s", self.path, reason)

    def _close_file(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
