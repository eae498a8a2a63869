"""The active model: who gets its device blocks, who joins a batch, who must give way.

The oldest resident call can always go on: where blocks are short it takes those of the newest,
which is recomputed from its tokens later. That, and that every call alone fits the pool, is why
no set of half-computed prompts can block one another.
"""

from __future__ import annotations

from alipes.instance.scheduler.model import ModelState
from alipes.instance.scheduler.sequence import CallState, Sequence
from alipes.instance.scheduler.space import KvSpace
from alipes.instance.scheduler.tally import Tally


class ActiveModel:
    """A model's calls over the blocks it has while it is active."""

    def __init__(
        self, state: ModelState, block_tokens: int, max_running: int, tally: Tally
    ) -> None:
        self.state = state
        self.space = KvSpace(state.report, block_tokens)
        self._max_running = max_running
        self._tally = tally

    def prefill_batch(self, budget: int) -> list[tuple[Sequence, int]]:
        """Calls and how many tokens of each to compute now, ``budget`` tokens at most: prompts
        already begun first, then waiting ones while blocks for the whole of them are there."""
        batch: list[tuple[Sequence, int]] = []
        for call in self.state.residents(CallState.PREFILL):
            if budget == 0 or call.state is not CallState.PREFILL:
                break
            tokens = min(budget, call.pending)
            if self._make_room(call, call.computed + tokens):
                batch.append((call, tokens))
                budget -= tokens
        while budget and (joining := self._admit()) is not None:
            tokens = min(budget, joining.pending)
            self.space.grow(joining, joining.computed + tokens)
            batch.append((joining, tokens))
            budget -= tokens
        return batch

    def decode_batch(self) -> list[Sequence]:
        """Every decoding call, each with a block for its next position."""
        calls = self.state.residents(CallState.DECODE)
        for call in calls:
            if call.state is CallState.DECODE and not self._make_room(call, call.length):
                self.preempt(call)
        return [call for call in calls if call.state is CallState.DECODE]

    def oldest(self) -> Sequence | None:
        return min(self.state.resident.values(), key=lambda call: call.order, default=None)

    def restore_batch(self) -> list[Sequence]:
        """Saved calls, the oldest first, that have blocks again and are to be copied back."""
        batch: list[Sequence] = []
        for call in sorted(self.state.saved.values(), key=lambda call: call.order):
            if not self.space.grow(call, call.computed):
                break
            del self.state.saved[call.call.call_id]
            self.state.resident[call.call.call_id] = call
            decoding = call.generated > 0 and call.pending == 1
            call.move(CallState.DECODE if decoding else CallState.PREFILL)
            batch.append(call)
        return batch

    def leave(self, host_blocks: int) -> list[Sequence]:
        """Ready every resident call for a switch: the oldest are to be saved while
        ``host_blocks`` last, the others will be recomputed. Their blocks stay as they are."""
        saved: list[Sequence] = []
        for call in sorted(self.state.resident.values(), key=lambda call: call.order):
            blocks = self.space.blocks_for(call.computed)
            if blocks == 0 or blocks > host_blocks:
                self.preempt(call)
                continue
            host_blocks -= blocks
            call.host_blocks = blocks
            call.move(CallState.SAVED)
            del self.state.resident[call.call.call_id]
            self.state.saved[call.call.call_id] = call
            saved.append(call)
        return saved

    def remove(self, call: Sequence) -> None:
        """Take a resident call off the device."""
        del self.state.resident[call.call.call_id]
        self.space.release(call)

    def preempt(self, call: Sequence) -> None:
        """Send a resident call back to its place in the queue; it keeps its tokens."""
        self.remove(call)
        call.computed = 0
        call.move(CallState.WAITING)
        self.state.waiting.add(call)
        self._tally.preempted += 1

    def _admit(self) -> Sequence | None:
        """The first waiting call, now resident, or None when it must go on waiting."""
        state = self.state
        call = state.waiting.head
        if call is None or state.saved or len(state.resident) >= self._max_running:
            return None
        # What those already here still need, and a block each for decode to grow into.
        reserve = sum(
            max(1, self.space.blocks_for(other.length) - len(other.blocks))
            for other in state.resident.values()
        )
        if not self.space.acquire(call, reserve):
            return None
        state.waiting.remove(call)
        call.move(CallState.PREFILL)
        state.resident[call.call.call_id] = call
        return call

    def _make_room(self, call: Sequence, tokens: int) -> bool:
        """Blocks for ``tokens`` positions of the call, taken from newer calls if need be; False
        when the call is itself the newest."""
        while not self.space.grow(call, tokens):
            newest = max(self.state.resident.values(), key=lambda other: other.order)
            if newest is call:
                return False
            self.preempt(newest)
        return True
