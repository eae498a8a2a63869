"""A whole stack for a while: ``alipes serve`` of a cluster, as processes, on ports of its own."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from alipes.cli.output import CommandError
from alipes.gateway.config import Cluster

STOP_SECONDS = 20


@dataclass(frozen=True, slots=True)
class Stack:
    """``log`` is what the gateway and its instances write."""

    url: str
    log: Path

    def calls(self) -> dict[str, dict[str, Any]]:
        """The gateway's line of every call that has ended, by request id."""
        lines = (line for line in self.log.read_text().splitlines() if line.startswith("{"))
        return {call["request_id"]: call for call in map(json.loads, lines)}

    def snapshot(self, instance: str) -> dict[str, Any]:
        """What the instance last told of itself."""
        import httpx

        shown = httpx.get(f"{self.url}/admin/instances", trust_env=False).json()["instances"]
        return next(dict(one["snapshot"]) for one in shown if one["name"] == instance)


@contextlib.contextmanager
def serving(cluster: Cluster, folders: Mapping[str, Path], work: Path) -> Iterator[Stack]:
    """Serve the cluster from prepared ``folders``; ``work`` is made for this stack alone. Raises
    ``CommandError`` when it does not start."""
    work.mkdir(mode=0o700)
    port, log = _free_port(), work / "alipes.log"
    (work / "alipes.yaml").write_text(json.dumps(_file(cluster, folders, port, work)))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    command = (sys.executable, "-P", "-m", "alipes.cli.main", "serve", "-c", "alipes.yaml")
    with log.open("w") as errors:
        process = subprocess.Popen(
            command, cwd=work, stdout=subprocess.PIPE, stderr=errors, env=environment, text=True
        )
    try:
        assert process.stdout is not None
        if not process.stdout.readline().startswith("ready:"):
            lines = log.read_text().splitlines() or ["no word"]
            raise CommandError(f"the stack did not start: {lines[-1]}")
        yield Stack(f"http://127.0.0.1:{port}", log)
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdout is not None
        process.stdout.close()


def _file(cluster: Cluster, folders: Mapping[str, Path], port: int, work: Path) -> dict[str, Any]:
    """The cluster in the form of its file, its gateway open to forced tokens on ``port``."""
    shown: dict[str, Any] = msgspec.to_builtins(cluster)
    return shown | {
        "models": {
            name: {
                "source": str(folders[name].absolute()),
                "dtype": cluster.models[name].dtype,
            }
            for name in folders
        },
        "gateway": {
            "port": port,
            "endpoint": f"ipc://{work.absolute()}/link",
            "allow_forced_tokens": True,
        },
    }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
