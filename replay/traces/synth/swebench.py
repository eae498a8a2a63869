"""``swebench``: sessions with the marginals that Talaria publishes of SWE-Bench Verified."""

from __future__ import annotations

from typing import Final

import numpy as np

from alipes.replay.traces.form import Trace, stream_id
from alipes.replay.traces.synth.distributions import generator, scores, whole
from alipes.replay.traces.synth.talaria import (
    DEPTH,
    DEPTH_MAX,
    GAP,
    SESSIONS,
    Writer,
    contexts,
)

NAME: Final = "swebench"
DEFAULT: Final = int(SESSIONS.value)


def swebench(seed: int = 1, sessions: int = DEFAULT, models: tuple[str, ...] = ()) -> Trace:
    """Sessions of one task each, given to ``models`` in turn (none: the replay says).

    At least as many sessions as the paper characterises are drawn, so that few sessions are a
    sample of the published distribution and not made to have its percentiles."""
    rng = generator(seed, NAME)
    drawn = max(sessions, DEFAULT)
    depth = whole(DEPTH.of(scores(rng, drawn)), high=int(DEPTH_MAX.value))
    grown, outputs = contexts(rng, depth, np.arange(drawn))
    writer = Writer(NAME, grown, outputs, GAP.draw(rng, len(outputs)))
    ends = np.cumsum(depth).tolist()
    made = [
        writer.session(
            f"{NAME}-{seed}-{i:04}",
            models[i % len(models)] if models else "",
            stream_id(NAME, "task", seed, i),
            range(ends[i] - int(depth[i]), ends[i]),
        )
        for i in range(sessions)
    ]
    return Trace(f"synthetic {NAME}, seed {seed}", tuple(made))
