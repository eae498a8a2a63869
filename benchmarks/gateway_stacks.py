"""The systems under measurement, as processes: ours, the peer, and bare backends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import msgspec
from stack import stack

from alipes.cli.stack import ONE_THREAD, end, free_port
from alipes.gateway.fleet.launcher import Launcher, LaunchSpec
from alipes.gateway.fleet.link import Fleet
from alipes.instance.checkpoints.sources import prepare
from alipes.instance.contract import (
    Drawn,
    FakeCosts,
    Finished,
    FromInstance,
    Hello,
    InstanceSettings,
    ModelSettings,
    Pool,
    RandomWeights,
    Sampling,
    Submit,
    Targets,
    Tokens,
    chain_root,
)

CONTEXT = 262_144
RUN = """
import sys, msgspec
from alipes.instance.contract import InstanceSettings
from alipes.instance.server import run_instance
sys.exit(run_instance(msgspec.json.decode(sys.argv[1], type=InstanceSettings)))
"""


def long_context_folder(work: Path) -> Path:
    """A tiny random model that claims a long context; the fake engine does not mind."""
    cache = Path(os.environ.get("ALIPES_CACHE", "~/.cache/alipes")).expanduser()
    source = prepare(RandomWeights("llama", "tiny"), cache, lambda *_: None)
    folder = work / "model"
    shutil.copytree(source, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": CONTEXT}))
    return folder


@contextlib.contextmanager
def alipes(work: Path, folder: Path, step: float) -> Iterator[int]:
    """Our gateway with two fake instances; yields its port."""
    fake = {"pool": "hot", "engine": "fake", "max_running": 64}
    cluster = {
        "models": {name: {"source": str(folder)} for name in ("paced", "instant")},
        "instances": {
            "paced-0": fake | {"models": ["paced"], "fake": {"step": step}},
            "instant-0": fake | {"models": ["instant"]},
        },
    }
    with stack(work / "alipes", cluster) as one:
        yield one.port


@contextlib.contextmanager
def worker(step: float) -> Iterator[int]:
    """The bare backend of the peer; yields its port."""
    port = free_port()
    script = Path(__file__).with_name("paced_worker.py")
    process = subprocess.Popen([sys.executable, str(script), str(port), str(step)])
    try:
        _await_health(port, process)
        yield port
    finally:
        end(process)


@contextlib.contextmanager
def sglang_router(python: str, backend: int, work: Path) -> Iterator[int]:
    """The peer before one backend; yields its port."""
    port = free_port()
    command = [python, "-m", "sglang_router.launch_router", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--worker-urls", f"http://127.0.0.1:{backend}"]
    command += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port())]
    command += ["--policy", "cache_aware"]
    log = (work / "router.log").open("w")
    environment = os.environ | ONE_THREAD
    process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
    try:
        _await_health(port, process)
        time.sleep(2.0)  # it finds its workers after it answers
        yield port
    finally:
        end(process)


def _await_health(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200:
                return
        time.sleep(0.1)
    raise RuntimeError(f"{process.args!r} does not answer")


class DirectLink:
    """A fake instance without a gateway before it: what the engine and the link take alone."""

    def __init__(self, work: Path, folder: Path, step: float) -> None:
        endpoint = f"ipc://{work}/direct"
        settings = InstanceSettings(
            name="direct",
            pool=Pool.HOT,
            models=(ModelSettings("paced", str(folder)),),
            targets=Targets(),
            endpoint=endpoint,
            engine="fake",
            fake=FakeCosts(step=step),
        )
        argv = (sys.executable, "-c", RUN, msgspec.json.encode(settings).decode())
        self._fleet = Fleet(endpoint, frozenset({"direct"}), self)
        spec = LaunchSpec("direct", argv, {"OMP_NUM_THREADS": "1"})
        self._launcher = Launcher((spec,), lambda state: None)
        self._up = asyncio.Event()
        self._events: asyncio.Queue[Drawn | Finished] = asyncio.Queue()
        self._root = b""

    async def __aenter__(self) -> DirectLink:
        await self._fleet.start()
        await self._launcher.start()
        await asyncio.wait_for(self._up.wait(), 60)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._launcher.stop()
        await self._fleet.stop()

    async def generate(self, tokens: bytes, count: int) -> tuple[float, float]:
        """Seconds to the first token and to the end."""
        start = time.perf_counter()
        call = Submit(os.urandom(16), "paced", self._root, tokens, count, Sampling(seed=1))
        self._fleet.send("direct", call)
        first = 0.0
        while True:
            event = await self._events.get()
            first = first or time.perf_counter()
            if isinstance(event, Finished):
                return first - start, time.perf_counter() - start

    def connected(self, hello: Hello) -> None:
        self._root = chain_root(hello.models[0].kv_format)
        self._up.set()

    def beat(self, name: str) -> None:
        pass

    def message(self, name: str, body: FromInstance) -> None:
        if isinstance(body, Tokens):
            for drawn in body.drawn:
                self._events.put_nowait(drawn)
        elif isinstance(body, Finished):
            self._events.put_nowait(body)

    def lost(self, name: str, reason: str) -> None:
        pass
