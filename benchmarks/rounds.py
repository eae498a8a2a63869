"""What session continuity is worth on one cold instance: nine agent sessions over three models.

Each configuration replays the same calls against a whole stack with the native engine, in a
closed loop with the tool gaps that Talaria measured (2.1). The baseline, round-only, has neither
session-prefill nor host KV; all others have the slot length that served it best of a sweep, and
but for the first lack one mechanism each. What the claim compares is run forth and back, so that a
drift of the machine's speed falls on both. SCT ratios are paired by session.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from agents import Shape, sessions
from common import Claim, arguments, at_least, write_report
from paired import paired_ratios, session_ratio
from stack import settled, stack

from alipes.cli.stack import play
from alipes.instance.checkpoints.sources import prepare
from alipes.instance.contract import RandomWeights
from alipes.replay.plan import PlannedSession
from alipes.replay.records import CallRecord
from alipes.replay.stats import nearest_rank

MODELS = {"llama": "llama", "qwen3": "qwen3", "qwen3-moe": "qwen3-moe"}
THREADS = 1
"""A second one would be twice as slow whenever anything else runs on a small machine."""
SEED = 7
PARTS = {
    "rounds: seconds; ratios of SCT to the best round-only, paired by session": (
        "configuration",
        "SCT p50",
        "SCT p95",
        "ratio p50",
        "ratio p95",
        "TTFT p50",
        "TTFT p95",
    ),
    "rounds: what the instance did, a run": (
        "configuration",
        "cached %",
        "restores",
        "restored",
        "SP in",
        "SP parked",
        "lingered s",
        "switches",
        "switch %",
        "wall s",
    ),
}


@dataclass(frozen=True, slots=True)
class Size:
    """How much is run: sessions a model, their shape, the slot lengths tried for the baseline
    (as shares of a round that switches may take), and whether the single mechanisms are measured
    and the claim a second time."""

    per_model: int
    shape: Shape
    shares: tuple[float, ...]
    whole: bool


FULL = Size(3, Shape((5, 5), (4000, 4500), (400, 700), (20, 50)), (0.4, 0.1, 0.02), True)
QUICK = Size(2, Shape((6, 6), (1200, 1400), (40, 80), (6, 12)), (0.1, 0.02), False)


@dataclass(frozen=True, slots=True)
class Configuration:
    name: str
    session_prefill: bool
    host_kv: bool
    switch_share: float

    def cluster(self) -> dict[str, Any]:
        """The cluster file: three random models in float32, the mode that is exact."""
        sources = {
            name: {"source": {"random": {"family": family, "size": "small"}}, "dtype": "float32"}
            for name, family in MODELS.items()
        }
        cold = {
            "pool": "cold",
            "models": list(MODELS),
            "device_bytes": "1GiB",
            "host_bytes": "2GiB",
            "threads": THREADS,
            "switch_share": self.switch_share,
        }
        on = {"session_prefill": self.session_prefill, "host_kv": self.host_kv}
        return {
            "models": sources,
            "instances": {"cold-0": cold},
            "gateway": {"allow_forced_tokens": True},
            "ablations": on,
        }


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run: its calls, the instance's counters at the end, wall seconds."""

    records: tuple[CallRecord, ...]
    counters: dict[str, Any]
    sct: dict[str, float]
    seconds: float


@dataclass(frozen=True, slots=True)
class Runs:
    """What each configuration did; the claim compares ``ours`` with ``best``, the baseline."""

    outcomes: dict[Configuration, list[Outcome]]
    best: Configuration
    ours: Configuration


def configurations(share: float) -> tuple[Configuration, ...]:
    """All mechanisms, and each one left out, with slots of one length."""
    return (
        Configuration("all mechanisms", True, True, share),
        Configuration("no session-prefill", False, True, share),
        Configuration("no host KV", True, False, share),
    )


def round_only(share: float) -> Configuration:
    return Configuration(f"round-only, {share:g}", False, False, share)


def main() -> int:
    options = arguments(__doc__ or "").parse_args()
    size = QUICK if options.quick else FULL
    cache = Path(os.environ.get("ALIPES_CACHE", "~/.cache/alipes")).expanduser()
    folder = prepare(RandomWeights("llama", "small"), cache, lambda *_: None)
    plan = sessions(tuple(MODELS), size.per_model, size.shape, folder, SEED)
    with tempfile.TemporaryDirectory(prefix="alipes-rounds-") as name:
        runs = measure(size, plan, Path(name))
    base = runs.outcomes[runs.best]
    rows = [row(one, outcomes, base) for one, outcomes in runs.outcomes.items()]
    wrong = [*differing(runs.outcomes.values()), *miscounted(runs.outcomes)]
    for line in wrong:
        print(line)
    claims = [
        *speedups(runs),
        Claim("outputs or counters that differ", len(wrong), "", "== 0", not wrong),
    ]
    return write_report("rounds", rows, claims, options.json, notes(size, plan), PARTS)


# --- running -----------------------------------------------------------------------------------


def measure(size: Size, plan: Sequence[PlannedSession], work: Path) -> Runs:
    """The sweep, and everything else with the slots that served the baseline best."""
    runs: dict[Configuration, list[Outcome]] = defaultdict(list)

    def take(configuration: Configuration) -> None:
        folder = work / f"run{sum(map(len, runs.values()))}"
        runs[configuration].append(run(configuration, plan, folder))

    sweep = [round_only(share) for share in size.shares]
    for configuration in sweep:
        take(configuration)
    best = min(sweep, key=lambda one: nearest_rank(runs[one][0].sct.values(), 50) or 0.0)
    ours, *ablations = configurations(best.switch_share)
    take(ours)
    if size.whole:
        for configuration in (*ablations, ours, best):
            take(configuration)
    return Runs(dict(runs), best, ours)


