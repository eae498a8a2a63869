"""Finding the known prompt that is the longest beginning of a new one, without looking at all.

A prompt is filed under a sum over its full blocks, and there under the ids after them. The sums of
all beginnings of a new prompt take one pass over it. They only lead to candidates: whether one is
a beginning is told by comparing ids.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from alipes.gateway.routing.paths import TOKEN_BYTES
from alipes.instance.contract import BLOCK_TOKENS, TokenIds

Place = tuple[str, str, int, bytes]
"""Tenant, model, sum over the full blocks, bytes of the ids after them."""

K = TypeVar("K")


@dataclass(frozen=True, slots=True, eq=False)
class Sums:
    """``totals`` over the first 0, 1, 2, ... full blocks of a prompt, uint64 (blocks + 1,)."""

    totals: NDArray[np.uint64]
    block_tokens: int

    def first(self, length: int) -> Sums:
        """Those of the first ``length`` ids."""
        return Sums(self.totals[: length // self.block_tokens + 1], self.block_tokens)

    @property
    def last(self) -> int:
        return int(self.totals[-1])

    @property
    def tokens(self) -> int:
        """Ids in full blocks."""
        return (len(self.totals) - 1) * self.block_tokens


def may_begin(place: Place, length: int, tokens: TokenIds, sums: Sums) -> bool:
    """Whether the ``length`` ids filed under ``place`` can be the first of ``tokens``, of the same
    tenant and model; almost certain without comparing all of them."""
    if length > len(tokens):
        return False
    _, _, total, rest = place
    begun = sums.first(length)
    return begun.last == total and _bytes(tokens[begun.tokens : length]) == rest


def _bytes(tokens: TokenIds) -> bytes:
    return tokens.astype("<i4", copy=False).tobytes()


class PrefixIndex(Generic[K]):
    """Owners by the beginning they are filed under. ``seed`` makes sums unpredictable; the same
    one makes the same sums, in whatever order they are asked for."""

    def __init__(self, seed: int, block_tokens: int = BLOCK_TOKENS) -> None:
        self.seed: Final = seed
        # Its stream is the same in every version of numpy; those of distributions may change.
        self._random = np.random.PCG64(seed)
        self._block_tokens = block_tokens
        self._factors: NDArray[np.uint64] = np.empty(0, np.uint64)
        self._owners: dict[tuple[str, str, int], dict[bytes, dict[K, None]]] = {}

    def sums(self, tokens: TokenIds, begun: Sums | None = None) -> Sums:
        """Those of ``tokens``, which go on from the ids that ``begun`` is of."""
        size = self._block_tokens
        blocks = len(tokens) // size
        known = len(begun.totals) if begun is not None else 1
        totals = np.zeros(max(known, blocks + 1), np.uint64)
        if begun is not None:
            totals[:known] = begun.totals
        first, last = (known - 1) * size, blocks * size
        if first < last:
            self._grow(last)
            # Ids are shifted, as a product with id 0 would not tell how often it occurs.
            parts = tokens[first:last].astype(np.uint64)
            parts += np.uint64(1)
            factors = self._factors[first:last].reshape(-1, size)
            products = np.einsum("ij,ij->i", parts.reshape(-1, size), factors)
            np.cumsum(products, out=totals[known:])
            totals[known:] += totals[known - 1]
        return Sums(totals, size)

    def _grow(self, size: int) -> None:
        if size > len(self._factors):
            more = max(size, 2 * len(self._factors)) - len(self._factors)
            odd = self._random.random_raw(more) | np.uint64(1)
            self._factors = np.concatenate((self._factors, odd))

    def place(self, tenant: str, model: str, tokens: TokenIds, sums: Sums) -> Place:
        """Where ``tokens``, whose ``sums`` these are, are filed."""
        return tenant, model, sums.last, _bytes(tokens[sums.tokens :])

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
        totals = sums.totals.tolist()
        for blocks in range(len(totals) - 1, -1, -1):
            rests = self._owners.get((tenant, model, totals[blocks]))
            if not rests:
                continue
            start = blocks * self._block_tokens
            longest = min(self._block_tokens - 1, len(tokens) - 1 - start)
            for length in range(longest, -1, -1):
                rest = data[start * TOKEN_BYTES : (start + length) * TOKEN_BYTES]
                if owners := rests.get(rest):
                    yield reversed(owners)

    def __len__(self) -> int:
        return sum(len(owners) for rests in self._owners.values() for owners in rests.values())
