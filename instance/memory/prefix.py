"""Which published block holds the content of which chained key, and who must be told."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from alipes.instance.contract import BlocksRemoved, BlocksStored, Tier


def matchable_blocks(tokens: int, block_tokens: int) -> int:
    """How many full blocks of a prompt may be taken from the cache: at least one token must be
    computed, for there is nothing to draw from otherwise."""
    return max(tokens - 1, 0) // block_tokens


class PrefixIndex:
    """Keys to blocks and back, one to one, for the active model's device blocks. A key names the
    whole prefix that ends in its block (``contract.chain_key``), so equal keys mean equal
    content."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._block: dict[bytes, int] = {}
        self._key: dict[int, bytes] = {}
        self._parent: dict[bytes, bytes] = {}

    def __len__(self) -> int:
        return len(self._block)

    def match(self, keys: Iterable[bytes]) -> list[int]:
        """Blocks of the longest known beginning of a path; ``keys`` is read no further."""
        blocks: list[int] = []
        for key in keys:
            block = self._block.get(key)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def get(self, key: bytes) -> int | None:
        return self._block.get(key)

    def publish(
        self, parent: bytes, keys: Sequence[bytes], blocks: Sequence[int]
    ) -> tuple[list[int], tuple[BlocksStored, ...]]:
        """Enter consecutive computed blocks of one chain that starts after ``parent``. Returns
        the blocks entered, leaving out keys that another block holds already, and one event for
        each unbroken row of them."""
        entered: list[int] = []
        events: list[BlocksStored] = []
        row: list[bytes] = []
        before = last = parent
        for key, block in zip(keys, blocks, strict=True):
            if key in self._block:
                self._told(events, before, row)
                before, row, last = key, [], key
                continue
            self._block[key] = block
            self._key[block] = key
            self._parent[key] = last
            entered.append(block)
            row.append(key)
            last = key
        self._told(events, before, row)
        return entered, tuple(events)

    def remove(self, blocks: Iterable[int]) -> tuple[BlocksRemoved, ...]:
        """Forget evicted blocks; one event, or none for none."""
        keys = tuple(self._key.pop(block) for block in blocks)
        for key in keys:
            del self._block[key], self._parent[key]
        return (BlocksRemoved(self._model, Tier.DEVICE, keys),) if keys else ()

    def known(self) -> tuple[BlocksStored, ...]:
        """All that is in here, as ``publish`` told it."""
        events: list[BlocksStored] = []
        first, row = b"", list[bytes]()
        for key, parent in self._parent.items():
            if not row or row[-1] != parent:
                self._told(events, first, row)
                first, row = parent, []
            row.append(key)
        self._told(events, first, row)
        return tuple(events)

    def clear(self) -> tuple[BlocksRemoved, ...]:
        """Forget everything: the device blocks are void."""
        return self.remove(list(self._key))

    def _told(self, events: list[BlocksStored], parent: bytes, row: list[bytes]) -> None:
        if row:
            events.append(BlocksStored(self._model, Tier.DEVICE, parent, tuple(row)))
