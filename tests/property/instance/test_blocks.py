from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from alipes.instance.contract import BlocksRemoved, BlocksStored
from alipes.instance.memory.blocks import BlockPool
from alipes.instance.memory.prefix import PrefixIndex


class Blocks(RuleBasedStateMachine):
    """Pool and index together, as a scheduler uses them, against sets and lists.

    A path is a tuple of letters; its key is the path itself. ``users`` are calls: the path and
    the blocks that each holds. ``cached`` is the order in which blocks are to be evicted."""

    @initialize(total=st.integers(1, 12))
    def build(self, total: int) -> None:
        self.total = total
        self.pool = BlockPool(total)
        self.index = PrefixIndex("m")
        self.users: list[tuple[list[bytes], list[int]]] = []
        self.cached: list[int] = []
        self.content: dict[bytes, int] = {}
        self.told: set[bytes] = set()

    def held(self) -> set[int]:
        return {block for _, blocks in self.users for block in blocks}

    def take_stored(self, events: tuple[BlocksStored, ...], path: list[bytes]) -> None:
        for event in events:
            for parent, key in zip((event.parent, *event.keys), event.keys, strict=False):
                assert key not in self.told
                assert path.index(key) == (path.index(parent) + 1 if parent != b"root" else 0)
                self.told.add(key)

    def take_removed(self, events: tuple[BlocksRemoved, ...]) -> None:
        for event in events:
            assert self.told.issuperset(event.keys)
            self.told.difference_update(event.keys)

    @rule(letters=st.lists(st.sampled_from("ab"), min_size=1, max_size=6))
    def begin(self, letters: list[str]) -> None:
        """Match, share, allocate the rest, publish: what a prompt does."""
        path = ["".join(letters[:end]).encode() for end in range(1, len(letters) + 1)]
        known = 0
        while known < len(path) and path[known] in self.content:
            known += 1
        found = self.index.match(iter(path))
        assert found == [self.content[key] for key in path[:known]]

        self.pool.share(found)
        self.cached = [block for block in self.cached if block not in found]
        self.users.append((path[:known], list(found)))
        free = self.total - len(self.held()) - len(self.cached)
        missing = len(path) - known
        allocation = self.pool.allocate(missing)
        if missing > free + len(self.cached):
            assert allocation is None
            return
        assert allocation is not None
        evicted = self.cached[: max(0, missing - free)]
        assert sorted(allocation.evicted) == sorted(evicted)
        self.cached = self.cached[len(evicted) :]
        self.take_removed(self.index.remove(allocation.evicted))
        self.content = {k: b for k, b in self.content.items() if b not in evicted}
        assert not self.held() & set(allocation.blocks)

        blocks = found + allocation.blocks
        self.users[-1] = (path, blocks)
        parent = path[known - 1] if known else b"root"
        entered, events = self.index.publish(parent, path[known:], allocation.blocks)
        self.take_stored(events, path)
        for key, block in zip(path[known:], allocation.blocks, strict=True):
            assert (block in entered) == (key not in self.content)
            self.content.setdefault(key, block)
        self.pool.publish(entered)

    @precondition(lambda self: self.users)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        number = data.draw(st.integers(0, len(self.users) - 1))
        _, blocks = self.users.pop(number)
        self.pool.release(blocks)
        held = self.held()
        published = set(self.content.values())
        self.cached += [b for b in reversed(blocks) if b not in held and b in published]

    @precondition(lambda self: self.cached)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(self.cached))
        self.pool.drop(block)
        (key,) = [key for key, known in self.content.items() if known == block]
        assert self.index.key(block) == key
        self.take_removed(self.index.remove((block,)))
        self.cached.remove(block)
        del self.content[key]

    @rule()
    def void(self) -> None:
        """A switch: everyone lets go and nothing is known any more."""
        for _, blocks in self.users:
            self.pool.release(blocks)
        self.take_removed(self.index.clear())
        assert not self.told
        assert len(self.index) == 0
        self.build(self.total)

    @invariant()
    def conserved(self) -> None:
        if not hasattr(self, "pool"):
            return
        held = self.held()
        assert self.pool.held == len(held)
        assert self.pool.cached == len(self.cached)
        assert self.pool.highest == max(held.union(self.cached), default=-1)
        assert self.pool.free + self.pool.cached + self.pool.held == self.total
        assert {b for b in range(self.total) if self.pool.is_cached(b)} == set(self.cached)
        for block in range(self.total):
            users = sum(blocks.count(block) for _, blocks in self.users)
            assert self.pool.references(block) == users
        assert self.told == set(self.content)


TestBlocks = Blocks.TestCase
TestBlocks.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
