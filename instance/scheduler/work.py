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
from alipes.instance.engine.protocol import BlockCopy
from alipes.instance.memory.rows import HostBlock


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Blocks of the active model to be copied to the host while the engine goes on; its end is
    reported to ``copied`` under ``ticket``. ``devices`` and ``blocks`` go together."""

    ticket: int
    devices: tuple[int, ...]
    blocks: tuple[HostBlock, ...]

    @property
    def copies(self) -> tuple[BlockCopy, ...]:
        return _copies(self.devices, self.blocks)


@dataclass(frozen=True, slots=True)
class Switch:
    """Begin the checkpoint of what must not be lost, drain all copies, report them, then make
    ``model`` active."""

    model: str
    save: Checkpoint | None


@dataclass(frozen=True, slots=True)
class Restore:
    """Copy blocks from the host to the device, for saved calls or for the prefixes of new ones
    (``tokens`` in all). ``devices`` and ``blocks`` go together."""

    devices: tuple[int, ...]
    blocks: tuple[HostBlock, ...]
    tokens: int

    @property
    def copies(self) -> tuple[BlockCopy, ...]:
        return _copies(self.devices, self.blocks)


@dataclass(frozen=True, slots=True)
class Linger:
    """Nothing to do before ``until`` (ns) unless a message comes or a checkpoint ends: the slot
    stays open for sessions that are likely to return, or lacks blocks that are being copied."""

    until: int


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


Work = Switch | Restore | Run | Linger


@dataclass(frozen=True, slots=True)
class Progress:
    """What a piece of work led to, in the order in which it is to be told; ``over`` ends the
    run. Blocks removed went before those stored took their place. ``checkpoint`` is to be begun
    at once."""

    removed: tuple[BlocksRemoved, ...] = ()
    stored: tuple[BlocksStored, ...] = ()
    drawn: tuple[Drawn, ...] = ()
    finished: tuple[Finished, ...] = ()
    failed: tuple[Failed, ...] = ()
    checkpoint: Checkpoint | None = None
    over: bool = False


def _copies(devices: tuple[int, ...], blocks: tuple[HostBlock, ...]) -> tuple[BlockCopy, ...]:
    """What an engine is told. The blocks are pinned until it has ended, and so keep their slabs."""
    return tuple(BlockCopy(d, block.slabs) for d, block in zip(devices, blocks, strict=True))
