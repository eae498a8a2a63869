"""When a process that ended is started again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SECOND: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class BackoffSettings:
    """In seconds: the first delay, the longest, and the run after which all is forgiven."""

    first: float = 0.5
    longest: float = 30.0
    healthy: float = 60.0


class Backoff:
    """Delays that double with every short run and start over after a healthy one."""

    def __init__(self, settings: BackoffSettings) -> None:
        self._settings = settings
        self._short_runs = 0

    def ended(self, started: int, now: int) -> int:
        """A run from ``started`` to ``now`` (ns) has ended; the delay until the next, in ns."""
        if now - started >= self._settings.healthy * SECOND:
            self._short_runs = 0
        delay = self._settings.first * float(1 << min(self._short_runs, 30))
        self._short_runs += 1
        return round(min(delay, self._settings.longest) * SECOND)
