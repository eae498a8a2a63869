"""Slots of recurrent state against a slow, obvious model."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from alipes.instance.memory.slots import SlotPool

KEYS = st.sampled_from([b"a", b"b", b"c", b"d", b"e", b"f"])


class Slots(RuleBasedStateMachine):
    """``names`` in the order in which they were last let go; ``holders`` of every slot."""

    @initialize(total=st.integers(1, 5))
    def build(self, total: int) -> None:
        self.pool = SlotPool(total)
        self.names: dict[bytes, int] = {}
        self.holders: Counter[int] = Counter()

    @property
    def held(self) -> list[int]:
        return sorted(slot for slot, count in self.holders.items() if count)

    @property
    def kept(self) -> list[bytes]:
        return [key for key, slot in self.names.items() if not self.holders[slot]]

    @rule()
    def take(self) -> None:
        free = self.pool.total - len(self.held) - len(self.kept)
        slot = self.pool.take()
        if free:
            assert slot is not None
            assert slot not in self.held
            assert slot not in self.names.values()
        elif self.kept:
            assert slot == self.names.pop(self.kept[0])
        else:
            assert slot is None
        if slot is not None:
            self.holders[slot] += 1

    @precondition(lambda self: self.held)
    @rule(data=st.data(), key=KEYS)
    def name(self, data: st.DataObject, key: bytes) -> None:
        slot = data.draw(st.sampled_from(self.held))
        if slot in self.names.values():
            with pytest.raises(ValueError, match="has a name"):
                self.pool.name(slot, key)
            return
        self.pool.name(slot, key)
        self.names.setdefault(key, slot)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(self.held))
        self.pool.release(slot)
        self.holders[slot] -= 1
        named = [key for key, other in self.names.items() if other == slot]
        if named and not self.holders[slot]:
            self.names[named[0]] = self.names.pop(named[0])

    @rule(key=KEYS)
    def hold(self, key: bytes) -> None:
        slot = self.pool.find(key)
        assert slot == self.names.get(key)
        if slot is not None:
            self.pool.hold(slot)
            self.holders[slot] += 1

    @rule(key=KEYS)
    def forget(self, key: bytes) -> None:
        self.pool.forget(key)
        if key in self.kept:
            del self.names[key]

    @rule(slot=st.integers(0, 4))
    def misuse(self, slot: int) -> None:
        if slot >= self.pool.total or slot in self.held:
            return
        with pytest.raises(ValueError, match="not held"):
            self.pool.release(slot)
        with pytest.raises(ValueError, match="not held"):
            self.pool.name(slot, b"x")
        if slot not in self.names.values():
            with pytest.raises(ValueError, match="free"):
                self.pool.hold(slot)

    @invariant()
    def adds_up(self) -> None:
        assert self.pool.held == len(self.held)
        assert self.pool.kept == len(self.kept)
        assert self.pool.free == self.pool.total - len(self.held) - len(self.kept)
        assert all(self.pool.find(key) == slot for key, slot in self.names.items())
        assert all(self.pool.references(slot) == count for slot, count in self.holders.items())


TestSlots = Slots.TestCase
