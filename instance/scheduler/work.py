"""What a scheduler returns: work that needs no further thought, executed by ``instance/loop``."""

from __future__ import annotations

from dataclasses import dataclass

from alipes.instance.contract import (
    BlocksRemoved,
    BlocksStored,
    Drawn,
    Failed,
    Finished,
    Started,
)


@dataclass(frozen=True, slots=True)
class SavedCall:
    """A running call whose first ``tokens`` positions are in ``blocks``."""

    call_id: bytes
    blocks: tuple[int, ...]
    tokens: int


@dataclass(frozen=True, slots=True)
class Switch:
    """Save these calls of the active model to the host, then make ``model`` active."""

    model: str
    save: tuple[SavedCall, ...]


@dataclass(frozen=True, slots=True)
class Resume:
    """Copy saved calls of the active model back into device blocks."""

    calls: tuple[SavedCall, ...]


@dataclass(frozen=True, slots=True)
class Run:
    """Iterate over this batch at most ``max_steps`` times, or until an event: a call finishes,
    a message arrives, the scheduler says the run is over. A prefill run has one step, in which
    call i computes ``chunks[i]`` tokens; in a decode run every chunk is 1. ``started`` is told
    before the first step."""

    model: str
    phase: str
    call_ids: tuple[bytes, ...]
    chunks: tuple[int, ...]
    max_steps: int
    started: tuple[Started, ...] = ()


Work = Switch | Resume | Run


@dataclass(frozen=True, slots=True)
class Progress:
    """What a piece of work led to, in the order in which it is to be told; ``over`` ends the
    run. Blocks removed went before those stored took their place."""

    removed: tuple[BlocksRemoved, ...] = ()
    stored: tuple[BlocksStored, ...] = ()
    drawn: tuple[Drawn, ...] = ()
    finished: tuple[Finished, ...] = ()
    failed: tuple[Failed, ...] = ()
    over: bool = False
