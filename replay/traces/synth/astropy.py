"""``astropy-30`` and ``astropy-120``: the traces that Talaria replays.

Ten tasks run once on each of three models: 30 sessions, 960 calls, of which 20 wait longer than
the cap of 10 s. The 120-call trace of the router experiments is made of their first calls.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from alipes.replay.traces.form import Session, Trace, stream_id
from alipes.replay.traces.synth.distributions import Floats, Ints, LogNormal, generator
from alipes.replay.traces.synth.numbers import Assumed, Number, Published
from alipes.replay.traces.synth.talaria import DEPTH, GAP_P50, GAP_P95, Writer, contexts

LONG: Final = "astropy-30"
SHORT: Final = "astropy-120"
LARGE_MODELS: Final = ("qwen3-235b", "glm5-nvfp4", "qwen3.5-122b-a10b")
SMALL_MODELS: Final = ("qwen3-32b", "qwen2.5-32b-instruct", "qwen3.5-35b-a3b")

TASKS: Final = Published(10, "Talaria 5.1, Astropy issues")
CALLS: Final = Published(960, "Talaria 5.1")
CAPPED: Final = Published(20, "Talaria 5.1 and A, calls whose gap is above the cap")
CAP: Final = Published(10.0, "Talaria 5.1 and A, seconds")
SHORT_CALLS: Final = Published(120, "Talaria 5.1 and 5.3")
ARRIVAL: Final = Assumed(
    0.0,
    "seconds, of every session; not published: the replay is closed loop, names no concurrency "
    "limit and runs 'intentionally at high pressure' (5.1)",
)
LONG_GAP_P50: Final = Assumed(
    33.3,
    "seconds, of gaps above the cap; not published: that of the tool gaps above 10 s in 138 "
    "real Claude Code sessions (entireio/cli at 394f81f); a replay with the cap does not see it",
)
LONG_GAP_P95: Final = Assumed(396.5, LONG_GAP_P50.reason)

NUMBERS: Final[dict[str, Number]] = {
    "tasks": TASKS,
    "calls": CALLS,
    "capped calls": CAPPED,
    "gap cap": CAP,
    "calls of the short trace": SHORT_CALLS,
    "arrival": ARRIVAL,
    "long gap p50": LONG_GAP_P50,
    "long gap p95": LONG_GAP_P95,
}


def depths() -> Ints:
    """(tasks,) calls of each task, the same on every model: the mid-rank quantiles of the
    published depths, scaled to the published number of calls."""
    tasks, calls = int(TASKS.value), int(CALLS.value) // len(LARGE_MODELS)
    shape = np.array([DEPTH.quantile((task + 0.5) / tasks) for task in range(tasks)])
    exact = shape * calls / shape.sum()
    whole: Ints = np.floor(exact).astype(np.int64)
    left = calls - int(whole.sum())
    whole[np.argsort(whole - exact, kind="stable")[:left]] += 1
    return whole


def astropy_30(seed: int = 1, models: tuple[str, ...] = LARGE_MODELS) -> Trace:
    """Raises ValueError unless three models are named."""
    _check(LONG, models)
    rng = generator(seed, LONG)
    depth, tasks = (np.tile(each, len(models)) for each in (depths(), np.arange(int(TASKS.value))))
    grown, outputs = contexts(rng, depth, tasks)
    writer = Writer(LONG, grown, outputs, _gaps(rng, grown.first))
    ends = np.cumsum(depth).tolist()
    made = [
        writer.session(
            f"{LONG}-{seed}-{models[i // len(depths())]}-{task}",
            models[i // len(depths())],
            stream_id(LONG, "task", seed, task),
            range(ends[i] - int(depth[i]), ends[i]),
            ARRIVAL.value,
        )
        for i, task in enumerate(tasks.tolist())
    ]
    return Trace(f"synthetic {LONG}, seed {seed}", tuple(made))


def astropy_120(seed: int = 1, models: tuple[str, ...] = SMALL_MODELS) -> Trace:
    """The first four calls of each session, on smaller models and with arrivals left to the
    replay; session ids, gaps, the order of models and prefix lengths stay (5.1). Raises
    ValueError unless three models are named."""
    _check(SHORT, models)
    long = astropy_30(seed)
    mapped = dict(zip(LARGE_MODELS, models, strict=True))
    calls = int(SHORT_CALLS.value) // len(long.sessions)
    made = tuple(_shorten(session, mapped[session.model], calls) for session in long.sessions)
    return Trace(f"synthetic {SHORT}, seed {seed}", made)


def _check(name: str, models: tuple[str, ...]) -> None:
    if len(models) != len(LARGE_MODELS) or len(set(models)) < len(models):
        raise ValueError(f"{name} is a trace of {len(LARGE_MODELS)} models; name as many, or none")


def _shorten(session: Session, model: str, calls: int) -> Session:
    main = session.branches[0]
    short = type(main)(main.name, main.calls[:calls])
    return Session(session.id, (short,), model)


def _gaps(rng: np.random.Generator, first: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Floats:
    """(calls,) seconds. Those above the cap, as many as published, and the others together have
    the published percentiles."""
    places = np.flatnonzero(~first)
    long = int(CAPPED.value)
    share = 1 - long / len(places)
    short = LogNormal.through(GAP_P50.value, GAP_P95.value, (0.50 / share, 0.95 / share))
    gaps = np.minimum(short.draw(rng, len(first)), CAP.value)
    beyond = LogNormal.through(LONG_GAP_P50.value - CAP.value, LONG_GAP_P95.value - CAP.value)
    chosen = rng.permutation(places)[:long]
    # A millisecond more: gaps are rounded to that, and each of these is above the cap.
    gaps[chosen] = CAP.value + 0.001 + beyond.draw(rng, long)
    return gaps
