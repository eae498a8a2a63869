"""Local processes, whether this gateway started them or an earlier one did."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Final

from alipes.gateway.fleet.output import open_pipe, pipe_of
from alipes.gateway.fleet.records import ProcessRecord

_STATE: Final = 0
_START_TIME: Final = 19
"""Fields of /proc/PID/stat after the command's name, which is the second: proc(5)."""


class LocalProcess:
    """A process that leads a session of its own. ``output`` is a descriptor to read what it
    prints, for the caller to close. In the event loop ``over`` is set once the process has ended,
    ``code`` with it unless the process is ``adopted``: then it is another's child."""

    def __init__(self, record: ProcessRecord, output: int, adopted: bool) -> None:
        self.record = record
        self.output: Final = output
        self.adopted: Final = adopted
        self.greeted: Final = asyncio.Event()
        self.over: Final = asyncio.Event()
        self.code: int | None = None

    @property
    def pid(self) -> int:
        return self.record.pid

    @property
    def end(self) -> str:
        """How it has ended."""
        if self.code is None:
            return "ended, its exit code unknown"
        if self.code < 0:
            return f"ended by {signal.Signals(-self.code).name}"
        return f"exit code {self.code}"

    def ended(self, code: int | None = None) -> None:
        self.code = code
        self.over.set()

    def terminate(self) -> None:
        """Ask it to end in order."""
        if not self.over.is_set():
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)

    def kill_group(self) -> None:
        """End it and what it started, or what it has left."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)


def start(argv: Sequence[str], env: Mapping[str, str], fingerprint: str) -> LocalProcess:
    """Start a process with ``env`` added to the environment. Raises ``OSError``."""
    output, pipe = open_pipe()
    try:
        child = subprocess.Popen(
            argv,
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            stdout=pipe,
            stderr=pipe,
            start_new_session=True,
        )
    except OSError:
        os.close(output)
        raise
    finally:
        os.close(pipe)
    record = ProcessRecord(child.pid, birth(child.pid), fingerprint)
    process = LocalProcess(record, output, adopted=False)
    loop = asyncio.get_running_loop()

    def wait() -> None:
        code = child.wait()
        with suppress(RuntimeError):  # the loop is closed: the process has outlived the gateway
            loop.call_soon_threadsafe(process.ended, code)

    # A thread of asyncio's own would be waited for when the gateway ends.
    Thread(target=wait, name=f"end of {child.pid}", daemon=True).start()
    return process


def adopt(record: ProcessRecord) -> LocalProcess | None:
    """The process of the record, which an earlier gateway has started; None where it has ended,
    or where this system does not let it be watched."""
    descriptor = -1
    try:
        descriptor = os.pidfd_open(record.pid)
        # Compared once the descriptor holds on to the process: no other can take its place.
        if record.birth != birth(record.pid):
            raise ProcessLookupError
        process = LocalProcess(record, pipe_of(record.pid), adopted=True)
    except OSError:
        if descriptor >= 0:
            os.close(descriptor)
        return None
    loop = asyncio.get_running_loop()

    def ended() -> None:
        loop.remove_reader(descriptor)
        os.close(descriptor)
        process.ended()

    loop.add_reader(descriptor, ended)
    return process


def birth(pid: int) -> str:
    """When the process started: the boot, and clock ticks since then. Empty where none lives."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
    fields = stat.rpartition(b")")[2].decode().split()
    return "" if fields[_STATE] in ("Z", "X") else f"{boot} {fields[_START_TIME]}"
