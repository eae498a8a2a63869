"""``coding``: real coding sessions, drawn with replacement.

Nothing is fitted. That the hit rate of the recorded sessions is the published one of others, also
of Claude Code, is a check of both.
"""

from __future__ import annotations

from typing import Final

import msgspec

from alipes.replay.traces.form import Session, Trace
from alipes.replay.traces.synth.distributions import generator
from alipes.replay.traces.synth.numbers import Number, Published

NAME: Final = "coding"

HIT_RATE: Final = Published(
    0.973,
    "Evolving Infra Table C.1, Claude Code: KV hit rate over one minus lost reuse, with unlimited "
    "cache",
)
NUMBERS: Final[dict[str, Number]] = {"hit rate": HIT_RATE}


def coding(
    recorded: Trace, seed: int = 1, sessions: int = 0, models: tuple[str, ...] = ()
) -> Trace:
    """``sessions`` (0: as many as were recorded) sessions drawn from ``recorded``, branches,
    rewrites and joins as they are. Each has an id of its own, and with it content of its own:
    only streams that were shared stay shared. ``models``, if any, are given in turn, in place of
    what was recorded; arrivals are left to the replay. Raises ValueError without sessions."""
    if not recorded.sessions:
        raise ValueError("no session was recorded: there is nothing to draw from")
    rng = generator(seed, NAME)
    chosen = rng.integers(len(recorded.sessions), size=sessions or len(recorded.sessions))
    made = []
    for i, place in enumerate(chosen.tolist()):
        session = recorded.sessions[place]
        if models:
            session = _on(session, models[i % len(models)])
        name = f"{NAME}-{seed}-{i:04}-{session.id}"
        made.append(msgspec.structs.replace(session, id=name, start=None))
    return Trace(f"synthetic {NAME}, seed {seed}, drawn from {recorded.source}", tuple(made))


def _on(session: Session, model: str) -> Session:
    branches = tuple(msgspec.structs.replace(branch, model="") for branch in session.branches)
    return msgspec.structs.replace(session, branches=branches, model=model)
