"""What every model costs here, measured once before the first call.

Until a model has run, all predictions for it are priors, and admission by priors may keep out the
very calls that would correct them. So each model is made active, computes two prompts, draws a
token and has blocks copied to the host and back, as calls would make it do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from alipes.instance.contract import InstanceSettings, ModelReport, Sampling
from alipes.instance.engine.protocol import BlockCopy, Draw, Engine, Recurrence, Row
from alipes.instance.scheduler.profile import Trial

_GREEDY = Sampling(temperature=0)
_CALL = bytes(16)


def calibrate(
    engine: Engine, settings: InstanceSettings, clock: Callable[[], int]
) -> tuple[Trial, ...]:
    """One trial for each model; ``clock`` gives nanoseconds. No copy is left under way, and what
    the device holds afterwards belongs to no call. Raises ``EngineError`` when a model does not
    run."""
    calibration = _Calibration(engine, settings, clock)
    if len(engine.reports) > 1:
        calibration.leave_nothing(engine.reports[-1])
    return tuple(calibration.trial(report) for report in engine.reports)


class _Calibration:
    def __init__(
        self, engine: Engine, settings: InstanceSettings, clock: Callable[[], int]
    ) -> None:
        self._engine = engine
        self._block = settings.block_tokens
        self._chunk = settings.prefill_chunk
        self._clock = clock
        # Below all that a scheduler gives out.
        self._ticket = -len(engine.reports)

    def leave_nothing(self, report: ModelReport) -> None:
        """Make a model active whose blocks may then be all in use: weights of others that are still
        on the device would hide what they take from the host."""
        self._engine.activate(report.name)
        self._fill(report)

    def _fill(self, report: ModelReport) -> None:
        """All blocks are in use, and then none is."""
        for rows in (report.kv_blocks, 0):
            self._engine.stage(None, rows)

    def trial(self, report: ModelReport) -> Trial:
        engine = self._engine
        begin = self._clock()
        switch = replace(engine.activate(report.name), seconds=(self._clock() - begin) / 1e9)
        most = min(self._chunk, report.context - 1, report.kv_blocks * self._block - 1)
        blocks = range(-(-(most + 1) // self._block))
        prefills = []
        for tokens in sorted({max(1, most // 4), most}):
            step = partial(engine.step, [_row(report, 0, tokens, blocks)])
            prefills.append((tokens, self._seconds(step)))
        decode = self._seconds(partial(engine.step, [_row(report, most, most + 1, blocks)]))
        restores = self._restores(report, most // self._block)
        self._fill(report)
        return Trial(report.name, switch, tuple(prefills), most + 1, decode, restores)

    def _restores(self, report: ModelReport, full: int) -> tuple[tuple[int, float], ...]:
        """The first and then all ``full`` computed blocks, as far as the host has slabs, each time
        with the state after them where the model has one."""
        engine, host = self._engine, self._engine.host
        slabs = report.block_slabs(host.slab_bytes)
        first = report.slot_bytes // host.slab_bytes
        state = [BlockCopy(report.kv_blocks, tuple(range(first)))] if report.slots else []
        count = min(full, max(0, host.count - first) // slabs)
        copies = [
            BlockCopy(block, tuple(range(at, at + slabs)))
            for block, at in enumerate(range(first, first + count * slabs, slabs))
        ]
        if not copies:
            return ()
        engine.copy_out(self._ticket, state + copies)
        self._ticket += 1
        engine.drain()
        return tuple(
            (part * self._block, self._seconds(partial(engine.copy_in, state + copies[:part])))
            for part in sorted({1, count})
        )

    def _seconds(self, work: Callable[[], object]) -> float:
        begin = self._clock()
        work()
        return (self._clock() - begin) / 1e9


def _row(report: ModelReport, start: int, end: int, blocks: Sequence[int]) -> Row:
    """Positions ``start`` to ``end`` of a prompt of zeros, and a draw after them."""
    history = np.zeros(end, dtype=np.int32)
    draw = Draw(_GREEDY, history, end)
    recurrence = Recurrence(0 if start else None, 0) if report.slots else None
    return Row(_CALL, history[start:], start, blocks, draw, recurrence)
