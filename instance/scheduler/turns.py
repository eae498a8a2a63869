"""In which order an instance computes the prompts of the active model, a chunk at a time.

A call is due as long after it came as its prompt would take alone, and the earliest due goes first
(earliest due date). So a call can only be passed by calls that came within as many seconds after
it as it needs itself: short prompts get in between the chunks of a long one, and none waits for
ever. Were prompts all there is to compute, no other order would keep the longest delay by others
shorter. Without turns prompts are computed in the order of ``Sequence.order``, begun ones first.
"""

from __future__ import annotations

from dataclasses import dataclass

from alipes.instance.contract import InstanceSettings
from alipes.instance.scheduler.profile import CostProfile
from alipes.instance.scheduler.sequence import Sequence
from alipes.instance.scheduler.slot import NANOSECONDS
from alipes.instance.scheduler.work_ahead import WorkAhead


@dataclass(frozen=True, slots=True)
class Turns:
    """The rule for the calls of one model, by its measured costs."""

    profile: CostProfile
    settings: InstanceSettings

    def of(self, call: Sequence) -> tuple[int, int]:
        """When the waiting call is due (ns), and its serial number: the lowest goes first. It stays
        what it is while the prompt is computed, so that this earns no lead over those who wait."""
        placed, serial = call.order
        if not self.settings.prefill_turns:
            return call.order
        work = WorkAhead()
        work.add_waiting(call)
        seconds = work.seconds(self.profile, self.settings.prefill_chunk)
        return placed + round(seconds * NANOSECONDS), serial

    def precedes(self, begun: Sequence, waiting: Sequence) -> bool:
        """Whether a prompt that is begun goes first."""
        return not self.settings.prefill_turns or begun.turn < waiting.turn
