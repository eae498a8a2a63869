"""What Talaria publishes about the sessions of its agents, and how calls are drawn from it."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import numpy as np

from alipes.replay.traces.form import MAIN, Session, Span, stream_id
from alipes.replay.traces.synth.branches import BranchBuilder
from alipes.replay.traces.synth.distributions import Floats, Ints, LogNormal, normals, scores, whole
from alipes.replay.traces.synth.growth import Draws, Grown, Target, grow
from alipes.replay.traces.synth.numbers import Assumed, Number, Published

_CLAUDE_CODE = "138 real Claude Code sessions (entireio/cli at 394f81f)"

SESSIONS: Final = Published(445, "Talaria 2.1")
CALLS: Final = Published(7_386, "Talaria 2.1")
DEPTH_P50: Final = Published(11, "Talaria 2.1 and Figure 2a, calls a session")
DEPTH_P95: Final = Published(49, "Talaria 2.1 and Figure 2a, calls a session")
DEPTH_MAX: Final = Published(187, "Talaria 2.1, calls a session")
GAP_P50: Final = Published(0.39, "Talaria 2.1 and Figure 2b, seconds between calls")
GAP_P95: Final = Published(1.32, "Talaria 2.1 and Figure 2b, without five environment start-ups")
GAP_P90: Final = Published(1.0, "Talaria 3.3: tau = 1 s is near the p90 tool gap")
PROMPT_P50: Final = Published(25_000, "Talaria 2.1 and Figure 2c, tokens a call")
PROMPT_P95: Final = Published(105_000, "Talaria 2.1 and Figure 2c, tokens a call")
REUSE: Final = Published(0.968, "Talaria 2.1: continuations with over half of the prior prefix")

OUTPUT_P50: Final = Assumed(
    125, f"tokens a call; not published: that of the calls in {_CLAUDE_CODE}"
)
OUTPUT_P95: Final = Assumed(
    1_009, f"tokens a call; not published: that of the calls in {_CLAUDE_CODE}"
)
WINDOW: Final = Assumed(
    200_000, "tokens of prompt and output; Figure 2c ends there, beyond it a context is rewritten"
)
START_P50: Final = Assumed(
    10_000, "tokens; not published: between SWE-agent's starts near 5K and Claude Code's from 26K"
)
START_SPREAD: Final = Assumed(
    0.3, "log standard deviation of starting prompts: one system prompt, tasks of various length"
)
CALL_SPREAD: Final = Assumed(
    0.8, "log standard deviation of tool results within a session: listings beside whole files"
)
SYSTEM_SHARE: Final = Assumed(
    0.27,
    "system prompt over the median starting prompt: below half of the shortest start, so that a "
    "rewritten context, which keeps it alone, keeps less than half",
)
_ATTEMPTS = 20  # thirty sessions fail about one time in twenty
_START_LIMIT = 2.0  # starting prompts stay within so many standard deviations

NUMBERS: Final[dict[str, Number]] = {
    "sessions": SESSIONS,
    "calls": CALLS,
    "depth p50": DEPTH_P50,
    "depth p95": DEPTH_P95,
    "depth max": DEPTH_MAX,
    "gap p50": GAP_P50,
    "gap p90": GAP_P90,
    "gap p95": GAP_P95,
    "prompt p50": PROMPT_P50,
    "prompt p95": PROMPT_P95,
    "reuse": REUSE,
    "output p50": OUTPUT_P50,
    "output p95": OUTPUT_P95,
    "window": WINDOW,
    "start p50": START_P50,
    "start spread": START_SPREAD,
    "call spread": CALL_SPREAD,
    "system share": SYSTEM_SHARE,
}

# The two percentiles alone give 16.6 calls a session and a gap p90 of 1.01 s, as published.
DEPTH: Final = LogNormal.through(DEPTH_P50.value, DEPTH_P95.value)
GAP: Final = LogNormal.through(GAP_P50.value, GAP_P95.value)
OUTPUT: Final = LogNormal.through(OUTPUT_P50.value, OUTPUT_P95.value)


def contexts(rng: np.random.Generator, depth: Ints, tasks: Ints) -> tuple[Grown, Ints]:
    """Prompts, and outputs (tokens by call), of sessions of ``depth`` calls each (sessions,), which
    begin alike where they have the same of ``tasks`` (sessions,). Where few sessions cannot have
    the published percentiles, they are drawn again. Raises ValueError if that does not help."""
    target = Target(PROMPT_P50.value, PROMPT_P95.value, 1 - REUSE.value, int(WINDOW.value))
    for _ in range(_ATTEMPTS):
        draws = _draw(rng, depth, tasks)
        with suppress(ValueError):
            return grow(draws, target), draws.output
    raise ValueError(
        f"{len(depth)} sessions, drawn {_ATTEMPTS} times, do not fit; another seed may"
    )


def _draw(rng: np.random.Generator, depth: Ints, tasks: Ints) -> Draws:
    calls = int(depth.sum())
    begin = np.clip(scores(rng, int(tasks.max()) + 1), -_START_LIMIT, _START_LIMIT)
    start = np.rint(START_P50.value * np.exp(START_SPREAD.value * begin)).astype(np.int64)
    return Draws(
        depth=depth,
        start=start[tasks],
        pace=scores(rng, len(depth)),
        tool=np.exp(CALL_SPREAD.value * normals(rng, calls)),
        output=whole(OUTPUT.draw(rng, calls)),
        ticket=rng.random(calls),
    )


class Writer:
    """Sessions from drawn calls. ``workload`` names the system prompt that all share."""

    def __init__(self, workload: str, grown: Grown, outputs: Ints, gaps: Floats) -> None:
        self._system = Span(
            stream_id(workload, "system"), 0, int(SYSTEM_SHARE.value * START_P50.value)
        )
        self._prompts = grown.prompt.tolist()
        self._rewritten = grown.rewritten.tolist()
        self._outputs = outputs.tolist()
        self._gaps = np.round(gaps, 3).tolist()

    def session(
        self, name: str, model: str, task: int, calls: range, start: float | None = None
    ) -> Session:
        """The session of the calls numbered ``calls``; ``task`` is the stream of what it is told
        to do."""
        system = self._system
        builder = BranchBuilder(MAIN)
        for i in calls:
            prompt, output, gap = self._prompts[i], self._outputs[i], self._gaps[i]
            if i == calls.start:
                told = Span(task, 0, prompt - system.length)
                builder.begin((system, told), output)
            elif self._rewritten[i]:
                builder.rewrite(system.length, prompt - system.length, output, gap)
            else:
                new = prompt - self._prompts[i - 1] - self._outputs[i - 1]
                builder.extend((builder.local(new),), output, gap)
        return Session(name, (builder.branch(),), model, start=start)