def run(configuration: Configuration, plan: Sequence[PlannedSession], work: Path) -> Outcome:
    with stack(work, configuration.cluster()) as serving:
        done = play(serving.url, plan)
        counters = settled(serving)["cold-0"]["counters"]
    summary = done.summary()
    sct = {one.session: one.sct for one in summary.sessions if one.sct is not None}
    return Outcome(tuple(done.records), counters, sct, summary.seconds)


# --- judging -----------------------------------------------------------------------------------


def speedups(runs: Runs) -> list[Claim]:
    base, ours = (by_session(runs.outcomes[one]) for one in (runs.best, runs.ours))
    p50 = session_ratio(base, ours, 50)
    better = int((paired_ratios(base, ours) > 1).sum())
    return [
        at_least(
            "paired SCT ratio to round-only, p50 (our target 2; the paper: 5.3)", p50.value, "x", 2
        ),
        at_least(
            f"sessions of {len(ours)} that are faster (the paper: 29 of 30)",
            better,
            "",
            len(ours) * 29 // 30,
        ),
    ]


def by_session(outcomes: Sequence[Outcome]) -> dict[str, list[float]]:
    return {name: [outcome.sct[name] for outcome in outcomes] for name in outcomes[0].sct}


def differing(runs: Iterable[Sequence[Outcome]]) -> list[str]:
    """Calls whose text was not the same in all runs; the last one of a session is drawn."""
    seen: dict[str, set[str]] = defaultdict(set)
    for outcomes in runs:
        for outcome in outcomes:
            for record in outcome.records:
                seen[record.request_id].add(record.output)
    return [
        f"{name}: {len(texts)} different texts" for name, texts in seen.items() if len(texts) > 1
    ]


def miscounted(runs: Mapping[Configuration, Sequence[Outcome]]) -> list[str]:
    """Where the instance's counters are not what its clients saw."""
    found = []
    for configuration, outcomes in runs.items():
        for outcome in outcomes:
            for name, (counted, seen) in sums(outcome).items():
                if counted != seen:
                    found.append(f"{configuration.name}: {name} {counted}, clients saw {seen}")
    return found


def sums(outcome: Outcome) -> dict[str, tuple[int, int]]:
    """What the instance counted beside what the calls add up to. Calls that gave way to others
    are computed twice."""
    counters, records = outcome.counters, outcome.records
    prompt = sum(record.prompt_tokens or 0 for record in records)
    cached = sum(record.cached_tokens or 0 for record in records)
    pairs = {
        "finished": (counters["finished"], len(records)),
        "live_calls": (counters["live_calls"], 0),
        "decode_tokens": (
            counters["decode_tokens"],
            sum(record.completion_tokens or 0 for record in records),
        ),
    }
    if not counters["preempted"]:
        pairs["cached_tokens"] = (counters["cached_tokens"], cached)
        pairs["prefill_tokens"] = (counters["prefill_tokens"], prompt - cached)
    return pairs


# --- telling -----------------------------------------------------------------------------------


def row(
    configuration: Configuration, outcomes: Sequence[Outcome], base: Sequence[Outcome]
) -> dict[str, Any]:
    records = [record for outcome in outcomes for record in outcome.records]
    sct = [seconds for outcome in outcomes for seconds in outcome.sct.values()]
    ttft = [record.ttft for record in records if record.ttft is not None]
    ours, theirs = by_session(outcomes), by_session(base)

    def mean(name: str) -> float:
        return sum(float(outcome.counters[name]) for outcome in outcomes) / len(outcomes)

    wall = sum(outcome.seconds for outcome in outcomes) / len(outcomes)
    prompt = sum(record.prompt_tokens or 0 for record in records)
    return {
        "configuration": configuration.name,
        "runs": len(outcomes),
        "SCT p50": nearest_rank(sct, 50),
        "SCT p95": nearest_rank(sct, 95),
        "ratio p50": str(session_ratio(theirs, ours, 50)),
        "ratio p95": str(session_ratio(theirs, ours, 95)),
        "TTFT p50": nearest_rank(ttft, 50),
        "TTFT p95": nearest_rank(ttft, 95),
        "cached %": 100 * sum(record.cached_tokens or 0 for record in records) / prompt,
        "restores": mean("restores"),
        "restored": mean("restored_tokens"),
        "SP in": mean("sp_admitted"),
        "SP parked": mean("sp_parked"),
        "switches": mean("switches"),
        "switch %": 100 * mean("switch_seconds") / wall,
        "lingered s": mean("lingered_seconds"),
        "wall s": wall,
    }


def notes(size: Size, plan: Sequence[PlannedSession]) -> dict[str, Any]:
    gaps = [call.gap for session in plan for call in session.recorded.branches[0].calls]
    return {
        "threads": THREADS,
        "sessions": len(plan),
        "calls": len(gaps),
        "gap_p50": median(gaps),
        "gap_p95": nearest_rank(gaps, 95),
        "shares": list(size.shares),
    }


if __name__ == "__main__":
    sys.exit(main())
