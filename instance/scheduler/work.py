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
    a message arrives, the scheduler says the run is over. A prefill run has one step."""

    phase: str
    call_ids: tuple[bytes, ...]
    max_steps: int


Work = Switch | Resume | Run


@dataclass(frozen=True, slots=True)
class Progress:
    """What an iteration led to, in the order in which it is to be told; ``over`` ends the run."""

    started: tuple[Started, ...] = ()
    drawn: tuple[Drawn, ...] = ()
    stored: tuple[BlocksStored, ...] = ()
    removed: tuple[BlocksRemoved, ...] = ()
    finished: tuple[Finished, ...] = ()
    failed: tuple[Failed, ...] = ()
    over: bool = False
