"""What one layer keeps of the tokens it has seen, as frozen specs; pools see nothing else.

Paged state grows with every token and lies in blocks. Recurrent state has one size however long
the call is: it lies in slots, one for each moment of a call at which it is kept.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

DTYPE_BYTES: Final = {"float16": 2, "bfloat16": 2, "float32": 4}


@dataclass(frozen=True, slots=True)
class PagedKV:
    """Keys and values of every token: 2 x heads x dim elements a token, in blocks."""

    heads: int
    dim: int
    dtype: str = "float32"

    @property
    def token_bytes(self) -> int:
        return 2 * self.heads * self.dim * DTYPE_BYTES[self.dtype]

    def __str__(self) -> str:
        return f"kv{self.heads}x{self.dim}:{self.dtype}"


@dataclass(frozen=True, slots=True)
class PagedLatent:
    """One vector of ``dim`` elements for every token, which all heads share (MLA): the compressed
    keys and values, then the rotated part of the key. All ranks hold the same."""

    dim: int
    dtype: str = "float32"

    @property
    def token_bytes(self) -> int:
        return self.dim * DTYPE_BYTES[self.dtype]

    def __str__(self) -> str:
        return f"latent{self.dim}:{self.dtype}"


@dataclass(frozen=True, slots=True)
class Recurrent:
    """Tensors of these ``shapes`` that every token changes, one after another in a slot."""

    shapes: tuple[tuple[int, ...], ...]
    dtype: str = "float32"

    @property
    def nbytes(self) -> int:
        return sum(map(math.prod, self.shapes)) * DTYPE_BYTES[self.dtype]

    def __str__(self) -> str:
        return f"recurrent{'+'.join('x'.join(map(str, s)) for s in self.shapes)}:{self.dtype}"


Paged = PagedKV | PagedLatent
StateSpec = Paged | Recurrent


def paged(states: Sequence[StateSpec]) -> tuple[Paged, ...]:
    """The specs of the layers whose state lies in blocks, in order."""
    return tuple(state for state in states if not isinstance(state, Recurrent))


def held_as(states: Sequence[StateSpec], dtype: str) -> tuple[StateSpec, ...]:
    """The specs with paged state of ``dtype``, which is rounded once, when it is written. Recurrent
    state stays as it is: every token changes what the one before it left, so that what rounding
    does to it adds up."""
    return tuple(s if isinstance(s, Recurrent) else replace(s, dtype=dtype) for s in states)


def block_bytes(states: Sequence[StateSpec], block_tokens: int) -> int:
    """Device bytes of one block over all paged layers."""
    return block_tokens * sum(state.token_bytes for state in paged(states))


def slot_bytes(states: Sequence[StateSpec]) -> int:
    """Device bytes of one slot over all recurrent layers; 0 without any."""
    return sum(state.nbytes for state in states if isinstance(state, Recurrent))


def describe(states: Sequence[StateSpec]) -> str:
    """A stable text of the specs, run-length coded, for the format string of a block chain."""
    runs: list[tuple[str, int]] = []
    for text in map(str, states):
        if runs and runs[-1][0] == text:
            runs[-1] = (text, runs[-1][1] + 1)
        else:
            runs.append((text, 1))
    return "+".join(f"{count}*{text}" for text, count in runs)
