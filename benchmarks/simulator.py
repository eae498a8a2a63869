"""What a simulated call costs: sessions like the paper's on one cold instance of three models.

Everything a call touches is simulated: its client, the session table, router, scheduler, host KV,
staging and events, at two sizes of a KV block and in four configurations; then growing numbers of
calls, and beside each the bare loop of any event simulator, which pushes and pops as many events
on a heap and does nothing else. Times are those of the processor, of one thread: what it takes on
a core of its own, whatever else the machine does.
"""

from __future__ import annotations

import heapq
import resource
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from common import Claim, arguments, at_least, write_report
from msgspec import structs

from alipes.replay.sim.build import Fleet, build
from alipes.replay.sim.hardware import load_hardware
from alipes.replay.sim.scenario import InstanceSpec, Load, Setup
from alipes.replay.stats import nearest_rank
from alipes.replay.traces.form import Session
from alipes.replay.traces.synth.swebench import swebench

HARDWARE: Final = "b200-tp8"
MODELS: Final = ("qwen3-235b", "glm5-nvfp4", "qwen3.5-122b-a10b")
CONCURRENCY: Final = 30
SEED: Final = 1
COARSE: Final = 256
"""Tokens a block at which many calls are simulated."""
CONFIGURATIONS: Final[Mapping[str, Mapping[str, bool]]] = {
    "all on": {},
    "no session-prefill": {"session_prefill": False},
    "no host KV": {"host_kv": False},
    "round only": {"session_prefill": False, "host_kv": False, "staging": False},
}
MILLISECONDS: Final = 1.0
EXPONENT: Final = 1.1
MEMORY_MB: Final = 2000.0
RATE: Final = 1000.0
KEYS: Final = ("configuration", "block", "calls")
PARTS: Final = {
    "simulator: what a call takes": (*KEYS, "ms a call", "slowest", "calls/s", "events a call"),
    "simulator: beside a bare event loop, and memory": (
        *KEYS,
        "bare us a call",
        "times the bare loop",
        "virtual s",
        "peak RSS MB",
    ),
}


@dataclass(frozen=True, slots=True)
class Size:
    """Configurations are run for ``few`` calls ``repeats`` times each, then all mechanisms for as
    many calls as ``growth`` says."""

    few: int
    repeats: int
    blocks: tuple[int, ...]
    configurations: tuple[str, ...]
    growth: tuple[int, ...]


FULL = Size(1000, 3, (64, COARSE), tuple(CONFIGURATIONS), (1000, 3000, 10_000, 30_000, 100_000))
QUICK = Size(1000, 1, (64, COARSE), ("all on", "round only"), (1000, 3000, 10_000))


def main() -> int:
    options = arguments(__doc__ or "").parse_args()
    size = QUICK if options.quick else FULL
    trace = swebench(SEED, size.growth[-1] // 20, MODELS).sessions
    few = first(trace, size.few)
    rows = [
        measure(name, block, few, size.repeats)
        for name in size.configurations
        for block in size.blocks
    ]
    grown = [measure("all on", COARSE, first(trace, calls), 1) for calls in size.growth]
    notes = {"hardware": HARDWARE, "prompt_tokens": prompts(few), "concurrency": CONCURRENCY}
    return write_report("simulator", [*rows, *grown], claims_of(grown), options.json, notes, PARTS)


def first(sessions: Sequence[Session], calls: int) -> list[Session]:
    """As many sessions as have so many calls together."""
    chosen: list[Session] = []
    for session in sessions:
        if calls <= 0:
            break
        chosen.append(session)
        calls -= count([session])
    return chosen


def count(sessions: Sequence[Session]) -> int:
    return sum(len(branch.calls) for session in sessions for branch in session.branches)


def prompts(sessions: Sequence[Session]) -> dict[str, int]:
    lengths = [c.prompt for session in sessions for b in session.branches for c in b.calls]
    return {f"p{rank}": int(nearest_rank(lengths, rank)) for rank in (50, 95)}


# --- measuring ---------------------------------------------------------------------------------


def measure(
    name: str, block_tokens: int, sessions: Sequence[Session], repeats: int
) -> dict[str, Any]:
    """The median of ``repeats`` runs."""
    seconds: list[float] = []
    for _ in range(repeats):
        hardware = structs.replace(load_hardware(HARDWARE), block_tokens=block_tokens)
        fleet = Fleet(hardware, Setup(**CONFIGURATIONS[name]), (InstanceSpec(MODELS),))
        cluster = build(fleet, sessions, Load(concurrency=CONCURRENCY), SEED, 0)
        begin = time.process_time()
        cluster.run()
        seconds.append(time.process_time() - begin)
    calls, events = len(cluster.records), cluster.clock.events
    if calls != count(sessions) or any(record.error for record in cluster.records):
        raise SystemExit(f"{name}: not all of {count(sessions)} calls were served")
    median, bare = statistics.median(seconds), bare_loop(events)
    return {
        "configuration": name,
        "block": block_tokens,
        "calls": calls,
        "ms a call": round(median / calls * 1e3, 3),
        "slowest": round(max(seconds) / calls * 1e3, 3),
        "calls/s": round(calls / median),
        "events a call": round(events / calls, 1),
        "bare us a call": round(bare / calls * 1e6, 2),
        "times the bare loop": round(median / bare),
        "virtual s": round(cluster.clock.now / 1e9),
        "peak RSS MB": round(peak_memory()),
    }


def bare_loop(events: int) -> float:
    """Seconds that a heap of events takes for so many, with one in it for each session."""
    times = np.random.default_rng(SEED).exponential(1.0, events).tolist()
    queue = [(0.0, number) for number in range(CONCURRENCY)]
    begin = time.process_time()
    for number, gap in enumerate(times):
        now, _ = heapq.heappop(queue)
        heapq.heappush(queue, (now + gap, number))
    return time.process_time() - begin


def peak_memory() -> float:
    """MB this process has held at most."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1e6 if sys.platform == "darwin" else 1e3)


# --- claims ------------------------------------------------------------------------------------


def claims_of(grown: Sequence[Mapping[str, Any]]) -> list[Claim]:
    calls = [row["calls"] for row in grown]
    seconds = [row["calls"] * row["ms a call"] / 1e3 for row in grown]
    exponent = float(np.polyfit(np.log(calls), np.log(seconds), 1)[0])
    slowest = max(row["ms a call"] for row in grown)
    memory = max(row["peak RSS MB"] for row in grown)
    span = f"from {calls[0]:,} to {calls[-1]:,} calls"
    return [
        at_most(f"a simulated call, {span}, blocks of {COARSE}", slowest, "ms", MILLISECONDS),
        at_least("simulated calls a second", 1e3 / slowest, "1/s", RATE),
        at_most(f"time grows {span} with their number to the power of", exponent, "", EXPONENT),
        at_most("peak memory", memory, "MB", MEMORY_MB),
    ]


def at_most(name: str, value: float, unit: str, target: float) -> Claim:
    return Claim(name, value, unit, f"<= {target:g}", value <= target)


if __name__ == "__main__":
    sys.exit(main())
