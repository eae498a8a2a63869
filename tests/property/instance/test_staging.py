from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from alipes.instance.memory.staging import OnDevice, StagingLedger, SwitchPath
from alipes.instance.memory.staging_plan import StagingArea

KV = 255
WEIGHTS = st.binary(min_size=1, max_size=150).map(lambda w: w.replace(bytes((KV,)), b"\0"))


class Staging(RuleBasedStateMachine):
    """A ledger over real bytes. ``memory`` is the arena; a write tears its chunk at first and
    lands when it ends, or before rows that an allocator takes from under it are used. ``held``
    says which chunk every place holds, by the obvious rules; ``flights`` which are being written,
    and whether they are still wanted."""

    @initialize(data=st.data())
    def build(self, data: st.DataObject) -> None:
        align = data.draw(st.sampled_from((1, 2, 4)), "align")
        self.area = StagingArea(
            data.draw(st.integers(0, 14), "rows"),
            tuple(data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=3), "row bytes")),
            align * data.draw(st.integers(1, 12 // align), "chunk"),
            data.draw(st.integers(0, 9), "base"),
            align,
        )
        self.ledger = StagingLedger(self.area)
        self.memory = bytearray(self.area.base + sum(self.area.row_bytes) * self.area.kv_blocks)
        self.used = 0
        self.models: dict[str, bytes] = {}
        self.target = ""
        self.held: dict[int, tuple[str, int]] = {}
        self.flights: dict[int, tuple[str, int] | None] = {}
        self.late: dict[int, bytes] = {}
        self.lost = 0
        self.keep(
            {f"kept{i}": w for i, w in enumerate(data.draw(st.lists(WEIGHTS, max_size=2)))},
            data.draw(st.integers(0, 14), "rows to come"),
        )

    # --- the obvious model -----------------------------------------------------------------------

    def keep(self, models: dict[str, bytes], rows: int) -> None:
        """Some lie where there are places, the others below the arena, apart from each other."""
        self.models |= models
        size, places = self.area.chunk_bytes, self.area.places
        chunks = [(name, c) for name, w in models.items() for c in range(-(-len(w) // size))]
        at = {
            chunk: places[i // 2 * 3].offset if i % 2 and i // 2 * 3 < len(places) else -i - 1
            for i, chunk in enumerate(chunks)
        }
        moving = self.ledger.keep(
            [
                OnDevice(name, len(w), {c: at[n, c] for n, c in chunks if n == name})
                for name, w in models.items()
            ],
            rows,
        )
        kept = chunks[: sum(self.lowest(place) >= rows for place in range(len(places)))]
        near = {place.offset: i for i, place in enumerate(places[: len(kept)])}
        free = [i for i in near.values() if places[i].offset not in map(at.__getitem__, kept)]
        for chunk in kept:
            place = near[at[chunk]] if at[chunk] in near else free.pop(0)
            assert moving.pop(at[chunk], place) == place
            self.fill(place, self.content(*chunk))
            self.held[place] = chunk
        assert not moving

    def stretch(self, layer: int) -> range:
        """The bytes of a layer's blocks."""
        size, before = self.area.kv_blocks, sum(self.area.row_bytes[:layer])
        start = self.area.base + before * size
        return range(start, start + self.area.row_bytes[layer] * size)

    def span(self, place: int) -> range:
        start = self.area.places[place].offset
        return range(start, start + self.area.chunk_bytes)

    def lowest(self, place: int) -> int:
        """The row of its layer that the first byte of the place is in."""
        start = self.area.places[place].offset
        layers = enumerate(map(self.stretch, range(len(self.area.row_bytes))))
        ((layer, own),) = [(i, own) for i, own in layers if start in own]
        assert self.span(place).stop <= own.stop
        return (start - own.start) // self.area.row_bytes[layer]

    def content(self, model: str, chunk: int) -> bytes:
        size = self.area.chunk_bytes
        return self.models[model][chunk * size : chunk * size + size]

    def fill(self, place: int, content: bytes) -> None:
        start = self.area.places[place].offset
        self.memory[start : start + len(content)] = content

    def usable(self, place: int) -> bool:
        return self.lowest(place) >= self.used

    def missing(self) -> int:
        known = [chunk for model, chunk in self.held.values() if model == self.target]
        known += [flight[1] for flight in self.flights.values() if flight]
        assert len(set(known)) == len(known)
        return -(-len(self.models[self.target]) // self.area.chunk_bytes) - len(known)

    # --- what happens ----------------------------------------------------------------------------

    @rule(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        target = data.draw(st.sampled_from(("kept0", "a", "b")), "target")
        weights = self.models.get(target) or data.draw(WEIGHTS)
        if self.flights:
            with pytest.raises(ValueError, match="under way"):
                self.ledger.begin(target, len(weights))
            return
        self.models[target] = weights
        self.target, self.lost = target, 0
        self.ledger.begin(target, len(weights))

    @precondition(lambda self: self.target)
    @rule(limit=st.integers(1, 5))
    def write(self, limit: int) -> None:
        places = range(len(self.area.places))
        taken = self.held.keys() | self.flights.keys()
        empty = [p for p in places if p not in taken and self.usable(p)]
        others = [p for p, (model, _) in self.held.items() if model != self.target]
        expected = (empty + sorted(others, reverse=True))[: min(limit, self.missing())]
        assert list(self.ledger.next(limit)) == expected
        for place in expected:
            model, chunk = self.ledger.chunk_at(place)
            assert model == self.target
            self.held.pop(place, None)
            self.flights[place] = (model, chunk)
            self.late[place] = self.content(model, chunk)
            self.fill(place, self.late[place][::2])

    @precondition(lambda self: self.flights)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        place = data.draw(st.sampled_from(sorted(self.flights)))
        wanted = self.flights.pop(place)
        if place in self.late:
            self.fill(place, self.late.pop(place))
        if wanted:
            self.held[place] = wanted
        self.ledger.written((place,))
        with pytest.raises(ValueError, match="not being written"):
            self.ledger.written((place,))

    @rule(data=st.data())
    def occupy(self, data: st.DataObject) -> None:
        self.used = data.draw(st.integers(0, self.area.kv_blocks), "rows in use")
        for place in [p for p in self.late if not self.usable(p)]:
            self.fill(place, self.late.pop(place))
        for layer, row in enumerate(self.area.row_bytes):
            start = self.stretch(layer).start
            self.memory[start : start + self.used * row] = bytes((KV,)) * (self.used * row)
        for place in [p for p in self.held if not self.usable(p)]:
            model, chunk = self.held.pop(place)
            self.lost += len(self.content(model, chunk)) * (model == self.target)
        for place, flight in self.flights.items():
            if flight and not self.usable(place):
                self.flights[place] = None
                self.lost += len(self.content(*flight))
        self.ledger.occupied(self.used)

    @precondition(lambda self: self.target and not self.flights)
    @rule()
    def finish(self) -> None:
        """A writer that is left alone stages all that there is room for."""
        room = sum(self.usable(p) for p in range(len(self.area.places)))
        before = self.missing()
        while places := self.ledger.next(3):
            for place in places:
                self.held[place] = self.ledger.chunk_at(place)
                self.fill(place, self.content(*self.held[place]))
            self.ledger.written(places)
        mine = sum(model == self.target for model, _ in self.held.values())
        assert mine == room or self.missing() == 0
        assert before == 0 or self.ledger.done == (self.missing() == 0)

    @precondition(lambda self: self.flights)
    @rule()
    def switch_too_early(self) -> None:
        with pytest.raises(ValueError, match="under way"):
            self.ledger.switch(self.target, len(self.models[self.target]))

    # --- what must hold --------------------------------------------------------------------------

    @invariant()
    def places(self) -> None:
        """They are apart, within a layer each, and as many as go in."""
        if not hasattr(self, "ledger"):
            return
        count = len(self.area.places)
        assert len({at for place in range(count) for at in self.span(place)}) == (
            count * self.area.chunk_bytes
        )
        lowest = list(map(self.lowest, range(count)))
        assert lowest == sorted(lowest, reverse=True)
        assert all(place.offset % self.area.align == 0 for place in self.area.places)
        if self.area.align == 1:
            assert count == sum(
                len(self.stretch(layer)) // self.area.chunk_bytes
                for layer in range(len(self.area.row_bytes))
            )

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "ledger"):
            return
        ledger, area = self.ledger, self.area
        for model in self.models:
            mine = {place: chunk for place, (name, chunk) in self.held.items() if name == model}
            assert {place: chunk for chunk, place in ledger.held(model)} == mine
        for place, (model, chunk) in self.held.items():
            start, content = area.places[place].offset, self.content(model, chunk)
            assert self.memory[start : start + len(content)] == content
        covered: Counter[str] = Counter()
        for chunk in self.held.values():
            covered[chunk[0]] += len(self.content(*chunk))
        assert ledger.covered == covered
        size = covered[self.target]
        assert ledger.clean_bytes == size
        if self.target:
            assert ledger.coverage == size / len(self.models[self.target])
            assert ledger.spoiled_bytes == self.lost
        unused = sum(self.usable(place) for place in range(len(area.places)))
        begun = sum(flight is not None for flight in self.flights.values())
        assert ledger.slack == (unused - begun) * area.chunk_bytes - size
        assert [rows.start for rows in ledger.busy_rows()] == [
            self.lowest(place) for place in sorted(self.flights)
        ]
        assert ledger.writing == bool(self.flights)

    @invariant()
    def switches(self) -> None:
        """What a switch would take from the device is exactly the weights."""
        if not hasattr(self, "ledger") or self.ledger.writing:
            return
        for model, weights in self.models.items():
            staged, copied = self.ledger.switch(model, len(weights)), 0
            assert list(staged.clean) == sorted(staged.clean)
            for chunk, place in staged.clean:
                start, content = self.area.places[place].offset, self.content(model, chunk)
                assert self.memory[start : start + len(content)] == content
                copied += len(content)
            assert (staged.d2d_bytes, staged.h2d_bytes) == (copied, len(weights) - copied)
            whole = {0: SwitchPath.H2D, len(weights): SwitchPath.D2D}
            assert staged.path is whole.get(copied, SwitchPath.PARTIAL)


TestStaging = Staging.TestCase
TestStaging.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
