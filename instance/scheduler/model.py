"""One model of an instance: its calls, wherever they are, and what they will cost."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from alipes.instance.contract import InstanceSettings, Load, ModelReport
from alipes.instance.memory.prefix import matchable_blocks
from alipes.instance.memory.rows import HostBlock
from alipes.instance.scheduler.budget import Demand
from alipes.instance.scheduler.host import HostKv
from alipes.instance.scheduler.profile import CostProfile
from alipes.instance.scheduler.queue import WaitingQueue
from alipes.instance.scheduler.returns import Returns
from alipes.instance.scheduler.sequence import CallState, Sequence
from alipes.instance.scheduler.slot import NANOSECONDS, Slot
from alipes.instance.scheduler.turns import Turns
from alipes.instance.scheduler.work_ahead import WorkAhead


@dataclass(slots=True)
class ModelState:
    """``resident`` calls hold device blocks, ``saved`` ones a copy on the host. ``turn`` is the
    number of the model's last slot; the lowest is served next. ``since`` (ns) is when that slot
    opened, or when work came after it to a model that had none."""

    report: ModelReport
    settings: InstanceSettings
    profile: CostProfile
    turns: Turns = field(init=False)
    waiting: WaitingQueue = field(init=False)
    resident: dict[bytes, Sequence] = field(default_factory=dict)
    saved: dict[bytes, Sequence] = field(default_factory=dict)
    returns: Returns = field(default_factory=Returns)
    turn: int = 0
    since: int = 0

    def __post_init__(self) -> None:
        self.turns = Turns(self.profile, self.settings)
        self.waiting = WaitingQueue(self.turns.of)

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

    # --- what is known of a prompt -------------------------------------------------------------

    def restorable(self, host: HostKv, call: Sequence, first: int, limit: int) -> list[HostBlock]:
        """Host blocks of the call's prompt from ``first``, before ``limit``, unless computing
        them is predicted to be sooner than copying."""
        sources = host.find(call, first, limit)
        if not sources:
            return []
        size = self.settings.block_tokens
        tokens, begin = len(sources) * size, first * size
        runs = tokens / self.settings.prefill_chunk
        computing = self.profile.prefill_seconds(runs, tokens, tokens * (begin + tokens / 2))
        return sources if self.profile.restore_seconds(1, tokens) < computing else []

    def expect_host(self, host: HostKv, call: Sequence) -> None:
        """Find anew what a waiting call of a model that is not active need not compute."""
        limit = matchable_blocks(call.length, self.settings.block_tokens)
        blocks = len(self.restorable(host, call, 0, limit))
        while self.report.slots and blocks and host.state_at(call, blocks) is None:
            blocks -= 1
        known = blocks * self.settings.block_tokens
        self.waiting.expect(call, known, known)

    def copy_ns(self, tokens: int) -> int:
        """How long copying this state takes, either way."""
        return math.ceil(self.profile.restore_seconds(1, tokens) * NANOSECONDS)

    # --- what there is to do -------------------------------------------------------------------

    def demand(self, alone: bool, slot: Slot | None) -> Demand:
        """What the model asks of a round. If its ``slot`` is open, what it has had in it is
        included. With no other model to serve, P is one chunk: there is
        no switch to spread, and longer stalls the running decode for nothing."""
        work = self._prefill_work(slot)
        wanted = work.seconds(self.profile, self.settings.prefill_chunk)
        least = min(wanted, self._least(work)) if wanted else 0.0
        if slot is not None:
            wanted += slot.prefill_spent
            least = slot.prefill_spent + (0.0 if slot.prefill_runs else least)
        return Demand(
            model=self.name,
            decode_step=self._decode_step(),
            prefill=least if alone else wanted,
            chunk=least,
            switch=0.0 if alone else self.profile.activation,
        )

    def chunk_seconds(self) -> float:
        """The next prefill run, at most: never more than was asked for all that is left, or what
        was granted in full would not do for the last run."""
        work = self._prefill_work(None)
        return min(self._chunk(work), work.seconds(self.profile, self.settings.prefill_chunk))

    def _chunk(self, work: WorkAhead) -> float:
        tokens = min(self.settings.prefill_chunk, work.tokens)
        return self.profile.prefill_seconds(1, tokens, tokens * work.longest)

    def _least(self, work: WorkAhead) -> float:
        """A chunk, and what must be restored before it."""
        head = self.waiting.head
        restored = head.known_host if head is not None else 0
        return self._chunk(work) + self.profile.restore_seconds(restored > 0, restored)

    def _prefill_work(self, slot: Slot | None) -> WorkAhead:
        """What is to be computed of prompts; once P is over, of calls that wait only those that
        may still come into the slot."""
        if slot is not None and slot.sessions_only:
            work = WorkAhead()
            for call in self.waiting:
                if slot.joins(call):
                    work.add_waiting(call)
        else:
            work = WorkAhead.of(self.waiting)
        for calls in (self.resident, self.saved):
            for call in calls.values():
                work.add_begun(call)
        return work

    def left_over(self, slot: Slot) -> float:
        """Seconds of prefill that the slot, which closes, had no room for."""
        work = WorkAhead()
        for call in self.waiting:
            if (slot.cut and slot.was_here(call)) or call.parked == self.turn:
                work.add_waiting(call)
        if slot.cut:
            for call in self.resident.values():
                work.add_begun(call)
        return work.seconds(self.profile, self.settings.prefill_chunk)

    def _decode_step(self) -> float:
        context = sum(c.length for calls in (self.resident, self.saved) for c in calls.values())
        calls = len(self.resident) + len(self.saved)
        joining = min(len(self.waiting), max(0, self.settings.max_running - calls))
        if joining:
            context += self.waiting.context * joining // len(self.waiting)
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
