"""How much prefill there is in a set of calls, and what it will take."""

from __future__ import annotations

from dataclasses import dataclass

from alipes.instance.scheduler.profile import CostProfile
from alipes.instance.scheduler.queue import WaitingQueue, positions
from alipes.instance.scheduler.sequence import Sequence


@dataclass(slots=True)
class WorkAhead:
    """``tokens`` to compute, each times its position summed, the ``longest`` context among them,
    and the tokens to restore for how many calls."""

    tokens: int = 0
    token_positions: float = 0.0
    longest: int = 0
    restores: int = 0
    restore_tokens: int = 0

    @classmethod
    def of(cls, waiting: WaitingQueue) -> WorkAhead:
        """All that waits; its first call stands for the longest."""
        longest = waiting.head.length if waiting.head is not None else 0
        return cls(
            waiting.tokens,
            waiting.token_positions,
            longest,
            waiting.restores,
            waiting.restore_tokens,
        )

    def add_waiting(self, call: Sequence) -> None:
        self.tokens += call.length - call.known
        self.token_positions += positions(call)
        self.longest = max(self.longest, call.length)
        self.restores += call.known_host > 0
        self.restore_tokens += call.known_host

    def add_begun(self, call: Sequence) -> None:
        """What is left of a prompt; a call that decodes has none."""
        if call.pending > 1:
            self.tokens += call.pending
            self.token_positions += call.pending * (call.computed + call.pending / 2)
            self.longest = max(self.longest, call.length)

    def seconds(self, profile: CostProfile, chunk: int) -> float:
        if not self.tokens:
            return 0.0
        computing = profile.prefill_seconds(
            -(-self.tokens // chunk), self.tokens, self.token_positions
        )
        return computing + profile.restore_seconds(self.restores, self.restore_tokens)
