"""Local instance processes: started, restarted with back-off, stopped without remainder."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from alipes.gateway.fleet.backoff import Backoff, BackoffSettings

EXIT_REFUSED: Final = 2
DEFAULT_BACKOFF: Final = BackoffSettings()
LINE_BYTES: Final = 1 << 16

log = logging.getLogger("alipes.launcher")


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """One process: ``env`` is added to this process's environment."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]


class ProcessState(StrEnum):
    RUNNING = "running"
    WAITING = "waiting"
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class LaunchState:
    """``pid`` is of the process that runs, or of the one that ended; ``starts`` counts from 1."""

    name: str
    state: ProcessState
    pid: int
    starts: int
    reason: str


class Launcher:
    """Keeps one process for each spec. A process that ends is started again after a delay,
    unless its exit code is 2: it was refused or cannot be built, and would be again.

    Every process leads its own session, so that a terminal's Ctrl-C reaches it through ``stop``
    alone, and its whole group is ended with it. ``on_state`` is called in the event loop."""

    def __init__(
        self,
        specs: Sequence[LaunchSpec],
        on_state: Callable[[LaunchState], None],
        backoff: BackoffSettings = DEFAULT_BACKOFF,
        grace_seconds: float = 5.0,
    ) -> None:
        self._specs = tuple(specs)
        self._on_state = on_state
        self._backoff = backoff
        self._grace = grace_seconds
        self._stopping = asyncio.Event()
        self._keepers: list[asyncio.Task[None]] = []
        self._groups: set[int] = set()

    async def start(self) -> None:
        atexit.register(self._kill_all)
        self._keepers = [
            asyncio.create_task(self._keep(spec), name=f"keeper of {spec.name}")
            for spec in self._specs
        ]

    async def stop(self) -> None:
        """End every process: SIGTERM, then SIGKILL to what remains after the grace. A caller
        that is cancelled here leaves the work to go on in the background."""
        self._stopping.set()
        if self._keepers:
            await asyncio.shield(asyncio.gather(*self._keepers, return_exceptions=True))
        atexit.unregister(self._kill_all)

    async def _keep(self, spec: LaunchSpec) -> None:
        """Run ``spec`` again and again. Never cancelled, so that no process is left between its
        start and its registration."""
        backoff = Backoff(self._backoff)
        starts = 0
        while not self._stopping.is_set():
            starts += 1
            started = time.monotonic_ns()
            pid, reason, final = await self._run_once(spec, starts)
            if self._stopping.is_set():
                self._tell(spec, ProcessState.STOPPED, pid, starts, reason)
                return
            if final:
                self._tell(spec, ProcessState.FAILED, pid, starts, reason)
                return
            delay = backoff.ended(started, time.monotonic_ns()) / 1e9
            reason = f"{reason}; next start in {delay:.1f} s"
            self._tell(spec, ProcessState.WAITING, pid, starts, reason)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), delay)

    async def _run_once(self, spec: LaunchSpec, starts: int) -> tuple[int, str, bool]:
        """The process's id, how it ended, and whether that is final."""
        try:
            process = await asyncio.create_subprocess_exec(
                *spec.argv,
                env={**os.environ, **spec.env},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                limit=LINE_BYTES,
                start_new_session=True,
            )
        except OSError as error:
            return 0, f"{spec.argv[0]} cannot be started: {error}", True
        self._groups.add(process.pid)
        self._tell(spec, ProcessState.RUNNING, process.pid, starts, "started")
        assert process.stdout is not None
        lines = asyncio.create_task(self._forward(spec.name, process.stdout))
        try:
            code = await self._wait(process)
        finally:
            _signal_group(process.pid, signal.SIGKILL)
            self._groups.discard(process.pid)
        await asyncio.wait((lines,), timeout=1.0)
        lines.cancel()
        return process.pid, _describe(code), code == EXIT_REFUSED

    async def _wait(self, process: asyncio.subprocess.Process) -> int:
        """Until the process ends by itself, or is made to because the launcher stops."""
        ended = asyncio.create_task(process.wait())
        stopping = asyncio.create_task(self._stopping.wait())
        await asyncio.wait((ended, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not ended.done():
            _signal_process(process.pid, signal.SIGTERM)
            await asyncio.wait((ended,), timeout=self._grace)
        if not ended.done():
            log.warning("process %d outlived its grace of %.1f s", process.pid, self._grace)
            _signal_group(process.pid, signal.SIGKILL)
        return await ended

    async def _forward(self, name: str, stream: asyncio.StreamReader) -> None:
        while True:
            try:
                line = await stream.readline()
            except ValueError:
                log.warning("%s: a line over %d bytes is left out", name, LINE_BYTES)
                continue
            if not line:
                return
            level, message = forwarded(name, line.decode(errors="replace").rstrip())
            log.log(level, "%s", message)

    def _tell(
        self, spec: LaunchSpec, state: ProcessState, pid: int, starts: int, reason: str
    ) -> None:
        orderly = state in (ProcessState.RUNNING, ProcessState.STOPPED)
        level = logging.INFO if orderly else logging.ERROR
        log.log(level, "%s, pid %d, is %s: %s", spec.name, pid, state, reason)
        self._on_state(LaunchState(spec.name, state, pid, starts, reason))

    def _kill_all(self) -> None:
        """The interpreter exits without ``stop``: leave nothing behind."""
        for group in self._groups:
            _signal_group(group, signal.SIGKILL)


def forwarded(name: str, line: str) -> tuple[int, str]:
    """The level and the message for a line of the process ``name``: lines of its log keep their
    level, and have its name once."""
    word, _, rest = line.partition(" ")
    level = logging.getLevelNamesMapping().get(word)
    if level is None or not rest:
        return logging.INFO, f"{name}: {line}"
    named = rest.startswith((f"{name} ", f"{name}: "))
    return level, rest if named else f"{name}: {rest}"


def _signal_process(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _signal_group(leader: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


def _describe(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    return f"ended by {signal.Signals(-code).name}"
