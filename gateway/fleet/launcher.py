"""Local instance processes: started or taken over, restarted with back-off, stopped without
remainder."""

from __future__ import annotations

import asyncio
import atexit
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec

from alipes.gateway.fleet.backoff import Backoff, BackoffSettings
from alipes.gateway.fleet.output import forward
from alipes.gateway.fleet.processes import LocalProcess, adopt, start
from alipes.gateway.fleet.records import Records

EXIT_REFUSED: Final = 2
DEFAULT_BACKOFF: Final = BackoffSettings()
GREETING_SECONDS: Final = 30.0
_LAST_LINES: Final = 1.0

log = logging.getLogger("alipes.launcher")


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """One process: ``env`` is added to this process's environment. A process that was started with
    the same ``fingerprint`` is what this one would be."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    fingerprint: str = ""


class ProcessState(StrEnum):
    RUNNING = "running"
    WAITING = "waiting"
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class LaunchState:
    """``pid`` is of the process that runs, or of the one that ended; ``starts`` counts from 1,
    a process that was adopted included."""

    name: str
    state: ProcessState
    pid: int
    starts: int
    reason: str


class Launcher:
    """Keeps one process for each spec. A process that ends is started again after a delay,
    unless its exit code is 2: it was refused or cannot be built, and would be again.

    Every process leads its own session, so that a terminal's Ctrl-C reaches it through ``stop``
    alone, and its whole group is ended with it. ``on_state`` is called in the event loop.

    With a ``state_folder``, processes that an earlier gateway left behind are adopted if they are
    what their spec asks for, and ended if not. An adopted process that had said Hello before is
    ended as well unless ``connected`` tells of it within ``greeting_seconds``."""

    def __init__(
        self,
        specs: Sequence[LaunchSpec],
        on_state: Callable[[LaunchState], None],
        backoff: BackoffSettings = DEFAULT_BACKOFF,
        grace_seconds: float = 5.0,
        state_folder: Path | None = None,
        greeting_seconds: float = GREETING_SECONDS,
    ) -> None:
        self._specs = tuple(specs)
        self._on_state = on_state
        self._backoff = backoff
        self._grace = grace_seconds
        self._records = Records(state_folder)
        self._greeting = greeting_seconds
        self._stopping = asyncio.Event()
        self._leaving = False
        self._keepers: list[asyncio.Task[None]] = []
        self._running: dict[str, LocalProcess] = {}
        self._heard: dict[str, int] = {}

    def claim(self) -> None:
        """Take the state folder, before ``start``."""
        self._records.claim()

    def release(self) -> None:
        """Give the state folder up without a start."""
        self._records.release()

    async def start(self) -> None:
        atexit.register(self._kill_all)
        for name, record in self._records.read().items():
            process = adopt(record)
            if process is None:
                self._records.remove(name)
                continue
            self._running[name] = process
            if name in self._heard:
                self.connected(name, self._heard[name])
        found = dict(self._running)
        self._keepers = [
            asyncio.create_task(self._keep(spec, found.pop(spec.name, None)), name=spec.name)
            for spec in self._specs
        ]
        self._keepers += [
            asyncio.create_task(self._dismiss(name, process, "it is no local instance any more"))
            for name, process in found.items()
        ]

    def connected(self, name: str, pid: int) -> None:
        """The process ``pid`` has said Hello; that may be before ``start``."""
        self._heard[name] = pid
        process = self._running.get(name)
        if process is None or process.pid != pid:
            return
        process.greeted.set()
        if not process.record.greeted:
            process.record = msgspec.structs.replace(process.record, greeted=True)
            self._records.write(name, process.record)

    async def stop(self) -> None:
        """End every process: SIGTERM, then SIGKILL to what remains after the grace. A caller
        that is cancelled here leaves the work to go on in the background."""
        self._stopping.set()
        if self._keepers:
            await asyncio.shield(asyncio.gather(*self._keepers, return_exceptions=True))
        atexit.unregister(self._kill_all)
        self._records.release()

    async def leave(self) -> None:
        """Stop, but let the processes go on for the next gateway. Without a state folder it could
        not find them: then they are ended."""
        self._leaving = self._records.kept
        await self.stop()

    async def _keep(self, spec: LaunchSpec, old: LocalProcess | None) -> None:
        """Run ``spec`` again and again, the first time as ``old`` if that will do. Never
        cancelled, so that no process is left between its start and its registration."""
        if old is not None and old.record.fingerprint != spec.fingerprint:
            await self._dismiss(spec.name, old, "it was started otherwise than it would be now")
            old = None
        backoff = Backoff(self._backoff)
        starts = 0
        while old is not None or not self._stopping.is_set():
            starts += 1
            started = time.monotonic_ns()
            pid, reason, final = await self._run_once(spec, starts, old)
            old = None
            if self._stopping.is_set():
                self._tell(spec, ProcessState.STOPPED, pid, starts, reason)
                return
            if final:
                self._tell(spec, ProcessState.FAILED, pid, starts, reason)
                return
            delay = backoff.ended(started, time.monotonic_ns()) / 1e9
            reason = f"{reason}; next start in {delay:.1f} s"
            self._tell(spec, ProcessState.WAITING, pid, starts, reason)
            await _first_of(self._stopping, seconds=delay)

    async def _run_once(
        self, spec: LaunchSpec, starts: int, old: LocalProcess | None
    ) -> tuple[int, str, bool]:
        """The process's id, how it ended, and whether that is final."""
        try:
            process = old or start(spec.argv, spec.env, spec.fingerprint)
        except OSError as error:
            return 0, f"{spec.argv[0]} cannot be started: {error}", True
        self._running[spec.name] = process
        if old is None:
            self._records.write(spec.name, process.record)
        how = "started" if old is None else "adopted"
        self._tell(spec, ProcessState.RUNNING, process.pid, starts, how)
        reason = await self._attend(spec.name, process)
        return process.pid, reason, process.code == EXIT_REFUSED

    async def _dismiss(self, name: str, process: LocalProcess, why: str) -> None:
        log.info("%s, pid %d, is ended: %s", name, process.pid, why)
        await self._attend(name, process, wanted=False)

    async def _attend(self, name: str, process: LocalProcess, wanted: bool = True) -> str:
        """Forward what the process prints until it has ended, by itself or because it must, or is
        left; which of these it was."""
        lines = asyncio.create_task(forward(name, process.output))
        fault = await self._watch(process) if wanted else ""
        left = wanted and self._leaving and not process.over.is_set()
        if not left:
            await self._end(process)
            self._records.remove(name)
            await asyncio.wait((lines,), timeout=_LAST_LINES)
        lines.cancel()
        del self._running[name]
        return "left to the next gateway" if left else f"{fault}{process.end}"

    async def _watch(self, process: LocalProcess) -> str:
        """Until the process ends, or must be ended; why, if it is its own fault."""
        if process.adopted and process.record.greeted:
            signs = (process.greeted, process.over, self._stopping)
            await _first_of(*signs, seconds=self._greeting)
            if not any(sign.is_set() for sign in signs):
                return f"not connected {self._greeting:g} s after it was adopted; "
        await _first_of(process.over, self._stopping)
        return ""

    async def _end(self, process: LocalProcess) -> None:
        process.terminate()
        await _first_of(process.over, seconds=self._grace)
        if not process.over.is_set():
            log.warning("process %d outlived its grace of %.1f s", process.pid, self._grace)
            process.kill_group()
            await process.over.wait()
        process.kill_group()

    def _tell(
        self, spec: LaunchSpec, state: ProcessState, pid: int, starts: int, reason: str
    ) -> None:
        orderly = state in (ProcessState.RUNNING, ProcessState.STOPPED)
        level = logging.INFO if orderly else logging.ERROR
        log.log(level, "%s, pid %d, is %s: %s", spec.name, pid, state, reason)
        self._on_state(LaunchState(spec.name, state, pid, starts, reason))

    def _kill_all(self) -> None:
        """The interpreter exits without ``stop``: leave nothing behind."""
        for process in self._running.values():
            process.kill_group()


async def _first_of(*events: asyncio.Event, seconds: float | None = None) -> None:
    """Wait until one of the events is set, for ``seconds`` at most."""
    waiting = [asyncio.create_task(event.wait()) for event in events]
    await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    for task in waiting:
        task.cancel()
