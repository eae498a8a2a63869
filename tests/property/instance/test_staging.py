from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from alipes.instance.memory.staging import StagingLedger, SwitchPath
from alipes.instance.memory.staging_plan import StagingArea

KV = 255


class Staging(RuleBasedStateMachine):
    """A ledger over real bytes. ``memory`` is the KV area; a write tears its chunk at first and
    lands when it ends, or before rows that an allocator takes from under it are used. ``states``
    says of every placed chunk what it should be, by the obvious rules."""

    @initialize(data=st.data())
    def build(self, data: st.DataObject) -> None:
        row = data.draw(st.integers(1, 5), "row bytes")
        self.area = StagingArea(
            data.draw(st.integers(0, 14), "rows"),
            data.draw(st.integers(1, 3), "layers"),
            row,
            row + data.draw(st.integers(0, 12), "more bytes a chunk"),
        )
        self.ledger = StagingLedger(self.area)
        self.memory = bytearray(self.area.layers * self.area.kv_blocks * row)
        self.used: set[int] = set()
        self.number = 0
        self.weights = b""
        self.states: dict[int, str] = {}
        self.lost = 0
        self.flights: list[tuple[range, set[int], bytes]] = []

    # --- the obvious model -----------------------------------------------------------------------

    def place(self, chunk: int) -> slice:
        """The bytes of a chunk, worked out from its rows."""
        area = self.area
        rows = self.rows(chunk)
        start = (chunk % area.layers * area.kv_blocks + rows.start) * area.row_bytes
        return slice(start, start + len(self.content(self.weights, chunk)))

    def rows(self, chunk: int) -> range:
        high = -(-self.area.chunk_bytes // self.area.row_bytes)
        end = self.area.kv_blocks - chunk // self.area.layers * high
        return range(end - high, end)

    def content(self, weights: bytes, chunk: int) -> bytes:
        size = self.area.chunk_bytes
        return weights[chunk * size : chunk * size + size]

    def usable(self, chunk: int) -> bool:
        return self.used.isdisjoint(self.rows(chunk))

    def land(self, flight: tuple[range, set[int], bytes], chunk: int) -> None:
        """The write of this chunk reaches memory, once."""
        _, landed, weights = flight
        if chunk not in landed:
            content = self.content(weights, chunk)
            start = self.place(chunk).start
            self.memory[start : start + len(content)] = content
            landed.add(chunk)

    # --- what happens ----------------------------------------------------------------------------

    @rule(weights=st.binary(min_size=1, max_size=150))
    def begin(self, weights: bytes) -> None:
        self.number += 1
        target = f"m{self.number}"
        if self.flights:
            with pytest.raises(ValueError, match="under way"):
                self.ledger.begin(target, len(weights))
            return
        self.weights = weights.replace(bytes((KV,)), b"\0")
        self.ledger.begin(target, len(weights))
        chunks = -(-len(weights) // self.area.chunk_bytes)
        self.states = {i: "missing" for i in range(chunks) if self.rows(i).start >= 0}
        self.lost = 0

    @rule(limit=st.integers(1, 5))
    def write(self, limit: int) -> None:
        missing = [i for i, state in self.states.items() if state == "missing" and self.usable(i)]
        run = self.ledger.next(limit)
        if not missing:
            assert not run
            return
        first = missing[0]
        expected = [i for i in missing if i < first + limit]
        while expected[-1] - first >= len(expected):
            expected.pop()
        assert list(run) == expected
        for chunk in run:
            self.states[chunk] = "writing"
            half = self.content(self.weights, chunk)[::2]
            start = self.place(chunk).start
            self.memory[start : start + len(half)] = half
        self.flights.append((run, set(), self.weights))

    @precondition(lambda self: self.flights)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        flight = self.flights.pop(data.draw(st.integers(0, len(self.flights) - 1)))
        for chunk in flight[0]:
            self.land(flight, chunk)
            if chunk in self.states:
                spoiled = self.states[chunk] == "spoiled"
                self.states[chunk] = "missing" if spoiled else "clean"
        self.ledger.written(flight[0])
        with pytest.raises(ValueError, match="not being written"):
            self.ledger.written(flight[0])

    @rule(data=st.data())
    def allocate(self, data: st.DataObject) -> None:
        first, end = self.stretch(data)
        if self.used.intersection(range(first, end)):
            return
        for flight in self.flights:
            for chunk in flight[0]:
                if not set(range(first, end)).isdisjoint(self.rows(chunk)):
                    self.land(flight, chunk)
        self.used |= set(range(first, end))
        for layer in range(self.area.layers):
            base = layer * self.area.kv_blocks
            low, high = (base + first) * self.area.row_bytes, (base + end) * self.area.row_bytes
            self.memory[low:high] = bytes((KV,)) * (high - low)
        for chunk, state in self.states.items():
            if not self.usable(chunk) and state in ("clean", "writing"):
                self.states[chunk] = "missing" if state == "clean" else "spoiled"
                self.lost += len(self.content(self.weights, chunk))
        self.ledger.allocated(first, end)

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        first, end = self.stretch(data)
        rows = set(range(first, end))
        if rows <= self.used:
            self.used -= rows
            self.ledger.released(first, end)

    @rule()
    def cancel(self) -> None:
        self.ledger.cancel()
        self.states = {}
        assert not self.ledger.next(5)
        assert self.ledger.coverage == 0

    @precondition(lambda self: self.ledger.target and not self.flights)
    @rule()
    def fill(self) -> None:
        """A writer that is left alone stages all that there is room for."""
        while run := self.ledger.next(3):
            for chunk in run:
                self.states[chunk] = "clean"
                self.memory[self.place(chunk)] = self.content(self.weights, chunk)
            self.ledger.written(run)
        assert all(self.states[i] == "clean" for i in self.states if self.usable(i))

    @precondition(lambda self: self.flights)
    @rule()
    def switch_too_early(self) -> None:
        with pytest.raises(ValueError, match="under way"):
            self.ledger.switch(self.ledger.target, len(self.weights))

    def stretch(self, data: st.DataObject) -> tuple[int, int]:
        first = data.draw(st.integers(0, self.area.kv_blocks), "first")
        return first, data.draw(st.integers(first, self.area.kv_blocks), "end")

    # --- what must hold --------------------------------------------------------------------------

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "ledger"):
            return
        ledger, area = self.ledger, self.area
        clean = [i for i, state in self.states.items() if state == "clean"]
        size = sum(len(self.content(self.weights, i)) for i in clean)
        assert ledger.clean_bytes == size
        if ledger.target:
            assert ledger.coverage == size / len(self.weights)
            assert ledger.spoiled_bytes == self.lost
        for chunk in clean:
            assert self.memory[self.place(chunk)] == self.content(self.weights, chunk)
        bands = {area.rows(band): band for band in range(area.bands)}
        unused = sum(self.used.isdisjoint(rows) for rows in bands)
        begun = sum(state == "writing" for state in self.states.values())
        room = unused * area.layers * area.chunk_bytes - size - begun * area.chunk_bytes
        assert ledger.slack == room
        busy = {i for run, _, _ in self.flights for i in run}
        assert set(ledger.busy_rows()) == {self.rows(i) for i in busy}
        assert ledger.writing == bool(busy)

    @invariant()
    def switches(self) -> None:
        """What a switch would copy within the device is exactly the weights."""
        if not hasattr(self, "ledger") or self.ledger.writing or not self.ledger.target:
            return
        staged = self.ledger.switch(self.ledger.target, len(self.weights))
        chunks = [chunk for run in staged.clean for chunk in run]
        assert chunks == [i for i, state in self.states.items() if state == "clean"]
        plan = self.ledger.plan
        copied = 0
        for chunk in chunks:
            start = plan.offset(chunk)
            held = self.memory[start : start + plan.size(chunk)]
            assert held == self.content(self.weights, chunk)
            copied += len(held)
        assert (staged.d2d_bytes, staged.h2d_bytes) == (copied, len(self.weights) - copied)
        whole = {0: SwitchPath.H2D, len(self.weights): SwitchPath.D2D}
        assert staged.path is whole.get(copied, SwitchPath.PARTIAL)


TestStaging = Staging.TestCase
TestStaging.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
