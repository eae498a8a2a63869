"""A whole stack: `alipes serve`, real processes, real sockets; the fake engine unless told."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from alipes.gateway.strict import read_yaml

FILE = """
models:
  alpha: {{source: {{random: {{family: llama, size: tiny}}}}}}
  beta: {{source: {{random: {{family: qwen3, size: tiny}}}}}}
instances:
  hot-0: {{pool: hot, models: [alpha], engine: fake, fake: {{step: 0.005}}}}
  cold-0:
    pool: cold
    models: [alpha, beta]
    engine: fake
    fake: {{step: 0.005, switch: 0.05, prefill_token: 0.0001}}
gateway:
  port: {port}
  endpoint: {endpoint}
  allow_forced_tokens: true
  limits: {{body_bytes: 33554432, keep_alive: 1}}
"""


@dataclass(frozen=True)
class Stack:
    """``log`` lies beside the cluster file."""

    url: str
    process: subprocess.Popen[str]
    log: Path

    @property
    def file(self) -> Path:
        return self.log.parent / "alipes.yaml"

    def processes(self) -> list[psutil.Process]:
        """The gateway and its instances, also those that are no children of this gateway."""
        found = {
            process
            for process in psutil.process_iter(["cmdline"])
            if str(self.file) in (process.info["cmdline"] or ())
        }
        with_children = [child for one in found for child in _children(one)]
        return list(found.union(with_children))

    def discard(self) -> None:
        """Whatever is still there ends at once."""
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()

    def live_calls(self) -> int:
        """Calls that the gateway or any instance still holds."""
        shown = httpx.get(f"{self.url}/admin/instances").json()
        counts = [i["snapshot"]["counters"]["live_calls"] for i in shown["instances"]]
        return int(shown["live_calls"]) + sum(counts)

    def instances(self) -> dict[str, Any]:
        shown = httpx.get(f"{self.url}/admin/instances").json()
        return {i["name"]: i for i in shown["instances"]}

    def counter(self, name: str) -> int:
        """Total of one counter over all instances."""
        return sum(i["snapshot"]["counters"][name] for i in self.instances().values())

    def until_idle(self) -> None:
        deadline = time.monotonic() + 10
        while self.live_calls():
            assert time.monotonic() < deadline, "calls are still held"
            time.sleep(0.05)


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def is_over(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start_stack(folder: Path, text: str = FILE) -> Stack:
    folder.chmod(0o700)
    port = free_port()
    file = folder / "alipes.yaml"
    file.write_text(text.format(port=port, endpoint=f"ipc://{folder}/link"))
    # Not in the user's cache; sizes and numbers stay as they are written.
    cluster = {"state": {"folder": "state"}, **read_yaml(file)}
    file.write_text(json.dumps(cluster))
    return serve_file(file, port)


def serve_file(file: Path, port: int) -> Stack:
    log = file.parent / "log"
    process = subprocess.Popen(
        [sys.executable, "-m", "alipes.cli.main", "serve", "-c", str(file)],
        stdout=subprocess.PIPE,
        stderr=log.open("a"),
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"},
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("ready:"), log.read_text()
    return Stack(f"http://127.0.0.1:{port}", process, log)


def stop_stack(stack: Stack, number: signal.Signals = signal.SIGINT) -> None:
    """End it as Ctrl-C does and check that nothing of it is left."""
    processes = stack.processes()
    assert len(processes) > 1
    stack.process.send_signal(number)
    assert stack.process.wait(20) == 0, stack.log.read_text()
    assert all(map(is_over, processes))


@pytest.fixture(scope="session")
def stack(
    tmp_path_factory: pytest.TempPathFactory, tiny_folders: dict[str, Path]
) -> Iterator[Stack]:
    running = start_stack(tmp_path_factory.mktemp("stack", numbered=True))
    try:
        yield running
        stop_stack(running)
    finally:
        running.discard()


@pytest.fixture(scope="session")
def start() -> Callable[..., Stack]:
    return start_stack


@pytest.fixture(scope="session")
def start_again() -> Callable[[Stack], Stack]:
    """The next gateway of a stack whose gateway has ended, of the file as it is now."""
    return lambda stack: serve_file(stack.file, int(stack.url.rpartition(":")[2]))


@pytest.fixture(scope="session")
def stop() -> Callable[..., None]:
    return stop_stack
