"""The native engine under random sessions: whatever a call found cached, restored or evicted, and
whoever left or was switched in between, its greedy tokens are those it gets alone."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
import psutil
import pytest

from alipes.instance.contract import (
    Cancel,
    Finished,
    Sampling,
    Submit,
)

from .native_instance import BLOCK_BYTES, Instance

FAMILIES = ("llama", "qwen3-moe", "deepseek-v3", "qwen3-next")
DEVICE_BLOCKS, HOST_BLOCKS = 40, 60
CALLS, AGENTS, LONGEST, VOCABULARY = 250, 9, 700, 49_000
SWITCHES = 2_000
GROWTH_BYTES = 24 << 20
"""What the allocator of a process may keep or give back from one moment to another."""
NEAR_TIE = 1e-3


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
    """Keeps agents calling; ``calls`` are those of this run, ``left`` all that were given
    up."""

    instance: Instance
    models: list[str]
    rng: random.Random
    agents: list[Agent] = field(default_factory=list)
    calls: list[Submit] = field(default_factory=list)
    left: set[bytes] = field(default_factory=set)

    def run(self, count: int) -> list[Submit]:
        """So many calls more, to their ends, with all that was said taken in."""
        beginnings = [self.draw(n) for n in (64, 130, 200)]
        self.agents = self.agents or [self.agent(beginnings) for _ in range(AGENTS)]
        self.calls = []
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
        for agent in self.agents:
            if agent.call is not None:
                self.watch(agent)
        return self.calls

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
            call_id=self.rng.randbytes(16),
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
    folders = {family: tiny_folders[family] for family in FAMILIES}
    busy = instance(folders)
    soak = Soak(busy, list(folders), random.Random(2))
    calls = soak.run(CALLS)
    check_free(busy)
    busy.close()
    alone = Instance(folders, 200, host_bytes=1, max_running=8)
    check_answers(busy, alone, calls)
    alone.close()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_thousands_of_switches_leave_memory_as_it_is(tiny_folders: dict[str, Path]) -> None:
    folders = {family: tiny_folders[family] for family in FAMILIES}
    busy, alone = instance(folders), Instance(folders, 200, host_bytes=1, max_running=8)
    soak = Soak(busy, list(folders), random.Random(3))
    memory: list[int] = []
    while busy.snapshot is None or busy.snapshot.counters.switches < SWITCHES:
        check_answers(busy, alone, soak.run(100))
        # What was said is forgotten here: what then grows is the instance.
        for one in (busy, alone):
            one.last.clear()
            one.drawn.clear()
        memory.append(psutil.Process().memory_info().rss)
    check_free(busy)
    # Before, the libraries still prepare their products of ever rarer widths.
    assert memory[-1] - memory[3 * len(memory) // 4] < GROWTH_BYTES
    busy.close()
    alone.close()


def instance(folders: dict[str, Path]) -> Instance:
    return Instance(
        folders,
        DEVICE_BLOCKS,
        host_bytes=HOST_BLOCKS * BLOCK_BYTES,
        prefill_chunk=96,
        max_running=8,
    )


def check_answers(busy: Instance, alone: Instance, calls: list[Submit]) -> None:
    for call in calls:
        if call.call_id not in busy.last:
            continue
        # A root of its own: it finds no block of any other call.
        alone.post(msgspec.structs.replace(call, root=call.call_id, continuation=False))
        alone.until_ended(call.call_id)
        same(busy, alone, call.call_id)


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
    assert counters.yielded_blocks > 0


def same(busy: Instance, alone: Instance, call_id: bytes) -> None:
    """Equal tokens, up to a place where the two best are nearly equal."""
    got, want = busy.drawn.get(call_id, []), alone.drawn.get(call_id, [])
    for mine, theirs in zip(got, want, strict=True):
        if mine.token != theirs.token:
            first, second = theirs.top
            assert first.logprob - second.logprob < NEAR_TIE, (call_id, mine, theirs)
            return
