"""Where calls go, and what that is worth: three models on two cold instances.

Three placement policies serve the same agent sessions at three offered loads, then the full router
with leases of different lengths. Gateway, links and instances are real processes; the engine is
the fake one, whose work takes the times stated below, so that only placement differs.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from agents import Shape, sessions, with_gaps
from common import Claim, arguments, write_report
from gateway_stacks import long_context_folder
from paired import BySession, percentile_ratio, session_ratio
from stack import settled, stack

from alipes.cli.stack import play
from alipes.instance.contract import Targets
from alipes.replay.plan import PlannedSession
from alipes.replay.stats import nearest_rank

MODELS: Final = ("a", "b", "c")
COSTS: Final = {"prefill_token": 5e-5, "step": 0.015, "switch": 0.5, "restore_token": 2e-6}
"""Assumed, in seconds, near what a model of 32 billion parameters in 16 bits takes on four
accelerators (the models of Talaria 5.3): 20,000 prompt tokens a second; decode that reads 16 GB of
weights an accelerator at some 1 TB/s; 64 GB of weights over four links at some 32 GB/s; state of
256 KB a token over the same links."""
POLICIES: Final = ("least-pressure", "session-sticky", "residency")
FULL_ROUTER, BASE = "residency", "least-pressure"
DEFAULT_LEASE: Final = 1.0
SEED: Final = 11
KEYS: Final = ("load", "policy", "lease s")
PARTS: Final = {
    "routing: where calls went": (
        *KEYS,
        "avoidable opens",
        "opens",
        "switches",
        "same instance %",
        "model resident %",
        "unused leases %",
    ),
    "routing: session completion in seconds, paired ratio of least-pressure's": (
        *KEYS,
        "SCT p50",
        "SCT p95",
        "SCT ratio p50",
        "sessions at once",
    ),
    "routing: TTFT in seconds, p95 over least-pressure's": (
        *KEYS,
        "TTFT p50",
        "TTFT p95",
        "p95 to base",
        "returning p50",
        "returning p95",
    ),
}


@dataclass(frozen=True, slots=True)
class Size:
    """``loads`` are sessions that begin a second; ``leases`` are swept at the load named. All
    times, those of the tools, the targets and the leases too, are divided by ``speed``, and what
    is measured is multiplied by it."""

    per_model: int
    loads: Mapping[str, float]
    leases: tuple[float, ...]
    lease_load: str
    speed: float


SHAPE = Shape((4, 4), (6000, 10_000), (300, 1500), (15, 40))
FULL = Size(8, {"low": 0.6, "medium": 1.5, "high": 4.0}, (0, 0.5, 1, 2, 5), "medium", 1.0)
QUICK = Size(8, {"high": 4.0}, (0, 1), "high", 4.0)


@dataclass(frozen=True, slots=True)
class Setting:
    """One run: a policy at a load; leases of so many seconds, none at 0."""

    policy: str
    load: str
    lease: float

    def cluster(self, folder: Path, speed: float) -> dict[str, Any]:
        cold = {
            "pool": "cold",
            "models": list(MODELS),
            "engine": "fake",
            "device_bytes": "800MiB",
            "host_bytes": "4GiB",
            "prefill_chunk": 4096,
            "fake": {name: seconds / speed for name, seconds in COSTS.items()},
        }
        targets = Targets()
        return {
            "models": {name: {"source": str(folder)} for name in MODELS},
            "instances": {"cold-0": cold, "cold-1": cold},
            "gateway": {"allow_forced_tokens": True},
            "targets": {"ttft": targets.ttft / speed, "tpot": targets.tpot / speed},
            "routing": {"lease_seconds": (self.lease or DEFAULT_LEASE) / speed},
            "ablations": {"leases": self.lease > 0},
        }


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run: TTFT of each session's calls in their order, SCT of each session, what the router
    counted, switches of both instances."""

    ttft: BySession
    sct: dict[str, float]
    counts: dict[str, int]
    leases: dict[str, int]
    switches: int
    seconds: float


def main() -> int:
    options = arguments(__doc__ or "").parse_args()
    size = QUICK if options.quick else FULL
    with tempfile.TemporaryDirectory(prefix="alipes-routing-") as name:
        outcomes = measure(size, Path(name))
    rows = [row(setting, outcome, outcomes) for setting, outcome in outcomes.items()]
    notes = {
        "fake_costs": COSTS,
        "sessions": size.per_model * len(MODELS),
        "loads": size.loads,
        "speed": size.speed,
    }
    claims = claims_of(size, outcomes)
    return write_report("routing", rows, claims, options.json, notes, PARTS)


# --- running -----------------------------------------------------------------------------------


def settings(size: Size) -> list[Setting]:
    """Every policy at every load, then the lease times that remain."""
    policies = [
        Setting(policy, load, DEFAULT_LEASE if policy == FULL_ROUTER else 0.0)
        for load in size.loads
        for policy in POLICIES
    ]
    sweep = [Setting(FULL_ROUTER, size.lease_load, lease) for lease in size.leases]
    return list(dict.fromkeys([*policies, *sweep]))


