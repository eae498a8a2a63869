"""A whole stack: `alipes serve`, real processes, real sockets; the fake engine unless told."""

from __future__ import annotations

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
    url: str
    process: subprocess.Popen[str]
    log: Path

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
    log = folder / "log"
    process = subprocess.Popen(
        [sys.executable, "-m", "alipes.cli.main", "serve", "-c", str(file)],
        stdout=subprocess.PIPE,
        stderr=log.open("w"),
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"},
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("ready:"), log.read_text()
    return Stack(f"http://127.0.0.1:{port}", process, log)


def stop_stack(stack: Stack, number: signal.Signals = signal.SIGINT) -> None:
    """End it as Ctrl-C does and check that nothing of it is left."""
    children = psutil.Process(stack.process.pid).children(recursive=True)
    assert children
    stack.process.send_signal(number)
    assert stack.process.wait(20) == 0, stack.log.read_text()
    assert not [child for child in children if child.is_running()]


@pytest.fixture(scope="session")
def stack(
    tmp_path_factory: pytest.TempPathFactory, tiny_folders: dict[str, Path]
) -> Iterator[Stack]:
    running = start_stack(tmp_path_factory.mktemp("stack", numbered=True))
    try:
        yield running
        stop_stack(running)
    finally:
        running.process.kill()
        running.process.wait()


@pytest.fixture(scope="session")
def start() -> Callable[..., Stack]:
    return start_stack


@pytest.fixture(scope="session")
def stop() -> Callable[..., None]:
    return stop_stack
