"""What one layer keeps of the tokens it has seen, as frozen specs; pools see nothing else."""

from __future__ import annotations

from dataclasses import dataclass
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


StateSpec = PagedKV


def block_bytes(states: tuple[StateSpec, ...], block_tokens: int) -> int:
    """Device bytes of one block over all layers."""
    return block_tokens * sum(state.token_bytes for state in states)


def describe(states: tuple[StateSpec, ...]) -> str:
    """A stable text of the specs, run-length coded, for the format string of a block chain."""
    runs: list[tuple[str, int]] = []
    for state in states:
        text = f"kv{state.heads}x{state.dim}:{state.dtype}"
        if runs and runs[-1][0] == text:
            runs[-1] = (text, runs[-1][1] + 1)
        else:
            runs.append((text, 1))
    return "+".join(f"{count}*{text}" for text, count in runs)