def measure(size: Size, work: Path) -> dict[Setting, Outcome]:
    folder = long_context_folder(work)
    plan = sessions(MODELS, size.per_model, SHAPE, folder, SEED)
    outcomes = {}
    for number, setting in enumerate(settings(size)):
        arriving = begin_at_rate(plan, size.loads[setting.load], size.speed)
        outcomes[setting] = run(setting, arriving, work / f"run{number}", folder, size.speed)
    return outcomes


def begin_at_rate(
    plan: Sequence[PlannedSession], rate: float, speed: float
) -> list[PlannedSession]:
    """The sessions in an order drawn from the seed, beginning as a Poisson process."""
    rng = np.random.default_rng(SEED)
    order, begin, arriving = rng.permutation(len(plan)), 0.0, []
    for place in order:
        _, *gaps = (call.gap for call in plan[place].recorded.branches[0].calls)
        arriving.append(with_gaps(plan[place], [gap / speed for gap in (begin, *gaps)]))
        begin += float(rng.exponential(1 / rate))
    return arriving


def run(
    setting: Setting, plan: Sequence[PlannedSession], work: Path, folder: Path, speed: float
) -> Outcome:
    script = Path(__file__).with_name("policy_gateway.py")
    command = (sys.executable, "-P", str(script), setting.policy)
    with stack(work, setting.cluster(folder, speed), command) as serving:
        done = play(serving.url, plan)
        admin, shown = serving.admin(), settled(serving)
    ttft: dict[str, list[float]] = {}
    for record in sorted(done.records, key=lambda record: record.index):
        if record.ttft is not None:
            ttft.setdefault(record.session, []).append(record.ttft * speed)
    summary = done.summary()
    return Outcome(
        ttft=ttft,
        sct={one.session: one.sct * speed for one in summary.sessions if one.sct is not None},
        counts=admin["placements"],
        leases=admin["leases"],
        switches=sum(one["counters"]["switches"] for one in shown.values()),
        seconds=summary.seconds * speed,
    )


# --- judging and telling -----------------------------------------------------------------------


def row(setting: Setting, outcome: Outcome, outcomes: Mapping[Setting, Outcome]) -> dict[str, Any]:
    base = outcomes.get(replace(setting, policy=BASE, lease=0.0))
    ttft = [value for values in outcome.ttft.values() for value in values]
    back = [value for values in outcome.ttft.values() for value in values[1:]]
    counts, leases = outcome.counts, outcome.leases
    return {
        "load": setting.load,
        "policy": setting.policy,
        "lease s": setting.lease,
        "avoidable opens": counts["avoidable_opens"],
        "opens": counts["opens"],
        "switches": outcome.switches,
        "same instance %": percent(counts["same_instance"], counts["returns"]),
        "model resident %": percent(counts["placed"] - counts["opens"], counts["placed"]),
        "SCT p50": nearest_rank(outcome.sct.values(), 50),
        "SCT p95": nearest_rank(outcome.sct.values(), 95),
        "SCT ratio p50": str(session_ratio(single(base.sct), single(outcome.sct), 50))
        if base
        else "",
        "TTFT p50": nearest_rank(ttft, 50),
        "TTFT p95": nearest_rank(ttft, 95),
        "p95 to base": str(percentile_ratio(outcome.ttft, base.ttft, 95)) if base else "",
        "returning p50": nearest_rank(back, 50),
        "returning p95": nearest_rank(back, 95),
        "unused leases %": percent(leases["expired"] + leases["discarded"], leases["installed"]),
        "sessions at once": sum(outcome.sct.values()) / outcome.seconds,
    }


def single(values: Mapping[str, float]) -> BySession:
    return {name: [value] for name, value in values.items()}


def percent(part: int, whole: int) -> float:
    return 100 * part / whole if whole else 0.0


def claims_of(size: Size, outcomes: Mapping[Setting, Outcome]) -> list[Claim]:
    claims = []
    for load in size.loads:
        full = outcomes[Setting(FULL_ROUTER, load, DEFAULT_LEASE)]
        base = outcomes[Setting(BASE, load, 0.0)]
        if load == "high":
            claims.append(fewer_opens(full, base))
        if load != "low":
            claims += faster_first_tokens(load, full, base)
    return claims


def fewer_opens(full: Outcome, base: Outcome) -> Claim:
    mine, theirs = full.counts["avoidable_opens"], base.counts["avoidable_opens"]
    name = "avoidable opens at high load (the paper: 37 to 1)"
    return Claim(name, mine, "", f"< least-pressure's {theirs}", mine < theirs)


def faster_first_tokens(load: str, full: Outcome, base: Outcome) -> list[Claim]:
    """The median is lower; the tail is not higher, as far as the interval can tell."""
    middle, tail = (percentile_ratio(full.ttft, base.ttft, percent) for percent in (50, 95))
    of = f"to least-pressure's, {load} load"
    paper = {"medium": "the paper: 0.22", "high": "our target"}[load]
    return [
        Claim(f"TTFT p50 {of} ({paper})", middle.value, "x", "< 1", middle.value < 1),
        Claim(
            f"TTFT p95 {of}, {tail} (our target)",
            tail.value,
            "x",
            "interval down to <= 1",
            tail.low <= 1,
        ),
    ]


if __name__ == "__main__":
    sys.exit(main())
