"""Some whole sessions of a trace."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from alipes.replay.traces.form import Trace


def sample(trace: Trace, sessions: int, seed: int, calls_at_most: int | None = None) -> Trace:
    """``sessions`` of those with ``calls_at_most`` calls, drawn without replacement and kept in
    their order. Raises ValueError if there are fewer."""
    fit: Sequence[int] = range(len(trace.sessions))
    if calls_at_most is not None:
        fit = [i for i, session in enumerate(trace.sessions) if session.calls <= calls_at_most]
    if sessions > len(fit):
        limit = "" if calls_at_most is None else f" of at most {calls_at_most} calls"
        raise ValueError(f"{sessions} sessions asked for, but there are {len(fit)}{limit}")
    drawn = np.random.default_rng(seed).choice(len(fit), sessions, replace=False)
    chosen = tuple(trace.sessions[fit[number]] for number in sorted(drawn))
    return Trace(trace.source, chosen)
