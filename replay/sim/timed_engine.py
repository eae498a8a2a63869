"""Times the work of an engine point by point, for ``measure``: what ``alipes profile`` does.

One prompt is computed for good; what is timed goes on from its full blocks in blocks of its own.
Points are repeated in passes, so that a drift of the machine falls on all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import numpy as np

from alipes.instance.contract import InstanceSettings, ModelReport, Sampling
from alipes.instance.engine.protocol import BlockCopy, Draw, Engine, Row
from alipes.replay.sim.measure import ModelTimings, Timing

LEAST: Final = 3
MOST: Final = 7
ENOUGH_SECONDS: Final = 0.5
"""A point is timed ``LEAST`` times at least, then until it has taken so long or ``MOST``."""
DEEP_CHUNKS: Final = 6
DEEP_SECONDS: Final = 4.0
"""A model's context is built up to so many chunks, or for so long."""
PARTS: Final = (1, 4, 16)
"""Of a chunk that prefills are timed with."""
FEW_CALLS: Final = 4
SWITCH_CYCLES: Final = 3

Clock = Callable[[], int]


@dataclass(slots=True)
class _Point:
    """One piece of work, and what it took each time."""

    features: tuple[float, ...]
    work: Callable[[], object]
    seconds: list[float] = field(default_factory=list)

    @property
    def done(self) -> bool:
        count = len(self.seconds)
        return count >= MOST or (count >= LEAST and sum(self.seconds) >= ENOUGH_SECONDS)


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where calls keep the same prompt: call i has blocks ``i * stride`` on, the last one for what
    it computes itself. ``slabs`` of the host take one block."""

    calls: int
    stride: int
    slabs: int

    def blocks(self, call: int, prompt: int) -> list[int]:
        """So many blocks of the prompt, and the call's own."""
        first = call * self.stride
        return [*range(first, first + prompt), first + self.stride - 1]

    def copies(self, call: int, count: int) -> list[BlockCopy]:
        """The first ``count`` blocks of a call, and the host's copies of them."""
        return [
            BlockCopy(block, tuple(range(place * self.slabs, (place + 1) * self.slabs)))
            for place, block in enumerate(self.blocks(call, count)[:-1])
        ]


def time_engine(
    engine: Engine, settings: InstanceSettings, layers: Mapping[str, int], clock: Clock
) -> tuple[ModelTimings, ...]:
    """Timings of every model of an engine that serves nobody; ``layers`` are those with KV, one
    where it is not said; ``clock`` gives ns. Raises ``EngineError`` when a model does not run."""
    timer = _Timer(engine, settings, clock)
    found = [timer.model(report, layers.get(report.name, 1)) for report in engine.reports]
    switches = timer.switches()
    return tuple(replace(one, switch=switches[one.report.name]) for one in found)


