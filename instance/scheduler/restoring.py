"""Blocks on their way from the host to the device."""

from __future__ import annotations

from dataclasses import dataclass, field

from alipes.instance.memory.rows import HostBlock
from alipes.instance.scheduler.sequence import Sequence
from alipes.instance.scheduler.work import Restore


@dataclass(slots=True)
class Restoring:
    """What one ``Restore`` will do: ``calls`` own or share the blocks that it fills, ``sources``
    are pinned; those that fill slots come after all that fill blocks. ``resumes`` tells that it
    brings saved calls back."""

    devices: list[int] = field(default_factory=list)
    sources: list[HostBlock] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    slot_sources: list[HostBlock] = field(default_factory=list)
    calls: list[Sequence] = field(default_factory=list)
    tokens: int = 0
    resumes: bool = False

    def add(self, call: Sequence, sources: list[HostBlock], first: int, tokens: int) -> None:
        """``sources`` fill the call's blocks from ``first`` on with the state of ``tokens``."""
        self.devices += call.blocks[first:]
        self.sources += sources
        self.tokens += tokens

    def add_slot(self, slot: int, source: HostBlock) -> None:
        """``source`` fills the slot, named as copies do."""
        self.slots.append(slot)
        self.slot_sources.append(source)

    def work(self) -> Restore:
        devices, sources = (*self.devices, *self.slots), (*self.sources, *self.slot_sources)
        return Restore(devices, sources, self.tokens)
