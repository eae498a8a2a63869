from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from alipes.instance.memory.changes import HostChange, HostRemoved
from alipes.instance.memory.registry import HostRegistry
from alipes.instance.memory.rows import HostBlock, still_here

REVISIONS = ("p", "q")
SLABS = {"p": 2, "q": 3}


@dataclass(eq=False)
class Copy:
    """What the slow model knows of one block."""

    block: HostBlock
    revision: str
    key: bytes | None
    slabs: tuple[int, ...]
    complete: bool = False
    pins: int = 1
    references: int = 0

    @property
    def held(self) -> bool:
        return self.pins + self.references > 0


@dataclass
class Slow:
    """Blocks in a list, and in another their order of use, the least recent first."""

    total: int
    live: list[Copy] = field(default_factory=list)
    order: list[Copy] = field(default_factory=list)
    evicted: int = 0

    def used(self, held_only: bool = False) -> int:
        return sum(len(copy.slabs) for copy in self.live if copy.held or not held_only)

    def of(self, revision: str, key: bytes) -> Copy | None:
        for copy in self.live:
            if (copy.revision, copy.key) == (revision, key):
                return copy
        return None

    def use(self, copies: list[Copy]) -> None:
        for copy in reversed(copies):
            if copy in self.order:
                self.order.remove(copy)
            self.order.append(copy)

    def make_room(self, slabs: int) -> bool:
        if self.total - self.used(held_only=True) < slabs:
            return False
        while self.total - self.used() < slabs:
            victim = next(copy for copy in self.order if not copy.held)
            self.evicted += 1
            self.forget(victim)
        return True

    def forget(self, copy: Copy) -> None:
        self.live.remove(copy)
        self.order.remove(copy)

    def settle(self, copy: Copy) -> None:
        if not copy.held and (copy.key is None or not copy.complete):
            self.forget(copy)


