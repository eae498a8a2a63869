"""Known prompts, found by the messages that they begin with."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
import numpy as np

from alipes.gateway.conversation.message import Message, Tool
from alipes.gateway.text.tokens import Cuts
from alipes.instance.contract import TokenIds

_KEY_COST: Final = 200


class Known(msgspec.Struct, eq=False):
    """A prompt's text, ids and cuts (see ``tokens``); ``keys`` are those that lead here. Messages
    whose key is not among ``marked`` were shown as they are (see ``literal``)."""

    text: str
    ids: TokenIds
    cuts: Cuts
    marked: frozenset[int] = frozenset()
    keys: set[int] = msgspec.field(default_factory=set)

    @property
    def cost(self) -> int:
        return sys.getsizeof(self.text) + self.ids.nbytes + self.cuts.nbytes


def message_keys(tenant: str, tools: Sequence[Tool], messages: Iterable[Message]) -> list[int]:
    """Chained 64-bit hashes: of tenant and tools, then of each message after them. They only lead
    to what is known, as its text is compared, so that Python's own, which are fast, will do."""
    encode = msgspec.json.encode
    keys = [hash((tenant, encode(tools)))]
    for message in messages:
        rest = encode(message.calls) if message.calls else b""
        kept = (message.role, message.text, message.reasoning, message.name, message.answers)
        keys.append(hash((keys[-1], rest, *kept)))
    return keys


def joint(known: Known, text: str) -> tuple[int, int]:
    """``(start, index)``: the ids of ``text`` are ``known.ids[:index]`` and those of
    ``text[start:]``; ``(0, 0)`` where nothing can be reused."""
    if known.text == text:
        return len(text), len(known.ids)
    agreed = common_length(known.text, text)
    row = int(np.searchsorted(known.cuts[:, 1], agreed, side="right")) - 1
    return (int(known.cuts[row, 0]), int(known.cuts[row, 2])) if row >= 0 else (0, 0)


def common_length(a: str, b: str) -> int:
    """How many characters both begin with; by halves, as slices compare at memory speed."""
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low


class PromptCache:
    """Least recently used prompts within ``limit`` bytes.

    A prompt takes over the keys of all its beginnings, so that a growing conversation holds one
    entry, and a fork of it one more.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._by_key: dict[int, Known] = {}
        self._order: OrderedDict[int, Known] = OrderedDict()
        self._cost = 0

    @property
    def cost(self) -> int:
        """Bytes held, keys included."""
        return self._cost + _KEY_COST * len(self._by_key)

    def __len__(self) -> int:
        return len(self._order)

    def find(self, keys: Sequence[int]) -> tuple[Known | None, int]:
        """The prompt of the longest beginning that is known, and how many of the ``keys``, which
        go from short to long, lead to it."""
        for count in range(len(keys), 0, -1):
            if known := self._by_key.get(keys[count - 1]):
                self._order.move_to_end(id(known))
                return known, count
        return None, 0

    def store(self, keys: Sequence[int], known: Known) -> None:
        """Keeps ``known`` under all ``keys``, unless it alone would exceed the limit."""
        if known.cost + _KEY_COST * len(keys) > self._limit:
            return
        self._order[id(known)] = known
        self._cost += known.cost
        for key in keys:
            if old := self._by_key.get(key):
                old.keys.discard(key)
                if not old.keys:
                    self._forget(old)
            self._by_key[key] = known
            known.keys.add(key)
        while self.cost > self._limit:
            self._forget(next(iter(self._order.values())))

    def _forget(self, known: Known) -> None:
        del self._order[id(known)]
        self._cost -= known.cost
        for key in known.keys:
            del self._by_key[key]
        known.keys.clear()
