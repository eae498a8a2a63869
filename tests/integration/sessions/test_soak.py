"""The native engine under random sessions: whatever a call found cached, restored or evicted, and
whoever left or was switched in between, its greedy tokens are those it gets alone."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from alipes.instance.contract import (
    Cancel,
    Drawn,
    Failed,
    Finished,
    FromInstance,
    InstanceSettings,
    ModelSettings,
    Pool,
    Sampling,
    Snapshot,
    Stop,
    Submit,
    Targets,
    Tokens,
)
from alipes.instance.driver import build_engine
from alipes.instance.loop import EngineLoop
from alipes.instance.scheduler.rounds import RoundScheduler

BLOCK_BYTES = 32768
WITHOUT_KV = 27_760_000
"""Device bytes of the largest tiny model in float32, with its work space."""
DEVICE_BLOCKS, HOST_BLOCKS = 40, 60
CALLS, AGENTS, LONGEST, VOCABULARY = 500, 9, 700, 49_000
NEAR_TIE = 1e-3


class Instance:
    def __init__(self, folders: dict[str, Path], blocks: int, host_blocks: int) -> None:
        models = tuple(ModelSettings(name, str(f), "float32") for name, f in folders.items())
        settings = InstanceSettings(
            name="soak",
            pool=Pool.COLD,
            models=models,
            targets=Targets(ttft=2.0, tpot=0.1),
            endpoint="",
            device_bytes=WITHOUT_KV + blocks * BLOCK_BYTES,
            host_bytes=host_blocks * BLOCK_BYTES,
            prefill_chunk=96,
            threads=1,
        )
        self.drawn: dict[bytes, list[Drawn]] = {}
        self.last: dict[bytes, Finished | Failed] = {}
        self.snapshot: Snapshot | None = None
        self.news = threading.Condition()
        self._engine = build_engine(settings)
        scheduler = RoundScheduler(settings, self._engine.reports, self._engine.host)
        self._loop = EngineLoop(self._engine, scheduler, self._emit, time.monotonic_ns)
        self._thread = threading.Thread(target=self._loop.run)
        self._thread.start()

    def post(self, message: Submit | Cancel) -> None:
        self._loop.post(message)

    def until(self, condition: Callable[[], Any]) -> None:
        with self.news:
            assert self.news.wait_for(condition, 60), "the instance is stuck"

    def close(self) -> None:
        self._loop.post(Stop())
        self._thread.join()
        self._engine.close()

    def _emit(self, message: FromInstance) -> None:
        with self.news:
            if isinstance(message, Tokens):
                for drawn in message.drawn:
                    self.drawn.setdefault(drawn.call_id, []).append(drawn)
            elif isinstance(message, Finished | Failed):
                self.last[message.call_id] = message
            elif isinstance(message, Snapshot):
                self.snapshot = message
            self.news.notify_all()


@dataclass
class Agent:
    """One session on one model; ``ids`` is its conversation up to the call that runs."""

    model: str
    branch: bytes
    ids: list[int]
    call: Submit | None = None
    turns: int = 0


@dataclass
class Soak:
    """Keeps agents calling; ``calls`` are all that were made, ``left`` those given up."""

    instance: Instance
    models: list[str]
    rng: random.Random
    agents: list[Agent] = field(default_factory=list)
    calls: list[Submit] = field(default_factory=list)
    left: set[bytes] = field(default_factory=set)

    def run(self, count: int) -> None:
        beginnings = [self.draw(n) for n in (64, 130, 200)]
        self.agents = [self.agent(beginnings) for _ in range(AGENTS)]
        while len(self.calls) < count:
            index = self.rng.randrange(AGENTS)
            agent = self.agents[index]
            if agent.call is not None:
                self.watch(agent)
            elif len(agent.ids) > LONGEST or self.rng.random() < 0.1:
                self.agents[index] = self.agent(beginnings)
            else:
                self.continue_with(agent)
            time.sleep(self.rng.choice((0.0, 0.0, 0.001, 0.01)))
        self.instance.until(
            lambda: all(c.call_id in self.instance.last or c.call_id in self.left
                        for c in self.calls)
        )  # fmt: skip

    def watch(self, agent: Agent) -> None:
        """Take an answer in, once it is whole; now and then leave before that."""
        assert agent.call is not None
        call_id = agent.call.call_id
        with self.instance.news:
            ended = self.instance.last.get(call_id)
            answer = [drawn.token for drawn in self.instance.drawn.get(call_id, ())]
        if ended is not None:
            assert isinstance(ended, Finished), ended
            agent.ids += answer
            agent.call, agent.turns = None, agent.turns + 1
        elif self.rng.random() < 0.01:
            self.instance.post(Cancel(call_id))
            self.left.add(call_id)
            agent.call = None

    def continue_with(self, agent: Agent) -> None:
        agent.ids += self.draw(self.rng.randrange(1, 90))
        agent.call = Submit(
            call_id=len(self.calls).to_bytes(16, "big"),
            model=agent.model,
            root=bytes(16),
            tokens=np.array(agent.ids, "<i4").tobytes(),
            max_tokens=self.rng.choice((1, 6, 20, 40)),
            sampling=Sampling(temperature=0.0, top_logprobs=2),
            branch=agent.branch,
            continuation=agent.turns > 0,
            final=self.rng.random() < 0.1,
        )
        self.calls.append(agent.call)
        self.instance.post(agent.call)

    def agent(self, beginnings: list[list[int]]) -> Agent:
        ids = self.rng.choice(beginnings)[: self.rng.choice((0, 64, 130, 200))]
        return Agent(self.rng.choice(self.models), self.rng.randbytes(16), ids)

    def draw(self, count: int) -> list[int]:
        return [self.rng.randrange(VOCABULARY) for _ in range(count)]


def test_every_answer_is_the_one_without_a_cache(tiny_folders: dict[str, Path]) -> None:
    busy = Instance(tiny_folders, DEVICE_BLOCKS, HOST_BLOCKS)
    soak = Soak(busy, list(tiny_folders), random.Random(2))
    soak.run(CALLS)
    check_free(busy)
    busy.close()
    alone = Instance(tiny_folders, 200, 1)
    for call in soak.calls:
        if call.call_id not in busy.last:
            continue
        # A root of its own: it finds no block of any other call.
        alone.post(msgspec.structs.replace(call, root=call.call_id, continuation=False))
        alone.until(lambda call=call: call.call_id in alone.last)  # type: ignore[misc]
        same(busy, alone, call.call_id)
    alone.close()


def check_free(busy: Instance) -> None:
    """Nothing is held any more, and the run was what it was meant to be."""

    def idle() -> bool:
        state = busy.snapshot
        return state is not None and not (
            state.counters.live_calls or state.occupancy.held or state.occupancy.host_held
        )

    busy.until(idle)
    assert busy.snapshot is not None
    occupancy, counters = busy.snapshot.occupancy, busy.snapshot.counters
    assert occupancy.free + occupancy.cached == occupancy.total
    assert 0 < occupancy.host_used <= occupancy.host_total
    assert counters.switches > 10
    assert counters.restored_tokens > 0
    assert counters.host_evicted_blocks > 0
    assert counters.checkpointed_blocks > 0
    assert counters.cancelled > 0
    assert counters.resumed > 0
    assert counters.sp_admitted > 0


def same(busy: Instance, alone: Instance, call_id: bytes) -> None:
    """Equal tokens, up to a place where the two best are nearly equal."""
    got, want = busy.drawn.get(call_id, []), alone.drawn.get(call_id, [])
    for mine, theirs in zip(got, want, strict=True):
        if mine.token != theirs.token:
            first, second = theirs.top
            assert first.logprob - second.logprob < NEAR_TIE, (call_id, mine, theirs)
            return
