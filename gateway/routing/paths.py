"""The block keys of prompts, each computed once.

A key costs about a microsecond, comparing tokens a fraction of a nanosecond each: a prompt that
goes on from a known one takes over its keys as far as both agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from alipes.instance.contract import BLOCK_TOKENS, TokenIds, chain_keys, chain_root

TOKEN_BYTES: Final = 4
_KEY_COST: Final = 64  # a bytes object of 16 and the place in a list


class TokenPath:
    """``tokens`` int32 (n,) of one tenant; a ``BlockPath`` of the router. Keys are those of the
    contract's chain over blocks of ``block_tokens``, with the tenant as salt."""

    def __init__(
        self,
        tokens: TokenIds,
        tenant: str,
        previous: TokenPath | None = None,
        block_tokens: int = BLOCK_TOKENS,
    ) -> None:
        self.tokens = tokens
        self._tenant = tenant
        self.block_tokens: Final = block_tokens
        self._keys: dict[str, list[bytes]] = {}
        if previous is not None and previous._keys:
            shared = common_prefix(previous.tokens, tokens) // block_tokens
            self._keys = {name: keys[:shared] for name, keys in previous._keys.items()}

    def keys(self, kv_format: str) -> Sequence[bytes]:
        """Keys of all full blocks, 16 bytes each; computed at most once for each format."""
        keys = self._keys.setdefault(kv_format, [])
        wanted = len(self.tokens) // self.block_tokens
        if len(keys) < wanted:
            root = chain_root(kv_format, self._tenant.encode())
            self._extend(keys, root, wanted)
        return keys

    def followed_by(self, tokens: TokenIds) -> TokenPath:
        """The path of these tokens after those of this one."""
        whole = np.concatenate((self.tokens, tokens))
        whole.setflags(write=False)
        return TokenPath(whole, self._tenant, self, self.block_tokens)

    @property
    def cost(self) -> int:
        """Bytes that keeping it takes."""
        return self.tokens.nbytes + _KEY_COST * sum(map(len, self._keys.values()))

    def _extend(self, keys: list[bytes], root: bytes, wanted: int) -> None:
        size = self.block_tokens
        rest = self.tokens[len(keys) * size : wanted * size]
        keys.extend(chain_keys(keys[-1] if keys else root, rest, size))


def common_prefix(a: TokenIds, b: TokenIds) -> int:
    """How many ids both begin with."""
    size = min(len(a), len(b))
    if size == 0:
        return 0
    differ = a[:size] != b[:size]
    first = int(differ.argmax())
    return first if differ[first] else size
