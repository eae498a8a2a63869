"""Finding the known prompt that is the longest beginning of a new one, without looking at all.

A prompt is filed under a sum over its full blocks, and there under the ids after them. The sums of
all beginnings of a new prompt take one pass over it. They only lead to candidates: whether one is
a beginning is told by comparing ids.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from alipes.gateway.routing.paths import TOKEN_BYTES
from alipes.instance.contract import BLOCK_TOKENS, TokenIds

Place = tuple[str, str, int, bytes]
"""Tenant, model, sum over the full blocks, bytes of the ids after them."""
Sums = NDArray[np.uint64]

K = TypeVar("K")


def may_begin(place: Place, length: int, tokens: TokenIds, sums: Sums) -> bool:
    """Whether the ``length`` ids filed under ``place`` can be the first of ``tokens``, of the same
    tenant and model; almost certain without comparing all of them."""
    if length > len(tokens):
        return False
    start = length // BLOCK_TOKENS * BLOCK_TOKENS
    _, _, total, rest = place
    return int(sums[start // BLOCK_TOKENS]) == total and _bytes(tokens[start:length]) == rest


def _bytes(tokens: TokenIds) -> bytes:
    return tokens.astype("<i4", copy=False).tobytes()


class PrefixIndex(Generic[K]):
    """Owners by the beginning they are filed under. ``seed`` makes sums unpredictable."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._factors: Sums = np.empty(0, np.uint64)
        self._owners: dict[tuple[str, str, int], dict[bytes, dict[K, None]]] = {}

    def sums(self, tokens: TokenIds) -> Sums:
        """Of the first 0, 1, 2, ... full blocks; uint64 (blocks + 1,)."""
        blocks = len(tokens) // BLOCK_TOKENS
        self._grow(blocks * BLOCK_TOKENS)
        size = blocks * BLOCK_TOKENS
        # Ids are shifted, as a product with id 0 would not tell how often it occurs.
        parts = (tokens[:size].astype(np.uint64) + np.uint64(1)) * self._factors[:size]
        sums = np.zeros(blocks + 1, np.uint64)
        np.cumsum(parts.reshape(blocks, BLOCK_TOKENS).sum(axis=1), out=sums[1:])
        return sums

    def _grow(self, size: int) -> None:
        if size > len(self._factors):
            more = max(size, 2 * len(self._factors)) - len(self._factors)
            drawn = self._random.integers(0, 1 << 63, more, np.uint64) * np.uint64(2)
            self._factors = np.concatenate((self._factors, drawn + np.uint64(1)))

    def place(self, tenant: str, model: str, tokens: TokenIds, sums: Sums) -> Place:
        """Where ``tokens``, whose ``sums`` these are, are filed."""
        rest = tokens[(len(sums) - 1) * BLOCK_TOKENS :]
        return tenant, model, int(sums[-1]), _bytes(rest)

    def add(self, place: Place, owner: K) -> None:
        tenant, model, total, rest = place
        rests = self._owners.setdefault((tenant, model, total), {})
        rests.setdefault(rest, {})[owner] = None

    def discard(self, place: Place, owner: K) -> None:
        tenant, model, total, rest = place
        rests = self._owners.get((tenant, model, total), {})
        owners = rests.get(rest, {})
        owners.pop(owner, None)
        if not owners and rest in rests:
            del rests[rest]
            if not rests:
                del self._owners[tenant, model, total]

    def candidates(
        self, tenant: str, model: str, tokens: TokenIds, sums: Sums
    ) -> Iterator[Iterator[K]]:
        """Owners of all true beginnings of ``tokens``, the longest first; those of one beginning
        come together, the latest first."""
        data = _bytes(tokens)
        totals = sums.tolist()
        for blocks in range(len(totals) - 1, -1, -1):
            rests = self._owners.get((tenant, model, totals[blocks]))
            if not rests:
                continue
            start = blocks * BLOCK_TOKENS
            longest = min(BLOCK_TOKENS - 1, len(tokens) - 1 - start)
            for length in range(longest, -1, -1):
                rest = data[start * TOKEN_BYTES : (start + length) * TOKEN_BYTES]
                if owners := rests.get(rest):
                    yield reversed(owners)

    def __len__(self) -> int:
        return sum(len(owners) for rests in self._owners.values() for owners in rests.values())
