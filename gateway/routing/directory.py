"""Where every block of KV is, from what the instances tell (Talaria Eq. 1, the KV term)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from operator import or_
from typing import Final

from alipes.instance.contract import BlocksRemoved, BlocksStored, Tier

_PIECE: Final = 256
_REMEMBERED: Final = 64
_TIERS: Final = tuple(Tier)


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


@dataclass(frozen=True, slots=True)
class _Found:
    """Of the first ``counting`` keys of a path, which must not change, so many blocks."""

    keys: Sequence[bytes]
    counting: int
    device: int
    host: int


class BlockDirectory:
    """The keys in each tier of each instance. Chained keys name model format and whole prefix, so
    that models and tenants need no tables of their own."""

    def __init__(self) -> None:
        self._keys: defaultdict[tuple[str, Tier], set[bytes]] = defaultdict(set)
        # What instances were found to have of paths since their blocks changed last: calls are
        # asked about twice, those that wait again and again.
        self._found: defaultdict[str, dict[int, _Found]] = defaultdict(dict)

    def stored(self, instance: str, event: BlocksStored) -> None:
        """Also for blocks that are known already, as after a reconnection."""
        self._found.pop(instance, None)
        self._keys[instance, event.tier].update(event.keys)

    def removed(self, instance: str, event: BlocksRemoved) -> None:
        """Blocks that are not known are passed over."""
        self._found.pop(instance, None)
        self._keys[instance, event.tier].difference_update(event.keys)

    def clear(self, instance: str) -> None:
        """Nothing is known of the instance (any more)."""
        self._found.pop(instance, None)
        for tier in _TIERS:
            self._keys.pop((instance, tier), None)

    def knows(self, instance: str) -> bool:
        """Whether any block is known on an instance, in whichever tier."""
        return any(self._keys.get((instance, tier)) for tier in _TIERS)

    def tiers(self, instance: str, key: bytes) -> frozenset[Tier]:
        return frozenset(tier for tier in _TIERS if key in self._keys.get((instance, tier), ()))

    def locality(
        self, instance: str, keys: Sequence[bytes], tokens: int, block_tokens: int
    ) -> Locality:
        """How much of a prompt of ``tokens`` tokens an instance has: the unbroken beginning of
        blocks in either tier. The last token is always computed, so that at most
        ``(tokens - 1) // block_tokens`` blocks count."""
        counting = min(len(keys), max(0, tokens - 1) // block_tokens)
        found = self._found[instance].get(id(keys))
        if found is None or found.keys is not keys or found.counting != counting:
            found = self._find(instance, keys, counting)
            if len(self._found[instance]) >= _REMEMBERED:
                self._found[instance].clear()
            self._found[instance][id(keys)] = found
        near, far = found.device * block_tokens, found.host * block_tokens
        return Locality(near, far, tokens - near - far)

    def _find(self, instance: str, keys: Sequence[bytes], counting: int) -> _Found:
        device, host = (self._keys[instance, tier] for tier in (Tier.DEVICE, Tier.HOST))
        near = present = 0
        # No loop over keys: prompts have thousands, and this is asked at every placement.
        for start in range(0, counting, _PIECE):
            piece = keys[start : min(start + _PIECE, counting)]
            if device.issuperset(piece):
                near, present = near + len(piece), present + len(piece)
                continue
            here = list(map(device.__contains__, piece))
            either = list(map(or_, here, map(host.__contains__, piece)))
            if False in either:
                present += either.index(False)
                near += here[: either.index(False)].count(True)
                break
            present += len(piece)
            near += here.count(True)
        return _Found(keys, counting, near, present - near)
