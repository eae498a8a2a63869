"""A pretended device memory that knows which tokens every block was computed from.

It holds no state, only its provenance, and so can tell when a scheduler passes a block table
whose blocks are not the exact state of the call's tokens.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from alipes.instance.contract import TokenIds
from alipes.instance.engine.protocol import EngineError


def chain_start(model: str) -> int:
    """The 64-bit hash of a model's empty context."""
    return int.from_bytes(hashlib.blake2b(model.encode(), digest_size=8).digest(), "little")


def chain_next(before: int, tokens: TokenIds) -> int:
    """The 64-bit hash of a context that hashes to ``before`` and goes on with ``tokens``."""
    digest = hashlib.blake2b(tokens.tobytes(), digest_size=8, key=before.to_bytes(8, "little"))
    return int.from_bytes(digest.digest(), "little")


def refusal(call_id: bytes, message: str) -> EngineError:
    """The error that one call is to blame for."""
    return EngineError(f"call {call_id.hex()}: {message}", (call_id,))


@dataclass(frozen=True, slots=True, eq=False)
class BlockContent:
    """The provenance of one block, copied off the device."""

    tokens: TokenIds
    before: int
    after: int
    filled: int


class BlockStates:
    """``blocks`` blocks of ``block_tokens`` positions. ``before`` and ``after`` hash the context
    that ends at a block's start and at its end (the latter once it is full). A block that is
    being copied cannot be written."""

    def __init__(self, blocks: int, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self._content = np.zeros((blocks, block_tokens), np.int32)
        self._before = np.zeros(blocks, np.uint64)
        self._after = np.zeros(blocks, np.uint64)
        self._filled = np.zeros(blocks, np.int32)
        self._copies = np.zeros(blocks, np.int32)
        self._start = 0

    def clear(self, model: str) -> None:
        """Void every block; from now on they belong to ``model``."""
        self._filled[:] = 0
        self._start = chain_start(model)

    def table(self, call_id: bytes, blocks: Sequence[int], positions: int) -> NDArray[np.int64]:
        """The blocks that cover ``positions``, checked to exist and to differ."""
        needed = -(-positions // self.block_tokens)
        if len(blocks) < needed:
            raise refusal(
                call_id, f"{len(blocks)} blocks for {positions} positions, {needed} are needed"
            )
        table = np.asarray(blocks[:needed], np.int64)
        if table.size and (table.min() < 0 or table.max() >= len(self._filled)):
            raise refusal(call_id, "its table names a block out of range")
        if len(np.unique(table)) != needed:
            raise refusal(call_id, "its table names a block twice")
        return table

    def write(self, call_id: bytes, table: NDArray[np.int64], start: int, tokens: TokenIds) -> None:
        """Compute ``tokens`` at ``start`` on; every position before must be valid state."""
        self._check_chain(call_id, table, start)
        written = table[start // self.block_tokens :]
        if self._copies[written].any():
            block = int(written[np.argmax(self._copies[written])])
            raise refusal(call_id, f"block {block} is being copied and cannot be written")
        position, end = start, start + len(tokens)
        while position < end:
            index, offset = divmod(position, self.block_tokens)
            count = min(self.block_tokens - offset, end - position)
            self._fill(table, index, offset, tokens[position - start : position - start + count])
            position += count

    def check_tokens(self, call_id: bytes, table: NDArray[np.int64], history: TokenIds) -> None:
        """Every position of ``history`` must have been computed from exactly these ids."""
        held = self._content[table].reshape(-1)[: len(history)]
        if not np.array_equal(held, history):
            position = int(np.argmin(held == history))
            raise refusal(
                call_id,
                f"position {position} holds the state of token {int(held[position])}, its "
                f"history says {int(history[position])}",
            )

    def context_hash(self, table: NDArray[np.int64], positions: int) -> int:
        """A 64-bit hash of the context in the first ``positions`` positions (at least one)."""
        index, offset = divmod(positions - 1, self.block_tokens)
        block = table[index]
        return chain_next(int(self._before[block]), self._content[block, : offset + 1])

    def read(self, block: int) -> BlockContent:
        """Raises ``EngineError`` for a block that holds no state."""
        if not self._filled[self._existing(block)]:
            raise EngineError(f"block {block} holds no state to copy")
        return BlockContent(
            self._content[block].copy(),
            int(self._before[block]),
            int(self._after[block]),
            int(self._filled[block]),
        )

    def put(self, block: int, content: BlockContent) -> None:
        """Raises ``EngineError`` for a block that is being copied."""
        if self._copies[self._existing(block)]:
            raise EngineError(f"block {block} is being copied and cannot be written")
        self._content[block] = content.tokens
        self._before[block] = content.before
        self._after[block] = content.after
        self._filled[block] = content.filled

    def begin_copy(self, blocks: Sequence[int]) -> None:
        np.add.at(self._copies, blocks, 1)

    def end_copy(self, blocks: Sequence[int]) -> None:
        np.subtract.at(self._copies, blocks, 1)

    def _existing(self, block: int) -> int:
        if not 0 <= block < len(self._filled):
            raise EngineError(f"block {block}: the device has {len(self._filled)}")
        return block

    def _fill(self, table: NDArray[np.int64], index: int, offset: int, part: TokenIds) -> None:
        block = table[index]
        if offset == 0:
            self._before[block] = self._start if index == 0 else self._after[table[index - 1]]
            self._filled[block] = 0
        here = self._content[block, offset : offset + len(part)]
        again = self._filled[block] >= offset + len(part) and np.array_equal(here, part)
        if again:
            return
        here[:] = part
        self._filled[block] = offset + len(part)
        if self._filled[block] == self.block_tokens:
            self._after[block] = chain_next(int(self._before[block]), self._content[block])

    def _check_chain(self, call_id: bytes, table: NDArray[np.int64], positions: int) -> None:
        """Blocks must follow each other in one context and be computed up to ``positions``."""
        full, rest = divmod(positions, self.block_tokens)
        used = table[: full + (rest > 0)]
        if not len(used):
            return
        needed = np.full(len(used), self.block_tokens, np.int32)
        if rest:
            needed[-1] = rest
        short = self._filled[used] < needed
        expected = np.concatenate(([np.uint64(self._start)], self._after[used[:-1]]))
        wrong = short | (self._before[used] != expected)
        if wrong.any():
            index = int(np.argmax(wrong))
            why = "is not computed that far" if short[index] else "belongs to another context"
            raise refusal(call_id, f"block {int(used[index])} at place {index} of its table {why}")
