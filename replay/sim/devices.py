"""What a simulated instance has in place of an engine: costs, weights, memory, decode stretches."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from alipes.instance.engine.protocol import Staged
from alipes.instance.scheduler.work import Run
from alipes.replay.runs import SwitchRecord


class Costs(Protocol):
    """What the work of one model takes, in ns."""

    @property
    def cold(self) -> int:
        """On top of the first prefill of a call that finds nothing cached."""
        ...

    def prefill(self, rows: Sequence[tuple[int, int]]) -> int:
        """One iteration over rows of (new tokens, start position)."""
        ...

    def decode(self, calls: int, context: int, steps: int) -> int:
        """So many iterations of calls with ``context`` tokens before the first."""
        ...

    def restore(self, tokens: int) -> int: ...

    def checkpoint(self, tokens: int) -> int: ...


class Weights(Protocol):
    """How models come onto the device."""

    def serving(self, following: str | None, begin: int, end: int, rows: int) -> None:
        """From ``begin`` to ``end`` (ns) the active model served in the lowest ``rows`` block
        rows, and ``following`` is to be next."""
        ...

    def switch(self, model: str, now: int) -> tuple[int, SwitchRecord]:
        """Make ``model`` active: how long it takes (ns), and what it was."""
        ...

    @property
    def staged(self) -> Staged: ...


@dataclass(frozen=True, slots=True)
class Memory:
    """Device bytes of an instance: its models' weights and blocks, what else is there."""

    capacity: int
    runtime: int
    weights: dict[str, int]
    block_bytes: dict[str, int]


@dataclass(slots=True)
class Stretch:
    """Decode iterations of a run, of which ``done`` were reported and ``steps`` are planned, both
    counted from its beginning: at ``begin``, with ``context`` tokens."""

    run: Run
    begin: int
    context: int
    costs: Costs
    done: int = 0
    steps: int = 0

    def at(self, steps: int) -> int:
        """When so many iterations have ended."""
        return self.begin + self.costs.decode(len(self.run.call_ids), self.context, steps)

    def until(self, limit: int) -> int:
        """Iterations up to the first, after those done, that ends at or after ``limit``; no more
        than are planned."""
        return bisect.bisect_left(range(self.steps), limit, lo=self.done + 1, key=self.at)

    def by(self, now: int) -> int:
        """Iterations that have ended by ``now``."""
        steps = range(self.steps + 1)
        return bisect.bisect_right(steps, now, lo=self.done + 1, key=self.at) - 1
