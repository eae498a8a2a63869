"""Real instance processes with the fake engine, and a sink that records what a fleet tells."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from alipes.gateway.fleet.launcher import LaunchSpec
from alipes.gateway.fleet.link import Fleet
from alipes.instance.contract import (
    Failed,
    FakeCosts,
    Finished,
    FromInstance,
    Hello,
    InstanceSettings,
    ModelSettings,
    Pool,
    Sampling,
    Snapshot,
    Submit,
    Targets,
    Tokens,
    chain_root,
    thread_environment,
)

BEAT = 0.1
RUN = """
import sys
import time
import msgspec
from alipes.instance.contract import InstanceSettings
from alipes.instance.driver import assemble
from alipes.instance.server import run_instance

class BrokenLoop:
    def __init__(self, loop):
        self.post = loop.post
    def run(self):
        time.sleep(0.5)
        raise RuntimeError("a defect")

def slow(settings, emit):
    time.sleep(60)

def broken(settings, emit):
    engine, loop = assemble(settings, emit)
    return engine, BrokenLoop(loop)

settings = msgspec.json.decode(sys.argv[1], type=InstanceSettings)
sys.exit(run_instance(settings, {"": assemble, "slow": slow, "broken": broken}[sys.argv[2]]))
"""


def settings(endpoint: str, **changes: Any) -> InstanceSettings:
    base = InstanceSettings(
        name="one",
        pool=Pool.HOT,
        models=(ModelSettings("m", "/nowhere"),),
        targets=Targets(),
        endpoint=endpoint,
        engine="fake",
        max_running=64,
        beat_seconds=BEAT,
        orphan_seconds=20.0,
    )
    return msgspec.structs.replace(base, **changes)


SLOW = FakeCosts(step=0.02)


def argv(chosen: InstanceSettings, build: str = "") -> tuple[str, ...]:
    return (sys.executable, "-c", RUN, msgspec.json.encode(chosen).decode(), build)


def launch(chosen: InstanceSettings) -> LaunchSpec:
    return LaunchSpec(chosen.name, argv(chosen), thread_environment(1))


def submit(tokens: list[int], max_tokens: int, model: str = "m") -> Submit:
    return Submit(
        call_id=uuid.uuid4().bytes,
        model=model,
        root=chain_root(f"fake:{model}"),
        tokens=np.asarray(tokens, "<i4").tobytes(),
        max_tokens=max_tokens,
        sampling=Sampling(),
    )


class Recorder:
    """A sink; ``until`` waits for what it has been told."""

    def __init__(self) -> None:
        self.hellos: list[Hello] = []
        self.lost_reasons: list[str] = []
        self.beats = 0
        self.tokens: dict[bytes, list[int]] = {}
        self.finished: dict[bytes, Finished] = {}
        self.failed: dict[bytes, Failed] = {}
        self.snapshot: Snapshot | None = None

    def connected(self, hello: Hello) -> None:
        self.hellos.append(hello)

    def beat(self, name: str) -> None:
        self.beats += 1

    def lost(self, name: str, reason: str) -> None:
        self.lost_reasons.append(reason)
        self.snapshot = None

    def message(self, name: str, body: FromInstance) -> None:
        match body:
            case Tokens(drawn=drawn):
                for one in drawn:
                    self.tokens.setdefault(one.call_id, []).append(one.token)
            case Finished(call_id=call_id):
                self.finished[call_id] = body
            case Failed(call_id=call_id):
                self.failed[call_id] = body
            case Snapshot():
                self.snapshot = body

    async def until(self, condition: Callable[[], bool], seconds: float = 15.0) -> None:
        deadline = asyncio.get_running_loop().time() + seconds
        while not condition():
            assert asyncio.get_running_loop().time() < deadline, vars(self)
            await asyncio.sleep(0.005)

    def counters_show(self, **expected: int) -> Callable[[], bool]:
        def shown() -> bool:
            if self.snapshot is None:
                return False
            counters = self.snapshot.counters
            return all(getattr(counters, name) == value for name, value in expected.items())

        return shown


@asynccontextmanager
async def fleet(endpoint: str, sink: Recorder, beat: float = BEAT) -> AsyncIterator[Fleet]:
    link = Fleet(endpoint, frozenset({"one", "two"}), sink, beat_seconds=beat)
    await link.start()
    try:
        yield link
    finally:
        await link.stop()


@asynccontextmanager
async def process(
    chosen: InstanceSettings, build: str = ""
) -> AsyncIterator[asyncio.subprocess.Process]:
    """One instance process, killed at the end if it still runs."""
    started = await asyncio.create_subprocess_exec(
        *argv(chosen, build),
        env={**os.environ, **thread_environment(1)},
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield started
    finally:
        if started.returncode is None:
            started.send_signal(signal.SIGKILL)
        await started.communicate()


async def ended(started: asyncio.subprocess.Process, seconds: float = 15.0) -> tuple[int, str]:
    """Exit code and standard error of a process that is about to end."""
    assert started.stderr is not None
    text = await asyncio.wait_for(started.stderr.read(), seconds)
    return await asyncio.wait_for(started.wait(), seconds), text.decode()


def alive(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    try:
        return status.read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