class _Timer:
    def __init__(self, engine: Engine, settings: InstanceSettings, clock: Clock) -> None:
        self._engine = engine
        self._block = settings.block_tokens
        self._chunk = settings.prefill_chunk
        self._max_running = settings.max_running
        self._clock = clock
        self._ticket = 0

    def model(self, report: ModelReport, layers: int) -> ModelTimings:
        """All but the switches. Of the prompt that the first call of a layout has, the others get
        copies."""
        self._engine.activate(report.name)
        room = min(report.context, report.kv_blocks * self._block) - 1
        chunk = max(1, min(self._chunk, room // 2))
        deep = self._deepen(report, chunk, room - chunk)
        depth = len(deep) * chunk
        own = range(-(-depth // self._block), report.kv_blocks)
        prefill = self._prefills(report, chunk, depth, own)
        full = depth // self._block
        lone = [self._decode(report, [[*range(full), own[0]]], full)]
        self._passes([*prefill, *lone])
        layout = self._layout(report, depth)
        most = layout.stride - 1
        checkpoint = [self._copy_out(report, layout, n) for n in _parts(most, (1, 2))]
        self._passes(checkpoint)
        for call in range(1, layout.calls):
            self._engine.copy_in(layout.copies(call, most))
        restore = [self._copy_in(report, layout, n) for n in _parts(most, (1, 2, 4, 16))]
        decode = list(self._decodes(report, layout))
        self._passes([*restore, *decode])
        return ModelTimings(
            report=report,
            layers=layers,
            prefill=_timings([*deep, *prefill]),
            decode=_timings([*lone, *decode]),
            restore=_timings(restore),
            checkpoint=_timings(checkpoint),
            switch=(),
        )

    def switches(self) -> dict[str, tuple[Timing, ...]]:
        """Every model after every other, as often as there are cycles."""
        reports = {report.name: report for report in self._engine.reports}
        found: dict[str, list[Timing]] = {name: [] for name in reports}
        names = list(reports)
        for step in range(1, len(names)):
            for turn in range(SWITCH_CYCLES * len(names)):
                name = names[turn * step % len(names)]
                self._engine.activate(names[(turn + 1) * step % len(names)])
                seconds = self._seconds(partial(self._engine.activate, name))
                found[name].append(Timing((1.0, reports[name].weight_bytes), seconds))
        return {name: tuple(timings) for name, timings in found.items()}

    # --- prompts -------------------------------------------------------------------------------

    def _deepen(self, report: ModelReport, chunk: int, room: int) -> list[_Point]:
        """Compute a prompt, chunk after chunk; what that took counts, but is not repeated."""
        points: list[_Point] = []
        begin = self._clock()
        for start in range(0, min(DEEP_CHUNKS * chunk, room) - chunk + 1, chunk):
            point = self._prefill(report, start, chunk, range(report.kv_blocks))
            point.seconds.append(self._seconds(point.work))
            points.append(point)
            if (self._clock() - begin) / 1e9 >= DEEP_SECONDS:
                break
        return points

    def _prefills(
        self, report: ModelReport, chunk: int, depth: int, own: Sequence[int]
    ) -> list[_Point]:
        """Chunks and parts of one after none, half and all full blocks of the prompt, each into
        its ``own`` blocks, not the prompt's."""
        full = depth // self._block
        return [
            self._prefill(report, start * self._block, tokens, [*range(start), *own])
            for tokens in _parts(chunk, PARTS)
            for start in sorted({0, full // 2, full})
        ]

    def _prefill(
        self, report: ModelReport, start: int, tokens: int, blocks: Sequence[int]
    ) -> _Point:
        row = self._row(report, blocks, start, tokens)
        features = (1.0, float(tokens), float(tokens * (start + tokens)))
        return _Point(features, partial(self._engine.step, [row]))

    # --- decode and copies -----------------------------------------------------------------------

    def _layout(self, report: ModelReport, depth: int) -> _Layout:
        """As many calls as may run, with as much of the prompt as device and host can hold."""
        host = self._engine.host
        slabs = -(-report.block_bytes // host.slab_bytes)
        held = min(depth // self._block, host.count // slabs)
        calls = max(1, min(self._max_running, report.kv_blocks // 2 if held else 1))
        return _Layout(calls, min(held + 1, report.kv_blocks // calls), slabs)

    def _decodes(self, report: ModelReport, layout: _Layout) -> Iterable[_Point]:
        for full in _parts(layout.stride - 1, (1, 2, 8)):
            for calls in _batches(layout.calls):
                blocks = [layout.blocks(call, full) for call in range(calls)]
                yield self._decode(report, blocks, full)

    def _decode(self, report: ModelReport, blocks: Sequence[Sequence[int]], full: int) -> _Point:
        """The next token of calls that have so many full blocks."""
        start = full * self._block
        rows = [self._row(report, own, start, 1, number) for number, own in enumerate(blocks)]
        features = (1.0, float(len(rows)), float(len(rows) * (start + 1)))
        return _Point(features, partial(self._engine.step, rows))

    def _copy_in(self, report: ModelReport, layout: _Layout, count: int) -> _Point:
        copies = layout.copies(layout.calls - 1, count)
        features = (1.0, float(count * report.block_bytes))
        return _Point(features, partial(self._engine.copy_in, copies))

    def _copy_out(self, report: ModelReport, layout: _Layout, count: int) -> _Point:
        def work() -> None:
            self._ticket += 1
            self._engine.copy_out(self._ticket, layout.copies(0, count))
            self._engine.drain()

        return _Point((1.0, float(count * report.block_bytes)), work)

    # --- timing ----------------------------------------------------------------------------------

    def _passes(self, points: Sequence[_Point]) -> None:
        """Time every point until it is done."""
        while left := [point for point in points if not point.done]:
            for point in left:
                point.seconds.append(self._seconds(point.work))

    def _seconds(self, work: Callable[[], object]) -> float:
        begin = self._clock()
        work()
        return (self._clock() - begin) / 1e9

    def _row(
        self,
        report: ModelReport,
        blocks: Sequence[int],
        start: int,
        tokens: int,
        number: int = 0,
    ) -> Row:
        """Positions of the prompt, and a draw after them that is made as a replay makes it."""
        ids = np.arange(start + tokens, dtype=np.int32) % report.vocab_size
        needed = blocks[: -(-(start + tokens) // self._block)]
        draw = Draw(Sampling(temperature=0), ids, len(ids), forced=0)
        return Row(number.to_bytes(16, "big"), ids[start:], start, needed, draw)


def _timings(points: Iterable[_Point]) -> tuple[Timing, ...]:
    return tuple(Timing(one.features, seconds) for one in points for seconds in one.seconds)


def _parts(whole: int, parts: Sequence[int]) -> list[int]:
    """The whole divided by each of ``parts``, those of at least one."""
    return sorted({whole // part for part in parts if whole // part})


def _batches(most: int) -> list[int]:
    """All small batches, and larger ones by doubling."""
    sizes = {*range(1, min(FEW_CALLS, most) + 1), most}
    size = FEW_CALLS
    while (size := size * 2) < most:
        sizes.add(size)
    return sorted(sizes)
