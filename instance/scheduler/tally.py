"""Totals since start."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from alipes.instance.contract import Counters


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
    prefill_tokens: int = 0
    cached_tokens: int = 0
    decode_tokens: int = 0
    deadline_risk: Counter[str] = field(default_factory=Counter)

    def counters(self, live_calls: int) -> Counters:
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
            prefill_tokens=self.prefill_tokens,
            cached_tokens=self.cached_tokens,
            decode_tokens=self.decode_tokens,
            deadline_risk=dict(self.deadline_risk),
        )
