"""Device blocks of the active model and the calls that hold them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeGuard

from alipes.instance.contract import BlocksRemoved, BlocksStored, ModelReport
from alipes.instance.memory.blocks import BlockPool
from alipes.instance.memory.prefix import PrefixIndex
from alipes.instance.memory.slots import SlotPool
from alipes.instance.scheduler.sequence import Sequence


class KvSpace:
    """One pool and one index, made anew at every switch: what was there before is void. Blocks
    that a planned restore will fill can be shared already, but are not published yet. A model with
    recurrent layers has ``slots`` too: a prefix is of use only where a slot has the state after
    it."""

    def __init__(self, report: ModelReport, block_tokens: int) -> None:
        self.pool = BlockPool(report.kv_blocks)
        self.slots = SlotPool(report.slots) if report.slots else None
        self._first_slot = report.kv_blocks
        self._anchored: dict[Sequence, None] = {}
        self.block_tokens = block_tokens
        self._index = PrefixIndex(report.name)
        self._incoming: dict[bytes, int] = {}
        self._removed: list[BlocksRemoved] = []

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_tokens)

    def find(self, call: Sequence, blocks: int) -> tuple[list[int], int]:
        """The blocks of the longest beginning of the call's first ``blocks`` blocks that are here
        or on their way, and how many of them, from the first, are published."""
        path = call.path(blocks, self.block_tokens)
        found = self._index.match(path)
        published = len(found)
        if self._incoming:
            for key in call.path(blocks, self.block_tokens, published):
                block = self._incoming.get(key, self._index.get(key))
                if block is None:
                    break
                found.append(block)
        return found, published

    def acquire(
        self, call: Sequence, found: list[int], arriving: int, tokens: int, reserve: int
    ) -> bool:
        """Give the call the blocks that were ``found`` and ``arriving`` more, if all that
        ``tokens`` positions need could be had now while ``reserve`` more stay available."""
        unheld = self.pool.count_cached(found)
        needed = self.blocks_for(tokens) - len(found)
        if needed + unheld + reserve > self.pool.available:
            return False
        self.pool.share(found)
        call.blocks = list(found)
        call.published = len(found)
        return self.grow(call, (len(found) + arriving) * self.block_tokens)

    def grow(self, call: Sequence, tokens: int) -> bool:
        """Let the call's blocks cover ``tokens`` positions; False changes nothing."""
        if tokens <= len(call.blocks) * self.block_tokens:
            return True
        allocation = self.pool.allocate(self.blocks_for(tokens) - len(call.blocks))
        if allocation is None:
            return False
        if allocation.evicted:
            self._removed.extend(self._index.remove(allocation.evicted))
        call.blocks.extend(allocation.blocks)
        return True

    def expect(self, call: Sequence, first: int, last: int) -> None:
        """A planned restore will fill the call's full blocks from ``first``, before ``last``."""
        keys = call.extend_path(last, self.block_tokens)
        self._incoming.update(zip(keys[first:last], call.blocks[first:last], strict=True))

    def arrived(self) -> None:
        """What was expected is here, or will never be."""
        self._incoming.clear()

    def publish(self, call: Sequence) -> tuple[BlocksStored, ...]:
        """Enter the call's full computed blocks into the index; the rest stays private."""
        first, full = call.published, call.computed // self.block_tokens
        if full <= first:
            return ()
        keys = call.extend_path(full, self.block_tokens)[first:full]
        parent = call.keys[first - 1] if first else call.call.root
        entered, events = self._index.publish(parent, keys, call.blocks[first:full])
        self.pool.publish(entered)
        call.published = full
        return events

    def publish_all(self, calls: Iterable[Sequence]) -> tuple[BlocksStored, ...]:
        size = self.block_tokens
        return tuple(
            event
            for call in calls
            if call.computed >= (call.published + 1) * size
            for event in self.publish(call)
        )

    def give_up(self, most: int, expendable: Callable[[bytes], bool] | None) -> int:
        """Forget up to ``most`` cached blocks, the highest first, as far as nobody holds one of
        them and their keys are ``expendable``; how many."""
        gone = 0
        while gone < most and self.pool.is_cached(self.pool.highest):
            block = self.pool.highest
            if expendable is not None and not expendable(self._index.key(block)):
                break
            self.pool.drop(block)
            self._removed.extend(self._index.remove((block,)))
            gone += 1
        return gone

    def truncate(self, call: Sequence, blocks: int) -> None:
        """Take all but the first ``blocks`` blocks back."""
        self.pool.release(call.blocks[blocks:])
        del call.blocks[blocks:]

    def release(self, call: Sequence) -> None:
        """Take back all that the call holds; what is published or named stays for others."""
        self.truncate(call, 0)
        if self.slots is not None:
            for slot in filter(_is_slot, (call.slot, call.origin, call.mark)):
                self.slots.release(slot)
            while call.anchors:
                self._let_go(call)
        call.leave_device()

    # --- recurrent state -----------------------------------------------------------------------

    def state_at(self, call: Sequence, blocks: int) -> int | None:
        """The slot with the state after the call's first ``blocks`` blocks."""
        if self.slots is None or not blocks:
            return None
        return self.slots.find(call.extend_path(blocks, self.block_tokens)[blocks - 1])

    def device_of(self, slot: int) -> int:
        """The slot as copies name it, see ``BlockCopy``."""
        return self._first_slot + slot

    def acquire_slots(self, call: Sequence, blocks: int) -> bool:
        """Give the call, whose first ``blocks`` blocks are there, slots of its own; it continues
        from the slot that has the state after them, if one has. False changes nothing."""
        if self.slots is None:
            return True
        origin = self.state_at(call, blocks)
        if origin is not None:
            # First, or it could be the one that is taken.
            self.slots.hold(origin)
        slot = self._take_slot()
        if slot is None:
            if origin is not None:
                self.slots.release(origin)
            return False
        call.slot, call.origin, call.marked = slot, origin, blocks
        call.mark = self._take_slot()
        if origin is not None:
            self._anchor(call, blocks)
        return True

    def moved_on(self, call: Sequence, tokens: int) -> None:
        """The call computed ``tokens`` more, and its state is in its own slot; where it has passed
        a block boundary, its mark has that of there, and is named for others. Of those inside a
        reply only the last is of use."""
        if self.slots is None:
            return
        if call.origin is not None:
            self.slots.release(call.origin)
            call.origin = None
        size, before = self.block_tokens, call.marked
        blocks = call.boundary(call.computed - tokens, call.computed, size)
        if not blocks:
            return
        call.marked = blocks
        if call.mark is not None:
            keys = call.extend_path(blocks, self.block_tokens)
            self.slots.name(call.mark, keys[blocks - 1])
            self._anchor(call, blocks)
            self.slots.release(call.mark)
            if before * size > call.prompt_tokens:
                self.slots.forget(keys[before - 1])
        call.mark = self._take_slot()

    def states(self, call: Sequence) -> dict[int, int]:
        """The slots with the states after so many blocks that are to outlast the call, the deepest
        first: at its last block boundary, and what it anchors."""
        last = self.state_at(call, call.marked)
        found = call.anchors if last is None else call.anchors | {call.marked: last}
        return dict(sorted(found.items(), reverse=True))

    def _anchor(self, call: Sequence, blocks: int) -> None:
        """Hold the state at this boundary until the call ends, if others go on from there."""
        slot = self.state_at(call, blocks)
        if slot is None or blocks in call.anchors or not call.is_anchor(blocks, self.block_tokens):
            return
        assert self.slots is not None
        self.slots.hold(slot)
        call.anchors[blocks] = slot
        self._anchored[call] = None

    def _take_slot(self) -> int | None:
        """A slot for a call; for want of others one that calls anchor, of the first one first."""
        assert self.slots is not None
        slot = self.slots.take()
        while slot is None and self._anchored:
            self._let_go(next(iter(self._anchored)))
            slot = self.slots.take()
        return slot

    def _let_go(self, call: Sequence) -> None:
        """Of the call's first anchor."""
        assert self.slots is not None
        self.slots.release(call.anchors.pop(next(iter(call.anchors))))
        if not call.anchors:
            del self._anchored[call]

    def known(self) -> tuple[BlocksStored, ...]:
        """All that is published now."""
        return self._index.known()

    def clear(self) -> None:
        """Forget what was published, for the blocks are void."""
        self._removed.extend(self._index.clear())

    def take_removed(self) -> tuple[BlocksRemoved, ...]:
        """Evictions since the last call of this method."""
        if not self._removed:
            return ()
        removed = tuple(self._removed)
        self._removed.clear()
        return removed


def _is_slot(slot: int | None) -> TypeGuard[int]:
    return slot is not None
