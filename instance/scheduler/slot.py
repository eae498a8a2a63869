"""One slot: what it was given, what it has used, when it must close."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from alipes.instance.scheduler.budget import Share
from alipes.instance.scheduler.sequence import Sequence

NANOSECONDS: Final = 1_000_000_000
NOTHING: Final = Share(prefill=0.0, protected=0, seconds=0.0)


@dataclass(slots=True)
class Slot:
    """``limit`` (ns) is when decode beyond the protected ends; None while no other work waits.
    ``latest`` (ns) is when it must end for the next model to be revisited within its bound.
    ``paid`` counts decode iterations against ``share.protected``. ``stuck`` tells that P could
    begin nothing: there is no point in another P before a call ends. ``due`` iterations are what
    the time since the model's last slot asks for, however long that has really been. ``returned``
    seconds went into bringing interrupted calls back, by restoring or recomputing them.

    Calls that came before serial number ``ordinary`` could come in through P; it is None until P
    is over. P was ``cut`` when its time ended before its work. With ``sessions`` on, later calls
    of returning sessions come in through SP, whose batch is ``joined``, once ``paid`` exceeds
    ``boundary``."""

    model: str
    opened: int
    due: int = 0
    sessions: bool = False
    share: Share = NOTHING
    limit: int | None = None
    latest: float = math.inf
    prefill_spent: float = 0.0
    prefill_runs: int = 0
    returned: float = 0.0
    paid: int = 0
    resumed: bool = False
    stuck: bool = False
    cut: bool = False
    ordinary: int | None = None
    boundary: int = 0
    joined: tuple[Sequence, ...] = ()

    @property
    def owed(self) -> int:
        return max(0, self.share.protected - self.paid)

    @property
    def sessions_only(self) -> bool:
        return self.sessions and self.ordinary is not None

    def was_here(self, call: Sequence) -> bool:
        """Whether the call came before P was over."""
        return self.ordinary is None or call.order[1] < self.ordinary

    def joins(self, call: Sequence) -> bool:
        """Whether a waiting call may come in through SP, if its prefix is at hand."""
        return self.sessions and call.call.continuation and not self.was_here(call)

    def grant(self, share: Share, bounded: bool, left: float) -> None:
        """Take a (new) share and the seconds ``left`` before the next model's bound, both
        counted from when the slot opened."""
        self.share = share
        self.limit = self.opened + int(share.seconds * NANOSECONDS) if bounded else None
        self.latest = self.opened + left * NANOSECONDS

    def fits(self, seconds: float) -> bool:
        """Whether P may go on for ``seconds``."""
        return self.prefill_spent + seconds <= self.share.prefill * (1 + 1e-9)

    def seconds_until_limit(self, now: int) -> float:
        return math.inf if self.limit is None else max(0.0, (self.limit - now) / NANOSECONDS)

    def seconds_left(self, now: int, step: float) -> float:
        """Time before the limit beside the iterations still owed, of ``step`` seconds each."""
        if self.limit is None:
            return math.inf
        return (self.limit - now) / NANOSECONDS - self.owed * step

    def steps_left(self, now: int, step: float, longest: int) -> int:
        """Iterations of ``step`` seconds before the limit, leaving room for those owed."""
        if self.limit is None:
            return longest
        left = (self.limit - now) / NANOSECONDS
        return int(left / max(step, 1e-9)) - self.owed
