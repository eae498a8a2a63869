"""A whole stack under measurement: ``alipes serve`` with its instances, as processes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from alipes.replay.endpoint import Endpoint
from alipes.replay.pacing import PacingSettings
from alipes.replay.plan import PlannedSession
from alipes.replay.runner import Replay

SETTLE_SECONDS = 30.0
SERVE = (sys.executable, "-P", "-m", "alipes.cli.main", "serve", "-c")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}


@dataclass(frozen=True, slots=True)
class Stack:
    """``log`` is what the gateway and its instances wrote."""

    port: int
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def admin(self) -> dict[str, Any]:
        shown: dict[str, Any] = httpx.get(f"{self.url}/admin/instances", trust_env=False).json()
        return shown

    def snapshots(self) -> dict[str, dict[str, Any]]:
        return {one["name"]: one["snapshot"] for one in self.admin()["instances"]}

    def settled(self) -> dict[str, dict[str, Any]]:
        """Every instance's snapshot once nothing is held any more: two in a row say so. Raises
        RuntimeError when something stays."""
        deadline = time.monotonic() + SETTLE_SECONDS
        quiet = 0
        while quiet < 2:
            admin = self.admin()
            shown = {one["name"]: one["snapshot"] for one in admin["instances"]}
            held = {name: _held(one) for name, one in shown.items()}
            free = not admin["live_calls"] and not any(held.values())
            quiet = quiet + 1 if free else 0
            if time.monotonic() > deadline:
                raise RuntimeError(f"still held: {admin['live_calls']} calls, {held}")
            time.sleep(0.3)
        return shown


def _held(snapshot: dict[str, Any]) -> int:
    occupancy = snapshot["occupancy"]
    return int(
        snapshot["counters"]["live_calls"] + occupancy["held"] + occupancy.get("host_held", 0)
    )


@contextlib.contextmanager
def stack(work: Path, cluster: dict[str, Any], command: Sequence[str] = SERVE) -> Iterator[Stack]:
    """Serve ``cluster``, in the form of the cluster file, from ``work``, a folder of this stack
    alone."""
    work.mkdir(mode=0o700)
    port, file, log = free_port(), work / "alipes.yaml", work / "alipes.log"
    gateway = {"port": port, "endpoint": f"ipc://{work}/link", **cluster.get("gateway", {})}
    file.write_text(json.dumps(cluster | {"gateway": gateway}, indent=2))
    with log.open("w") as errors:
        process = subprocess.Popen(
            [*command, str(file)],
            stdout=subprocess.PIPE,
            stderr=errors,
            env=ENVIRONMENT,
            text=True,
        )
    try:
        assert process.stdout is not None
        if not process.stdout.readline().startswith("ready:"):
            raise RuntimeError(f"the stack did not start: {log.read_text()[-2000:]}")
        yield Stack(port, log)
    finally:
        end(process)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def end(process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def replay(url: str, sessions: Sequence[PlannedSession]) -> Replay:
    """All sessions in a closed loop, all of them from the start. Raises RuntimeError when a call
    fails."""

    async def whole() -> Replay:
        endpoint = Endpoint(url)
        replaying = Replay(endpoint, time.monotonic_ns, tuple(sessions))
        try:
            await replaying.run(lambda record: None, PacingSettings(gap_cap=None))
        finally:
            await endpoint.close()
        return replaying

    done = asyncio.run(whole())
    errors = [f"{record.request_id}: {record.error}" for record in done.records if record.error]
    if errors:
        raise RuntimeError(f"{len(errors)} calls failed, the first: {errors[0]}")
    return done
