"""``osworld-like``: prefill-heavy computer use with sub-agents, after what Evolving Infra publishes
of its OSWorld runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from alipes.replay.traces.form import (
    MAIN,
    Branch,
    Session,
    Span,
    Trace,
    Wait,
    reply_stream,
    stream_id,
)
from alipes.replay.traces.synth.branches import BranchBuilder
from alipes.replay.traces.synth.distributions import LogNormal, generator, whole
from alipes.replay.traces.synth.numbers import Assumed, Number, Published

NAME: Final = "osworld-like"
DEFAULT: Final = 160  # sessions, as many as the most agents of Evolving Infra 6.1

HIT_RATE: Final = Published(
    0.940, "Evolving Infra Table C.1: KV hit rate over one minus lost reuse, with unlimited cache"
)
SCREENSHOTS: Final = Published(1, "Evolving Infra 6.1: a screenshot is appended at every step")

SCREENSHOT: Final = Assumed(
    1_372,
    "tokens; 1366 x 768, to which Anthropic's computer-use agent scales, in patches of 14 "
    "pixels merged two by two: 49 x 28",
)
TEXT: Final = Assumed(30, "tokens beside a screenshot: the tool's one line")
OUTPUT_P50: Final = Assumed(
    110,
    "tokens; a thought and an action, within the 2.6 s by which mean latency exceeds mean "
    "TTFT on one decode node (D.1)",
)
OUTPUT_P95: Final = Assumed(400, OUTPUT_P50.reason)
GAP_P50: Final = Assumed(2.5, "seconds; the agent waits 2 s after an action for its screenshot")
GAP_P95: Final = Assumed(8.0, "seconds; programs start, pages load")
DEPTH_P50: Final = Assumed(18.2, "calls of a main branch; the hit rate implies it")
SUB_DEPTH_P50: Final = Assumed(9.0, "calls of a sub-agent: part of a task, half as deep")
DEPTH_SPREAD: Final = Assumed(0.6, "log standard deviation of depth: short and long tasks")
DEPTH_MAX: Final = Assumed(100, "calls a branch; an agent's step limit")
SUB_AGENTS: Final = Assumed(
    0.5,
    "share of sessions that spawn sub-agents, one to three at once; 6.1 says 'multi-agent' only",
)
MOST_SUB_AGENTS: Final = Assumed(3, SUB_AGENTS.reason)
SYSTEM: Final = Assumed(3_000, "tokens; instructions and tool schemas, shared by all sessions")
TASK: Final = Assumed(200, "tokens; what the user, or the main agent, asks for")

NUMBERS: Final[dict[str, Number]] = {
    "hit rate": HIT_RATE,
    "screenshots": SCREENSHOTS,
    "screenshot": SCREENSHOT,
    "text": TEXT,
    "output p50": OUTPUT_P50,
    "output p95": OUTPUT_P95,
    "gap p50": GAP_P50,
    "gap p95": GAP_P95,
    "depth p50": DEPTH_P50,
    "sub-agent depth p50": SUB_DEPTH_P50,
    "depth spread": DEPTH_SPREAD,
    "depth max": DEPTH_MAX,
    "sub-agents": SUB_AGENTS,
    "most sub-agents": MOST_SUB_AGENTS,
    "system prompt": SYSTEM,
    "task": TASK,
}

_OUTPUT: Final = LogNormal.through(OUTPUT_P50.value, OUTPUT_P95.value)
_GAP: Final = LogNormal.through(GAP_P50.value, GAP_P95.value)
_VIEW: Final = int(SCREENSHOT.value + TEXT.value)


def osworld_like(seed: int = 1, sessions: int = DEFAULT, models: tuple[str, ...] = ()) -> Trace:
    """Sessions of one task each, given to ``models`` in turn (none: the replay says)."""
    rng = generator(seed, NAME)
    made = [
        _session(rng, seed, i, models[i % len(models)] if models else "") for i in range(sessions)
    ]
    return Trace(f"synthetic {NAME}, seed {seed}", tuple(made))


@dataclass(frozen=True, slots=True)
class _Steps:
    """(calls,) of each: tokens drawn, seconds waited before."""

    outputs: list[int]
    gaps: list[float]


def _session(rng: np.random.Generator, seed: int, number: int, model: str) -> Session:
    steps = _steps(rng, DEPTH_P50.value)
    calls = len(steps.outputs)
    helpers: tuple[Branch, ...] = ()
    spawned_by = -1
    if calls > 1 and rng.random() < SUB_AGENTS.value:
        spawned_by = int(rng.integers(calls - 1))
        count = int(rng.integers(1, int(MOST_SUB_AGENTS.value), endpoint=True))
        helpers = tuple(_helper(rng, f"sub{i + 1}", spawned_by) for i in range(count))
    task = Span(stream_id(NAME, "task", seed, number), 0, int(TASK.value))
    main = _main(steps, task, spawned_by, helpers)
    return Session(f"{NAME}-{seed}-{number:04}", (main, *helpers), model)


def _steps(rng: np.random.Generator, depth_p50: float) -> _Steps:
    depth = LogNormal(depth_p50, DEPTH_SPREAD.value)
    calls = int(whole(depth.draw(rng, 1), high=int(DEPTH_MAX.value))[0])
    gaps = np.round(_GAP.draw(rng, calls), 3).tolist()
    return _Steps(whole(_OUTPUT.draw(rng, calls)).tolist(), gaps)


def _main(steps: _Steps, task: Span, spawned_by: int, helpers: tuple[Branch, ...]) -> Branch:
    """The call after the one that spawned sub-agents waits for them and reads their last words."""
    builder = BranchBuilder(MAIN)
    builder.begin((_system(MAIN), task, builder.local(_VIEW)), steps.outputs[0])
    answers = tuple(
        Span(reply_stream(helper.name, len(helper.calls) - 1), 0, helper.calls[-1].output)
        for helper in helpers
    )
    names = tuple(helper.name for helper in helpers)
    for i in range(1, len(steps.outputs)):
        seen = (builder.local(_VIEW),)
        if helpers and i == spawned_by + 1:
            builder.extend(answers + seen, steps.outputs[i], steps.gaps[i], Wait.BRANCH, names)
        else:
            builder.extend(seen, steps.outputs[i], steps.gaps[i])
    return builder.branch()


def _helper(rng: np.random.Generator, name: str, spawned_by: int) -> Branch:
    """A sub-agent with a context of its own; the system prompt is that of all sub-agents."""
    steps = _steps(rng, SUB_DEPTH_P50.value)
    builder = BranchBuilder(name, MAIN, spawned_by)
    task = Span(stream_id("task", name, local=True), 0, int(TASK.value))
    builder.begin(
        (_system("sub-agent"), task, builder.local(_VIEW)),
        steps.outputs[0],
        steps.gaps[0],
        Wait.TOOL,
    )
    for i in range(1, len(steps.outputs)):
        builder.extend((builder.local(_VIEW),), steps.outputs[i], steps.gaps[i])
    return builder.branch()


def _system(whose: str) -> Span:
    return Span(stream_id(NAME, "system", whose), 0, int(SYSTEM.value))
