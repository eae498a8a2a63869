"""One model of an instance: its calls, wherever they are, and what they will cost."""

from __future__ import annotations

from dataclasses import dataclass, field

from alipes.instance.contract import Load, ModelReport
from alipes.instance.scheduler.budget import Demand
from alipes.instance.scheduler.profile import CostProfile
from alipes.instance.scheduler.queue import WaitingQueue
from alipes.instance.scheduler.sequence import CallState, Sequence
from alipes.instance.scheduler.slot import Slot


@dataclass(slots=True)
class ModelState:
    """``resident`` calls hold device blocks, ``saved`` ones a copy on the host. ``turn`` is the
    number of the model's last slot; the lowest is served next. ``since`` (ns) is when that slot
    opened, or when work came after it to a model that had none."""

    report: ModelReport
    profile: CostProfile
    waiting: WaitingQueue = field(default_factory=WaitingQueue)
    resident: dict[bytes, Sequence] = field(default_factory=dict)
    saved: dict[bytes, Sequence] = field(default_factory=dict)
    turn: int = 0
    since: int = 0

    @property
    def name(self) -> str:
        return self.report.name

    @property
    def has_work(self) -> bool:
        return bool(self.resident or self.saved or len(self.waiting))

    @property
    def decoding(self) -> bool:
        """Whether calls of this model are between two tokens."""
        return any(c.generated for calls in (self.resident, self.saved) for c in calls.values())

    def residents(self, state: CallState) -> list[Sequence]:
        """Resident calls in this state, the oldest first."""
        calls = [call for call in self.resident.values() if call.state is state]
        if len(calls) > 1:
            calls.sort(key=lambda call: call.order)
        return calls

    def prefill_pending(self) -> bool:
        return bool(
            len(self.waiting)
            or self.saved
            or any(call.state is CallState.PREFILL for call in self.resident.values())
        )

    def demand(self, chunk: int, max_running: int, alone: bool, slot: Slot | None) -> Demand:
        """What the model asks of a round. If its ``slot`` is open, what it has had in it is
        included. With no other model to serve, P is one chunk: there is
        no switch to spread, and longer stalls the running decode for nothing."""
        tokens, positions, _ = self._prefill_work()
        wanted = least = 0.0
        if tokens:
            wanted = self.profile.prefill_seconds(-(-tokens // chunk), tokens, positions)
            least = min(wanted, self.chunk_seconds(chunk))
        if slot is not None and slot.prefill_runs:
            wanted += slot.prefill_spent
            least = slot.prefill_spent
        return Demand(
            model=self.name,
            decode_step=self._decode_step(max_running),
            prefill=least if alone else wanted,
            chunk=least,
            switch=0.0 if alone else self.profile.activation,
        )

    def chunk_seconds(self, chunk: int) -> float:
        """The next prefill run, at most."""
        tokens, _, longest = self._prefill_work()
        tokens = min(chunk, tokens)
        return self.profile.prefill_seconds(1, tokens, tokens * longest)

    def _prefill_work(self) -> tuple[int, float, int]:
        """Tokens to compute, each times its position summed, and the longest context."""
        tokens, positions = self.waiting.tokens, self.waiting.token_positions
        head = self.waiting.head
        longest = head.length if head else 0
        for calls in (self.resident, self.saved):
            for call in calls.values():
                if call.pending > 1:
                    tokens += call.pending
                    positions += call.pending * (call.computed + call.pending / 2)
                    longest = max(longest, call.length)
        return tokens, positions, longest

    def _decode_step(self, max_running: int) -> float:
        context = sum(c.length for calls in (self.resident, self.saved) for c in calls.values())
        calls = len(self.resident) + len(self.saved)
        joining = min(len(self.waiting), max(0, max_running - calls))
        if joining:
            context += self.waiting.tokens * joining // len(self.waiting)
        return self.profile.decode_seconds(calls + joining, context) if calls + joining else 0.0

    def load(self) -> Load:
        admitted = [*self.resident.values(), *self.saved.values()]
        return Load(
            waiting=len(self.waiting),
            waiting_tokens=self.waiting.tokens + sum(c.pending for c in admitted if c.pending > 1),
            running=len(admitted),
            running_context=sum(call.computed for call in admitted),
            remaining_tokens=sum(call.remaining for call in admitted),
        )
