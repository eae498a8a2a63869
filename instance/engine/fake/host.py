"""A pretended host memory: every slab knows which part of which block was copied into it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from alipes.instance.engine.fake.device import BlockContent, BlockStates
from alipes.instance.engine.protocol import BlockCopy, CopyEnd, EngineError

BLOCK_SLABS: Final = 2


@dataclass(frozen=True, slots=True)
class _Part:
    """Slab number ``index`` of the copy of one block of ``model``."""

    model: str
    content: BlockContent
    index: int


class HostStates:
    """``slabs`` slabs, of which a block takes ``BLOCK_SLABS``. A copy to the host ends when it is
    next asked about, never sooner, so that everyone must wait for it."""

    def __init__(self, slabs: int) -> None:
        self._parts: list[_Part | None] = [None] * slabs
        self._ticket_of: dict[int, int] = {}
        self._blocks_of: dict[int, list[int]] = {}
        self._last: float = -math.inf

    @property
    def busy(self) -> bool:
        return bool(self._blocks_of)

    def copy_out(
        self, ticket: int, copies: Sequence[BlockCopy], model: str, device: BlockStates
    ) -> None:
        """Raises ``EngineError`` where a slab is in another copy or a block holds no state."""
        if ticket <= self._last:
            raise EngineError(f"copy {ticket} comes after {self._last}; tickets must rise")
        self._last = ticket
        for copy in copies:
            self._check(copy)
            content = device.read(copy.device)
            for index, slab in enumerate(copy.slabs):
                self._parts[slab] = _Part(model, content, index)
                self._ticket_of[slab] = ticket
        device.begin_copy([copy.device for copy in copies])
        self._blocks_of[ticket] = [copy.device for copy in copies]

    def copied(self, device: BlockStates) -> tuple[CopyEnd, ...]:
        ended = tuple(map(CopyEnd, self._blocks_of))
        for blocks in self._blocks_of.values():
            device.end_copy(blocks)
        self._blocks_of.clear()
        self._ticket_of.clear()
        return ended

    def copy_in(self, copy: BlockCopy, model: str, device: BlockStates) -> None:
        """Raises ``EngineError`` unless the slabs are one whole block of ``model``, in order."""
        self._check(copy)
        parts = [self._parts[slab] for slab in copy.slabs]
        first = parts[0]
        if first is None or any(
            part != _Part(model, first.content, index) for index, part in enumerate(parts)
        ):
            raise EngineError(f"slabs {copy.slabs} do not hold one whole block of {model}")
        device.put(copy.device, first.content)

    def _check(self, copy: BlockCopy) -> None:
        slabs = set(copy.slabs)
        if len(copy.slabs) != BLOCK_SLABS or len(slabs) != BLOCK_SLABS:
            raise EngineError(f"slabs {copy.slabs}: a block takes {BLOCK_SLABS} different ones")
        if min(slabs) < 0 or max(slabs) >= len(self._parts):
            raise EngineError(f"slabs {copy.slabs}: the host has {len(self._parts)}")
        under_way = [slab for slab in copy.slabs if slab in self._ticket_of]
        if under_way:
            ticket = self._ticket_of[under_way[0]]
            raise EngineError(f"slab {under_way[0]} is still being copied by {ticket}")
