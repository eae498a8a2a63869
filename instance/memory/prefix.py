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
        # Stops at the first None, without a loop in Python: paths have thousands of blocks.
        return list(iter(map(self._block.get, keys).__next__, None))

    def get(self, key: bytes) -> int | None:
        return self._block.get(key)

    def key(self, block: int) -> bytes:
        """Of a block that is known."""
        return self._key[block]

    def publish(
        self, parent: bytes, keys: Sequence[bytes], blocks: Sequence[int]
    ) -> tuple[list[int], tuple[BlocksStored, ...]]:
        """Enter consecutive computed blocks of one chain that starts after ``parent``. Returns
        the blocks entered, leaving out keys that another block holds already, and one event for
        each unbroken row of them."""
        entered: list[int] = []
        events: list[BlocksStored] = []
        start = 0
        for end in (*self._places(keys), len(keys)):
            if start < end:
                before = keys[start - 1] if start else parent
                self._enter(before, keys[start:end], blocks[start:end])
                entered += blocks[start:end]
                self._told(events, before, keys[start:end])
            start = end + 1
        return entered, tuple(events)

    def _places(self, keys: Sequence[bytes]) -> list[int]:
        """Where keys are that are known already."""
        if self._block.keys().isdisjoint(keys):
            return []
        return [place for place, key in enumerate(keys) if key in self._block]

    def _enter(self, parent: bytes, keys: Sequence[bytes], blocks: Sequence[int]) -> None:
        self._block.update(zip(keys, blocks, strict=True))
        self._key.update(zip(blocks, keys, strict=True))
        self._parent.update(zip(keys, (parent, *keys[:-1]), strict=True))

    def remove(self, blocks: Iterable[int]) -> tuple[BlocksRemoved, ...]:
        """Forget evicted blocks; one event, or none for none."""
        keys = tuple(map(self._key.pop, blocks))
        for key in keys:
            del self._block[key], self._parent[key]
        return self._gone(keys)

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
        keys = tuple(self._block)
        for known in (self._block, self._key, self._parent):
            known.clear()
        return self._gone(keys)

    def _gone(self, keys: tuple[bytes, ...]) -> tuple[BlocksRemoved, ...]:
        return (BlocksRemoved(self._model, Tier.DEVICE, keys),) if keys else ()

    def _told(self, events: list[BlocksStored], parent: bytes, row: Sequence[bytes]) -> None:
        if row:
            events.append(BlocksStored(self._model, Tier.DEVICE, parent, tuple(row)))
