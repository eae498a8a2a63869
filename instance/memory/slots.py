"""Who owns which slot of recurrent state of the active model: counts only, no tensors.

A slot holds the state of one call after some number of tokens. It is in exactly one place::

    free --take--> held --release, unnamed--> free
                    | ^
      release, named| | hold          take (forgets the least recent name)
                    v |                    |
                    kept ------------------+--> held

What is named by a block's key is the state after that block, for whoever continues from there.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final


class SlotPool:
    """``total`` slots, 0 .. total - 1. Misuse raises ``ValueError``."""

    def __init__(self, total: int) -> None:
        self.total: Final = total
        self._free = list(range(total - 1, -1, -1))
        self._references = [0] * total
        self._slot: dict[bytes, int] = {}
        self._key: dict[int, bytes] = {}
        # Named and held by nobody, the least recently used first.
        self._kept: OrderedDict[int, None] = OrderedDict()

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def kept(self) -> int:
        return len(self._kept)

    @property
    def held(self) -> int:
        return self.total - len(self._free) - len(self._kept)

    def references(self, slot: int) -> int:
        return self._references[slot]

    def find(self, key: bytes) -> int | None:
        """The slot with the state after the block of this key."""
        return self._slot.get(key)

    def take(self) -> int | None:
        """Hold a slot whose content is of no use to anybody; None when all are held."""
        if self._free:
            slot = self._free.pop()
        elif self._kept:
            slot, _ = self._kept.popitem(last=False)
            del self._slot[self._key.pop(slot)]
        else:
            return None
        self._references[slot] = 1
        return slot

    def hold(self, slot: int) -> None:
        """One more holder of a held or kept slot."""
        if not self._references[slot] and slot not in self._kept:
            raise ValueError(f"slot {slot} is free and cannot be held")
        self._kept.pop(slot, None)
        self._references[slot] += 1

    def name(self, slot: int, key: bytes) -> None:
        """The held ``slot``, which nobody will write any more, is the state after this block. A
        key that another slot has stays with that one."""
        if not self._references[slot] or slot in self._key:
            raise ValueError(f"slot {slot} is not held, or has a name")
        if key not in self._slot:
            self._slot[key], self._key[slot] = slot, key

    def release(self, slot: int) -> None:
        """One holder less."""
        if not self._references[slot]:
            raise ValueError(f"slot {slot} is not held and cannot be released")
        self._references[slot] -= 1
        if self._references[slot]:
            return
        if slot in self._key:
            self._kept[slot] = None
        else:
            self._free.append(slot)

    def forget(self, key: bytes) -> None:
        """Nobody will continue from this block: its slot is free, unless it is held."""
        slot = self._slot.get(key)
        if slot is not None and not self._references[slot]:
            del self._slot[key], self._key[slot], self._kept[slot]
            self._free.append(slot)
