"""A scheduler that notes what everything took: by it ``alipes profile`` times an instance.

A piece of work takes from the report of the one before it to its own, unless the instance had
nothing to do in between. So whatever the loop does around the engine is in it, and nothing of the
time of a busy instance is in no piece.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from alipes.instance.contract import InstanceSettings, ModelReport
from alipes.instance.engine.protocol import HostSlabs, Row, Sampled, SwitchReport
from alipes.instance.scheduler import phases
from alipes.instance.scheduler.profile import Trial
from alipes.instance.scheduler.rounds import RoundScheduler
from alipes.instance.scheduler.work import Linger, Progress, Restore, Run, Switch, Work
from alipes.replay.sim.measure import Kind, Timing


class TimedScheduler(RoundScheduler):
    """``timings`` are of all work so far, in its order; ``exchanges`` tells whether weights on the
    device came to their place without a copy."""

    def __init__(
        self, settings: InstanceSettings, reports: tuple[ModelReport, ...], host: HostSlabs
    ) -> None:
        super().__init__(settings, reports, host)
        self.timings: list[Timing] = []
        self.exchanges = False
        self._trials: list[Timing] = []
        self._bytes = {report.name: report.block_bytes for report in reports}
        self._block = settings.block_tokens
        self._iteration: Sequence[tuple[int, int]] = ()
        self._mark = 0
        self._waited = True

    def recorded(self) -> tuple[Timing, ...]:
        """All timings; of kinds of work that were never needed, those of the calibration."""
        kinds = {timing.kind for timing in self.timings}
        spare = (timing for timing in self._trials if timing.kind not in kinds)
        return (*self.timings, *spare)

    def learn(self, trial: Trial) -> None:
        super().learn(trial)
        self._switched(self._trials, trial.model, trial.switch)
        for tokens, seconds in trial.restores:
            features = (1.0, self._kv_bytes(trial.model, tokens))
            self._trials.append(Timing(trial.model, Kind.RESTORE, features, seconds))

    def next(self, now: int) -> Work | None:
        if self._waited:
            self._mark = now
        work = super().next(now)
        self._waited = work is None or isinstance(work, Linger)
        return work

    def rows(self, run: Run) -> tuple[Row, ...]:
        rows = super().rows(run)
        self._iteration = [(len(row.tokens), row.start) for row in rows]
        return rows

    def stepped(self, run: Run, sampled: tuple[Sampled, ...], seconds: float, now: int) -> Progress:
        taken, rows = self._taken(now), self._iteration
        if run.phase in phases.DECODE:
            context = sum(start + 1 for _, start in rows)
            self._note(run.model, Kind.DECODE, (len(rows), context), taken)
        else:
            tokens = sum(new for new, _ in rows)
            positions = sum(new * (start + new) for new, start in rows)
            self._note(run.model, Kind.PREFILL, (tokens, positions), taken)
        return super().stepped(run, sampled, seconds, now)

    def switched(
        self, work: Switch, report: SwitchReport, seconds_saving: float, now: int
    ) -> Progress:
        taken = self._taken(now)
        if work.save is not None:
            saved = len(work.save.devices) * self._bytes[self.active_model]
            self._note(self.active_model, Kind.CHECKPOINT, (saved,), seconds_saving)
        self._switched(self.timings, work.model, replace(report, seconds=taken - seconds_saving))
        return super().switched(work, report, seconds_saving, now)

    def restored(self, work: Restore, seconds: float, now: int, failed: bool = False) -> Progress:
        nbytes = self._kv_bytes(self.active_model, work.tokens)
        self._note(self.active_model, Kind.RESTORE, (nbytes,), self._taken(now))
        return super().restored(work, seconds, now, failed)

    def _kv_bytes(self, model: str, tokens: int) -> float:
        return tokens * self._bytes[model] / self._block

    def _taken(self, now: int) -> float:
        """Seconds since the report before this one."""
        taken, self._mark = (now - self._mark) / 1e9, now
        return taken

    def _switched(self, timings: list[Timing], model: str, report: SwitchReport) -> None:
        """One that is only partly from the host tells neither rate, one of the model that was
        active already none at all."""
        host, device = report.h2d_bytes, report.on_device_bytes
        self.exchanges |= report.mapped_bytes > 0
        if bool(host) != bool(device):
            kind = Kind.SWITCH if host else Kind.STAGED
            timings.append(Timing(model, kind, (1.0, float(host + device)), report.seconds))

    def _note(self, model: str, kind: Kind, features: Sequence[float], seconds: float) -> None:
        self.timings.append(Timing(model, kind, (1.0, *map(float, features)), seconds))