class Registry(RuleBasedStateMachine):
    """A path is a word; the key of each of its beginnings is that beginning."""

    @initialize(total=st.integers(0, 16))
    def build(self, total: int) -> None:
        self.registry = HostRegistry(total)
        self.slow = Slow(total)
        self.told: set[tuple[str, bytes]] = set()
        self.seen: dict[tuple[str, str], list[HostBlock]] = {}

    def begun(self, word: str, revision: str) -> list[HostBlock]:
        """The blocks of the longest beginning of a word that was looked at before."""
        seen = (self.seen.get((revision, word[:end])) for end in range(len(word), 0, -1))
        return next((path for path in seen if path is not None), [])

    def some(self, data: st.DataObject, copies: Iterator[Copy]) -> list[Copy]:
        found = list(copies)
        if not found:
            return []
        return data.draw(st.lists(st.sampled_from(found), unique=True, max_size=3))

    def added(self, block: HostBlock, revision: str, key: bytes | None) -> Copy:
        copy = Copy(block, revision, key, block.slabs)
        assert len(copy.slabs) == SLABS[revision]
        self.slow.live.append(copy)
        self.slow.use([copy])
        return copy

    @rule(word=st.text("ab", min_size=1, max_size=5), revision=st.sampled_from(REVISIONS))
    def checkpoint(self, word: str, revision: str) -> None:
        keys = [word[:end].encode() for end in range(1, len(word) + 1)]
        begun = self.begun(word, revision)
        path, new = self.registry.reserve_path(revision, b"root", keys, SLABS[revision], begun)
        self.seen[revision, word[: len(path)]] = path
        copies: list[Copy] = []
        for index, key in enumerate(keys):
            copy = self.slow.of(revision, key)
            if copy is None:
                if not self.slow.make_room(SLABS[revision]):
                    break
                assert index in new
                copy = self.added(path[index], revision, key)
            else:
                assert index not in new
            assert path[index] is copy.block
            copy.references += 1
            copies.append(copy)
        assert len(path) == len(copies)
        self.slow.use(copies)
        for copy in copies:
            copy.references -= 1

    @rule(
        word=st.text("ab", max_size=5),
        private=st.integers(0, 2),
        revision=st.sampled_from(REVISIONS),
    )
    def save(self, word: str, private: int, revision: str) -> None:
        """A path that a saved call refers to: all of it or nothing."""
        size = SLABS[revision]
        keys = [word[:end].encode() for end in range(1, len(word) + 1)]
        found = [self.slow.of(revision, key) for key in keys]
        held = sum(copy is not None and copy.held for copy in found)
        room = self.slow.total - self.slow.used(held_only=True)
        begun = self.begun(word, revision)
        saved = self.registry.hold_path(revision, b"root", keys, private, size, begun)
        assert (saved is not None) == ((len(keys) + private - held) * size <= room)
        if saved is None:
            return
        path, new = saved
        self.seen[revision, word] = path[: len(word)]
        slots = [*found, *[None] * private]
        assert new == [place for place, copy in enumerate(slots) if copy is None]
        copies = [copy for copy in found if copy is not None]
        for copy in copies:
            copy.references += 1
        for place in new:
            assert self.slow.make_room(size)
            added = self.added(path[place], revision, keys[place] if place < len(keys) else None)
            added.references += 1
            copies.insert(place, added)
        assert path == [copy.block for copy in copies]
        self.slow.use(copies)

    @rule(revision=st.sampled_from(REVISIONS), key=st.none() | st.sampled_from([b"a", b"z"]))
    def reserve(self, revision: str, key: bytes | None) -> None:
        if key is not None and self.slow.of(revision, key):
            with pytest.raises(ValueError, match="already"):
                self.registry.reserve(revision, key, SLABS[revision])
            return
        block = self.registry.reserve(revision, key, SLABS[revision], b"root")
        assert (block is not None) == self.slow.make_room(SLABS[revision])
        if block is not None:
            self.added(block, revision, key)

    @rule(data=st.data(), keep=st.booleans())
    def end_copies(self, data: st.DataObject, keep: bool) -> None:
        """Commit or, without ``keep``, abort what no saved call refers to."""
        copying = (c for c in self.slow.live if not c.complete and (keep or not c.references))
        copies = self.some(data, copying)
        blocks = [copy.block for copy in copies]
        (self.registry.commit if keep else self.registry.abort)(blocks)
        for copy in copies:
            copy.complete = keep
            copy.pins -= 1
            self.slow.settle(copy)

    @rule(data=st.data(), pins=st.booleans())
    def take(self, data: st.DataObject, pins: bool) -> None:
        copies = self.some(data, (c for c in self.slow.live if c.complete or not pins))
        (self.registry.pin if pins else self.registry.hold)([copy.block for copy in copies])
        for copy in copies:
            copy.pins += pins
            copy.references += not pins

    @rule(data=st.data(), pins=st.booleans())
    def give_back(self, data: st.DataObject, pins: bool) -> None:
        taken = (c for c in self.slow.live if (c.complete and c.pins if pins else c.references))
        copies = self.some(data, taken)
        (self.registry.unpin if pins else self.registry.drop)([copy.block for copy in copies])
        for copy in copies:
            copy.pins -= pins
            copy.references -= not pins
            self.slow.settle(copy)

    @rule(word=st.text("ab", min_size=1, max_size=5), revision=st.sampled_from(REVISIONS))
    def look(self, word: str, revision: str) -> None:
        keys = [word[:end].encode() for end in range(1, len(word) + 1)]
        found = self.registry.match(revision, iter(keys))
        copies: list[Copy] = []
        for key in keys:
            copy = self.slow.of(revision, key)
            if copy is None or not copy.complete:
                break
            copies.append(copy)
        assert found == [copy.block for copy in copies]
        self.registry.touch(found)
        self.slow.use(copies)

    @precondition(lambda self: any(not copy.complete for copy in self.slow.live))
    @rule(data=st.data())
    def misuse(self, data: st.DataObject) -> None:
        copying = [copy for copy in self.slow.live if not copy.complete]
        block = data.draw(st.sampled_from(copying)).block
        for use in (self.registry.pin, self.registry.unpin):
            with pytest.raises(ValueError, match=r"is still|no such pin"):
                use([block])

    @invariant()
    def exact(self) -> None:
        if not hasattr(self, "registry"):
            return
        registry, slow = self.registry, self.slow
        assert registry.used == slow.used()
        assert registry.held == slow.used(held_only=True)
        assert registry.free + registry.used == registry.total
        assert registry.evicted == slow.evicted
        taken = [slab for copy in slow.live for slab in copy.slabs]
        assert len(set(taken)) == len(taken)
        assert set(taken) <= set(range(registry.total))
        for copy in slow.live:
            block = copy.block
            assert (block.slabs, block.pins, block.references) == (
                copy.slabs,
                copy.pins,
                copy.references,
            )

    @invariant()
    def seen_as_far_as_it_is_here(self) -> None:
        if not hasattr(self, "registry"):
            return
        live = {id(copy.block): copy.complete for copy in self.slow.live}
        for path in self.seen.values():
            here = [live.get(id(block)) for block in path]
            for published in (False, True):
                counted = still_here(path, published)
                assert None not in here[:counted]
                assert not published or all(here[:counted])
                whole = all(known is not None and (known or not published) for known in here)
                assert not whole or counted == len(path)

    @invariant()
    def told_as_it_is(self) -> None:
        if not hasattr(self, "registry"):
            return
        self.hear(self.registry.take_changes(), self.told)
        live = self.slow.live
        published = {(c.revision, c.key) for c in live if c.complete and c.key is not None}
        assert self.told == published
        again: set[tuple[str, bytes]] = set()
        self.hear(self.registry.known(), again)
        assert again == published

    @staticmethod
    def hear(changes: tuple[HostChange, ...], known: set[tuple[str, bytes]]) -> None:
        for change in changes:
            named = {(change.revision, key) for key in change.keys}
            assert len(named) == len(change.keys)
            if isinstance(change, HostRemoved):
                assert named <= known
                known -= named
                continue
            assert not named & known
            known |= named
            parent = change.parent
            for key in change.keys:
                assert key[:-1] == (b"" if parent == b"root" else parent)
                parent = key


TestRegistry = Registry.TestCase
TestRegistry.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
