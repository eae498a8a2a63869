"""Device blocks of the active model and the calls that hold them."""

from __future__ import annotations

from collections.abc import Iterable

from alipes.instance.contract import BlocksRemoved, BlocksStored, ModelReport
from alipes.instance.memory.blocks import BlockPool
from alipes.instance.memory.prefix import PrefixIndex
from alipes.instance.scheduler.sequence import Sequence


class KvSpace:
    """One pool and one index, made anew at every switch: what was there before is void. Blocks
    that a planned restore will fill can be shared already, but are not published yet."""

    def __init__(self, report: ModelReport, block_tokens: int) -> None:
        self.pool = BlockPool(report.kv_blocks)
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

    def truncate(self, call: Sequence, blocks: int) -> None:
        """Take all but the first ``blocks`` blocks back."""
        self.pool.release(call.blocks[blocks:])
        del call.blocks[blocks:]

    def release(self, call: Sequence) -> None:
        """Take the call's blocks back; published ones stay for others to share."""
        self.truncate(call, 0)
        call.published = 0

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
