"""Totals since start."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from alipes.instance.contract import Counters
from alipes.instance.engine.protocol import SwitchReport
from alipes.instance.scheduler.host import HostKv


@dataclass(slots=True)
class Tally:
    """The mutable side of ``contract.Counters``."""

    finished: int = 0
    cancelled: int = 0
    failed: int = 0
    preempted: int = 0
    switches: int = 0
    rounds: int = 0
    resumed: int = 0
    switch_seconds: float = 0.0
    turn_seconds: float = 0.0
    switch_paths: Counter[str] = field(default_factory=Counter)
    path_seconds: dict[str, float] = field(default_factory=dict)
    predicted_seconds: dict[str, float] = field(default_factory=dict)
    switch_bytes: Counter[str] = field(default_factory=Counter)
    prefill_tokens: int = 0
    cached_tokens: int = 0
    decode_tokens: int = 0
    deadline_risk: Counter[str] = field(default_factory=Counter)
    shortfall: dict[str, float] = field(default_factory=dict)
    sp_admitted: int = 0
    sp_parked: int = 0
    restores: int = 0
    restored_tokens: int = 0
    lingered_seconds: float = 0.0
    declined_tokens: int = 0
    yielded_blocks: int = 0

    def fell_short(self, model: str, seconds: float) -> None:
        self.shortfall[model] = self.shortfall.get(model, 0.0) + seconds

    def switched(self, report: SwitchReport, saving: float, predicted: float) -> None:
        """A switch that took ``saving`` seconds for calls before it; ``predicted`` was what
        weights would take."""
        self.switch_seconds += report.seconds + saving
        if report.h2d_bytes or report.on_device_bytes:
            path = report.path
            self.switch_paths[path] += 1
            self.path_seconds[path] = self.path_seconds.get(path, 0.0) + report.seconds
            self.predicted_seconds[path] = self.predicted_seconds.get(path, 0.0) + predicted
            self.switch_bytes["h2d"] += report.h2d_bytes
            self.switch_bytes["d2d"] += report.d2d_bytes
            self.switch_bytes["remap"] += report.mapped_bytes

    def counters(self, live_calls: int, host: HostKv) -> Counters:
        return Counters(
            live_calls=live_calls,
            finished=self.finished,
            cancelled=self.cancelled,
            failed=self.failed,
            preempted=self.preempted,
            switches=self.switches,
            rounds=self.rounds,
            resumed=self.resumed,
            switch_seconds=self.switch_seconds,
            turn_seconds=self.turn_seconds,
            switch_paths=dict(self.switch_paths),
            path_seconds=dict(self.path_seconds),
            predicted_seconds=dict(self.predicted_seconds),
            switch_bytes=dict(self.switch_bytes),
            prefill_tokens=self.prefill_tokens,
            cached_tokens=self.cached_tokens,
            decode_tokens=self.decode_tokens,
            deadline_risk=dict(self.deadline_risk),
            shortfall=dict(self.shortfall),
            sp_admitted=self.sp_admitted,
            sp_parked=self.sp_parked,
            restores=self.restores,
            restored_tokens=self.restored_tokens,
            checkpointed_blocks=host.checkpointed,
            torn_blocks=host.torn,
            host_evicted_blocks=host.registry.evicted,
            lingered_seconds=self.lingered_seconds,
            declined_tokens=self.declined_tokens,
            yielded_blocks=self.yielded_blocks,
        )
