"""A whole stack for a while: ``alipes serve`` of a cluster, as processes, on a port of its own, and
a client that replays sessions on it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

import httpx
import msgspec

from alipes.cli.output import CommandError
from alipes.gateway.config import Cluster
from alipes.replay.endpoint import Endpoint
from alipes.replay.pacing import PacingSettings
from alipes.replay.plan import PlannedSession
from alipes.replay.runner import Replay

FILE: Final = "alipes.yaml"
STATE: Final = "state"
STOP_SECONDS: Final = 20
POLL_SECONDS: Final = 0.2
LINE_SECONDS: Final = 5.0
ONE_THREAD: Final = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
PYTHON: Final = (sys.executable, "-P", "-m")
SERVE: Final = (*PYTHON, "alipes.cli.main", "serve", "-c")


@dataclass(frozen=True, slots=True)
class Stack:
    """``log`` is what the gateway and its instances write; it was ready after ``seconds``."""

    port: int
    log: Path
    seconds: float

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def calls(self, wanted: Iterable[str]) -> dict[str, dict[str, Any]]:
        """The gateway's lines of these calls by request id; it writes one a moment after its
        client has the end. Raises ``CommandError`` when one does not come."""
        deadline, ids = time.monotonic() + LINE_SECONDS, set(wanted)
        while True:
            lines = (line for line in self.log.read_text().splitlines() if line.startswith("{"))
            found = {call["request_id"]: call for call in map(_line, lines) if call}
            if ids <= found.keys():
                return {name: found[name] for name in ids}
            if time.monotonic() > deadline:
                raise CommandError(f"the gateway wrote no line of {min(ids - found.keys())}")
            time.sleep(POLL_SECONDS)

    def contexts(self) -> dict[str, int]:
        """Tokens that a call of each model may have."""
        shown = httpx.get(f"{self.url}/v1/models", trust_env=False).json()["data"]
        return {one["id"]: one["max_model_len"] for one in shown}

    def admin(self) -> dict[str, Any]:
        """What the gateway tells of itself and its instances."""
        return dict(httpx.get(f"{self.url}/admin/instances", trust_env=False).json())

    def snapshot(self, instance: str) -> dict[str, Any]:
        """What the instance last told of itself."""
        shown = self.admin()["instances"]
        return next(dict(one["snapshot"]) for one in shown if one["name"] == instance)


def end_in_order() -> None:
    """Let SIGTERM end this process as Ctrl-C does, so that no stack outlives it."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


@contextlib.contextmanager
def serving(
    cluster: Cluster, folders: Mapping[str, Path], work: Path, beside: Sequence[str] = ()
) -> Iterator[Stack]:
    """Serve the cluster from prepared ``folders``; ``work`` is made for this stack alone. The
    command ``beside`` runs as long as it does: instances that are not local. Raises
    ``CommandError`` when the stack does not start."""
    work.mkdir(mode=0o700)
    port = free_port()
    file = write_cluster(cluster, folders, work, port)
    with started((*SERVE, str(file)), port, work / "alipes.log", beside) as stack:
        yield stack


@contextlib.contextmanager
def started(
    command: Sequence[str], port: int, log: Path, beside: Sequence[str] = ()
) -> Iterator[Stack]:
    """What ``command`` serves on ``port``. Raises ``CommandError`` when it does not start."""
    begin = time.perf_counter()
    with contextlib.ExitStack() as processes:
        errors = processes.enter_context(log.open("w"))
        # Entered first, so that it outlives the gateway.
        others = [processes.enter_context(running(beside, errors))] if beside else []
        gateway = processes.enter_context(running(command, errors))
        if not _ready(gateway, others):
            lines = log.read_text().splitlines() or ["no word"]
            raise CommandError(f"the stack did not start: {lines[-1]}")
        yield Stack(port, log, time.perf_counter() - begin)


def _ready(gateway: subprocess.Popen[str], others: Sequence[subprocess.Popen[str]]) -> bool:
    """Wait until the gateway says that every model has an instance, or a process has ended."""
    assert gateway.stdout is not None
    while not select.select([gateway.stdout], [], [], POLL_SECONDS)[0]:
        if any(process.poll() is not None for process in (gateway, *others)):
            return False
    return gateway.stdout.readline().startswith("ready:")


@contextlib.contextmanager
def running(command: Sequence[str], errors: IO[Any]) -> Iterator[subprocess.Popen[str]]:
    """A process that is ended when the block is left, however it is left. It computes with one
    thread; what it prints is there to be read."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=errors, env=os.environ | ONE_THREAD, text=True
    )
    try:
        yield process
    finally:
        end(process)
        assert process.stdout is not None
        process.stdout.close()


def end(process: subprocess.Popen[Any], seconds: float = STOP_SECONDS) -> bool:
    """Let it stop; whether it did in time, for otherwise it is killed."""
    process.terminate()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return False
    return True


def play(url: str, sessions: Sequence[PlannedSession]) -> Replay:
    """Replay sessions, all from the start. Raises ``CommandError`` when a call fails."""

    async def whole() -> Replay:
        endpoint = Endpoint(url)
        replay = Replay(endpoint, time.monotonic_ns, tuple(sessions))
        try:
            await replay.run(lambda record: None, PacingSettings(gap_cap=None))
        finally:
            await endpoint.close()
        return replay

    done = asyncio.run(whole())
    failed = [record for record in done.records if record.error]
    if failed:
        raise CommandError(
            f"{len(failed)} calls failed, the first: {failed[0].request_id}: {failed[0].error}"
        )
    return done


def write_cluster(
    cluster: Cluster, folders: Mapping[str, Path], work: Path, port: int | None = None
) -> Path:
    """A file of the cluster in ``work``, of those models that have folders. With a ``port`` its
    gateway is there, open to forced tokens and nothing else of its own, and keeps its state in
    ``work`` too."""
    shown: dict[str, Any] = msgspec.to_builtins(cluster)
    shown["models"] = {
        name: shown["models"][name] | {"source": str(folder.absolute())}
        for name, folder in folders.items()
    }
    if port is not None:
        endpoint = f"ipc://{work.absolute()}/link"
        shown["gateway"] = {"port": port, "endpoint": endpoint, "allow_forced_tokens": True}
        shown["state"] = {"folder": STATE}
    file = work / FILE
    file.write_text(json.dumps(shown))
    return file


def _line(text: str) -> dict[str, Any]:
    """A line of a call; nothing for one that is still being written."""
    try:
        return dict(json.loads(text))
    except ValueError:
        return {}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
