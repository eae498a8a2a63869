"""Where every block of KV is, from what the instances tell (Talaria Eq. 1, the KV term)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from alipes.instance.contract import BlocksRemoved, BlocksStored, Tier

_HOST: Final = 2
_BITS: Final = {Tier.DEVICE: 1, Tier.HOST: _HOST}


@dataclass(frozen=True, slots=True)
class Locality:
    """A prompt as one instance has it, in tokens: a beginning of ``device_tokens`` and
    ``host_tokens`` blocks, then ``missing`` tokens to compute."""

    device_tokens: int
    host_tokens: int
    missing: int

    @property
    def present(self) -> int:
        return self.device_tokens + self.host_tokens


class BlockDirectory:
    """The tiers of every block, by instance and key. Chained keys name model format and whole
    prefix, so that models and tenants need no tables of their own."""

    def __init__(self) -> None:
        self._tiers: dict[str, dict[bytes, int]] = {}

    def stored(self, instance: str, event: BlocksStored) -> None:
        """Also for blocks that are known already, as after a reconnection."""
        tiers, bit = self._tiers.setdefault(instance, {}), _BITS[event.tier]
        for key in event.keys:
            tiers[key] = tiers.get(key, 0) | bit

    def removed(self, instance: str, event: BlocksRemoved) -> None:
        """Blocks that are not known are passed over."""
        tiers, bit = self._tiers.get(instance, {}), _BITS[event.tier]
        for key in event.keys:
            left = tiers.get(key, 0) & ~bit
            if left:
                tiers[key] = left
            else:
                tiers.pop(key, None)

    def clear(self, instance: str) -> None:
        """Nothing is known of the instance (any more)."""
        self._tiers.pop(instance, None)

    def blocks(self, instance: str) -> int:
        """Blocks known on an instance, in whichever tier."""
        return len(self._tiers.get(instance, ()))

    def tiers(self, instance: str, key: bytes) -> frozenset[Tier]:
        bits = self._tiers.get(instance, {}).get(key, 0)
        return frozenset(tier for tier, bit in _BITS.items() if bits & bit)

    def locality(
        self, instance: str, keys: Sequence[bytes], tokens: int, block_tokens: int
    ) -> Locality:
        """How much of a prompt of ``tokens`` tokens an instance has: the unbroken beginning of
        blocks in either tier. The last token is always computed, so that at most
        ``(tokens - 1) // block_tokens`` blocks count."""
        counting = keys[: max(0, tokens - 1) // block_tokens]
        # No loop in Python: prompts have thousands of blocks, and this is asked at every placement.
        found = list(map(self._tiers.get(instance, {}).get, counting))
        blocks = found.index(None) if None in found else len(found)
        host, present = found[:blocks].count(_HOST) * block_tokens, blocks * block_tokens
        return Locality(present - host, host, tokens - present)
