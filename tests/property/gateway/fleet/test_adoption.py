"""Gateways that come and go over real processes, against a model of who should still be there."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from alipes.gateway.fleet.backoff import BackoffSettings
from alipes.gateway.fleet.launcher import Launcher, LaunchSpec, LaunchState, ProcessState
from alipes.gateway.fleet.processes import birth

QUICK = BackoffSettings(first=0.001, longest=0.001)
FILES = st.dictionaries(st.sampled_from("abc"), st.sampled_from("fg"), min_size=1)
"""Fingerprints by name, as a cluster file gives them."""


class Adoption(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = TemporaryDirectory()
        self.launcher: Launcher | None = None
        self.states: dict[str, LaunchState] = {}
        self.alive: dict[str, tuple[int, str]] = {}
        """The model: pid and fingerprint of every process that should live."""

    @property
    def state(self) -> Path:
        return Path(self.folder.name) / "state"

    def recorded(self) -> set[str]:
        return {path.name for path in (self.state / "instances").iterdir()}

    def until(self, condition: Callable[[], bool]) -> None:
        async def wait() -> None:
            deadline = time.monotonic() + 10
            while not condition():
                assert time.monotonic() < deadline
                await asyncio.sleep(0.001)

        self.loop.run_until_complete(wait())

    def running(self, name: str) -> int:
        told = self.states.get(name)
        return told.pid if told and told.state is ProcessState.RUNNING else 0

    @precondition(lambda self: self.launcher is None)
    @rule(file=FILES)
    def come(self, file: dict[str, str]) -> None:
        self.states = {}
        specs = [LaunchSpec(name, ("sleep", "60"), {}, mark) for name, mark in file.items()]

        def told(state: LaunchState) -> None:
            self.states[state.name] = state

        async def start() -> Launcher:
            launcher = Launcher(specs, told, QUICK, state_folder=self.state)
            launcher.claim()
            await launcher.start()
            return launcher

        self.launcher = self.loop.run_until_complete(start())
        self.until(lambda: all(map(self.running, file)))
        before, self.alive = self.alive, {}
        for name, (pid, mark) in before.items():
            if file.get(name) == mark:
                self.alive[name] = (pid, mark)
            else:
                self.until(lambda gone=pid: not birth(gone))
        for name, mark in file.items():
            if name not in self.alive:
                assert self.states[name].reason == "started"
                self.alive[name] = (self.running(name), mark)
        # A process that the file has no more is seen to have ended a moment after it has.
        self.until(lambda: len(self.recorded()) == len(self.alive))

    @precondition(lambda self: self.launcher is not None)
    @rule(leaves=st.booleans())
    def go(self, leaves: bool) -> None:
        assert self.launcher is not None
        going = self.launcher.leave() if leaves else self.launcher.stop()
        self.loop.run_until_complete(going)
        self.launcher = None
        if not leaves:
            assert not any(birth(pid) for pid, _ in self.alive.values())
            assert not self.state.exists()
            self.alive = {}

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.alive)))
        pid, mark = self.alive.pop(name)
        os.kill(pid, signal.SIGKILL)
        if self.launcher is not None:
            self.until(lambda: self.running(name) not in (0, pid))
            self.alive[name] = (self.running(name), mark)
        else:
            self.until(lambda: not birth(pid))

    @invariant()
    def all_that_should_be_there_are(self) -> None:
        for name, (pid, _) in self.alive.items():
            assert birth(pid)
            assert self.launcher is None or self.running(name) == pid
        if self.launcher is not None:
            assert self.recorded() == {f"{name}.json" for name in self.alive}

    def teardown(self) -> None:
        if self.launcher is None:
            self.come({"a": "f"})
        self.go(leaves=False)
        self.loop.close()
        self.folder.cleanup()


TestAdoption = Adoption.TestCase
TestAdoption.settings = settings(max_examples=12, stateful_step_count=10, deadline=None)
