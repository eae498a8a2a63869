"""``putnam-like``: decode-heavy proving, after what Evolving Infra publishes of its Putnam runs."""

from __future__ import annotations

from typing import Final

import numpy as np

from alipes.replay.traces.form import Session, Span, Trace, stream_id
from alipes.replay.traces.synth.branches import BranchBuilder
from alipes.replay.traces.synth.distributions import LogNormal, generator, scores, whole
from alipes.replay.traces.synth.numbers import Assumed, Number, Published

NAME: Final = "putnam-like"
DEFAULT: Final = 288  # sessions, as many as the most agents of Evolving Infra 6.1

HIT_RATE: Final = Published(
    0.990, "Evolving Infra Table C.1: KV hit rate over one minus lost reuse, with unlimited cache"
)
BRANCHES: Final = Published(1, "Evolving Infra 6.1: one branch a problem, no context management")

OUTPUT_P50: Final = Assumed(
    1_200,
    "tokens; 'a long reasoning trace' (2.1) within the 25 s a call and its pause take "
    "(224 agents at 8.81 calls/s, D.1 and Eq. C.1)",
)
OUTPUT_P95: Final = Assumed(6_000, OUTPUT_P50.reason)
RESULT_P50: Final = Assumed(150, "tokens; messages of the Lean compiler, mostly a few lines")
RESULT_P95: Final = Assumed(1_000, RESULT_P50.reason)
GAP_P50: Final = Assumed(5.0, "seconds; Lean loads Mathlib and checks a proof")
GAP_P95: Final = Assumed(30.0, GAP_P50.reason)
DEPTH_P50: Final = Assumed(15.5, "calls a session; the other numbers and the hit rate imply it")
DEPTH_SPREAD: Final = Assumed(0.6, "log standard deviation of depth: easy and hard problems")
DEPTH_MAX: Final = Assumed(100, "calls a session; an agent's step limit")
SYSTEM: Final = Assumed(1_500, "tokens; mini-SWE-agent's prompt and rules, shared by all sessions")
PROBLEM: Final = Assumed(500, "tokens; a statement in words and in Lean")

NUMBERS: Final[dict[str, Number]] = {
    "hit rate": HIT_RATE,
    "branches": BRANCHES,
    "output p50": OUTPUT_P50,
    "output p95": OUTPUT_P95,
    "result p50": RESULT_P50,
    "result p95": RESULT_P95,
    "gap p50": GAP_P50,
    "gap p95": GAP_P95,
    "depth p50": DEPTH_P50,
    "depth spread": DEPTH_SPREAD,
    "depth max": DEPTH_MAX,
    "system prompt": SYSTEM,
    "problem": PROBLEM,
}

_OUTPUT: Final = LogNormal.through(OUTPUT_P50.value, OUTPUT_P95.value)
_RESULT: Final = LogNormal.through(RESULT_P50.value, RESULT_P95.value)
_GAP: Final = LogNormal.through(GAP_P50.value, GAP_P95.value)


def putnam_like(seed: int = 1, sessions: int = DEFAULT, models: tuple[str, ...] = ()) -> Trace:
    """Sessions of one problem each, given to ``models`` in turn (none: the replay says)."""
    rng = generator(seed, NAME)
    distribution = LogNormal(DEPTH_P50.value, DEPTH_SPREAD.value)
    depth = whole(distribution.of(scores(rng, sessions)), high=int(DEPTH_MAX.value))
    made = [
        _session(rng, seed, i, calls, models[i % len(models)] if models else "")
        for i, calls in enumerate(depth.tolist())
    ]
    return Trace(f"synthetic {NAME}, seed {seed}", tuple(made))


def _session(rng: np.random.Generator, seed: int, number: int, calls: int, model: str) -> Session:
    outputs = whole(_OUTPUT.draw(rng, calls)).tolist()
    results = whole(_RESULT.draw(rng, calls)).tolist()
    gaps = np.round(_GAP.draw(rng, calls), 3).tolist()
    system = Span(stream_id(NAME, "system"), 0, int(SYSTEM.value))
    problem = Span(stream_id(NAME, "task", seed, number), 0, int(PROBLEM.value))
    builder = BranchBuilder()
    builder.begin((system, problem), outputs[0])
    for i in range(1, calls):
        builder.extend((builder.local(results[i]),), outputs[i], gaps[i])
    return Session(f"{NAME}-{seed}-{number:04}", (builder.branch(),), model)
