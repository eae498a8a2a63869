"""The active model: who gets its device blocks, who joins a batch, who must give way.

The oldest resident call can always go on: where blocks are short it takes those of the newest,
which is recomputed from its tokens later. That, and that every call alone fits the pool, is why
no set of half-computed prompts can block one another.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from alipes.instance.contract import BlocksStored, InstanceSettings
from alipes.instance.memory.prefix import matchable_blocks
from alipes.instance.memory.rows import HostBlock
from alipes.instance.scheduler.host import Copying, HostKv
from alipes.instance.scheduler.known import Known
from alipes.instance.scheduler.model import ModelState
from alipes.instance.scheduler.restoring import Restoring
from alipes.instance.scheduler.sequence import CallState, Sequence
from alipes.instance.scheduler.space import KvSpace
from alipes.instance.scheduler.tally import Tally
from alipes.instance.scheduler.work import Checkpoint, Restore


class ActiveModel:
    """A model's calls over the blocks it has while it is active."""

    def __init__(
        self, state: ModelState, host: HostKv, settings: InstanceSettings, tally: Tally
    ) -> None:
        self.state = state
        self.space = KvSpace(state.report, settings.block_tokens)
        self._host = host
        self._max_running = settings.max_running
        self._tally = tally
        self._restoring = Restoring()

    # --- batches -------------------------------------------------------------------------------

    def prefill_batch(
        self, budget: int, first: Sequence | None = None
    ) -> list[tuple[Sequence, int]]:
        """Calls and how many tokens of each to compute now, ``budget`` tokens at most: ``first``
        where given, then all in turn, waiting ones while blocks for the whole of them are there.
        What those find on the host must be restored first."""
        return self.continue_prefill(self._in_turn(first), budget)

    def continue_prefill(
        self, calls: Iterable[Sequence], budget: int
    ) -> list[tuple[Sequence, int]]:
        """The next tokens of resident calls whose prompts are not computed, in this order."""
        batch: list[tuple[Sequence, int]] = []
        for call in calls:
            tokens = min(budget, call.stretch(self.space.block_tokens))
            if call.state is CallState.PREFILL and self._make_room(call, call.computed + tokens):
                batch.append((call, tokens))
                budget -= tokens
                if not budget:
                    break
        # Making room for one may have sent another away.
        return [(call, tokens) for call, tokens in batch if call.state is CallState.PREFILL]

    def _in_turn(self, first: Sequence | None) -> Iterator[Sequence]:
        """``first``, then all with prompt to compute, each resident when its turn comes. The first
        one without room keeps out those behind it, and so does one that had to give way."""
        if first is not None:
            yield first
        waiting, turns, sent = self.state.waiting, self.state.turns, self._tally.preempted
        calls = (c for c in self.state.residents(CallState.PREFILL) if c is not first)
        begun = deque(sorted(calls, key=_turn))
        full = False
        while True:
            full = full or self._tally.preempted > sent
            head = None if full else waiting.head
            if begun and (head is None or turns.precedes(begun[0], head)):
                yield begun.popleft()
            elif head is None:
                return
            elif self.admit(head):
                yield head
            else:
                head.aged = full = True

    def decode_batch(self) -> list[Sequence]:
        """Every decoding call, each with a block for its next position."""
        calls = self.state.residents(CallState.DECODE)
        for call in calls:
            if call.state is CallState.DECODE and not self._make_room(call, call.length):
                self.preempt(call)
        return [call for call in calls if call.state is CallState.DECODE]

    def oldest(self) -> Sequence | None:
        return min(self.state.resident.values(), key=lambda call: call.order, default=None)

    # --- who comes in --------------------------------------------------------------------------

    def admit(self, call: Sequence) -> bool:
        """Make a waiting call resident, with what is known of its prompt, or change nothing."""
        state = self.state
        if state.saved or len(state.resident) >= self._max_running:
            return False
        known = self._look_up(call)
        found, sources = known.found, known.sources
        if not self.space.acquire(call, found, len(sources), call.length, self._reserve()):
            return False
        call.parting = known.parting
        if not self.space.acquire_slots(call, known.blocks):
            self.space.release(call)
            return False
        self._tally.declined_tokens += known.declined * self.space.block_tokens
        state.waiting.remove(call)
        call.move(CallState.PREFILL)
        state.resident[call.call.call_id] = call
        size = self.space.block_tokens
        call.computed = known.blocks * size
        if call.started is None:
            call.restored_tokens = len(sources) * size
        self._receive(call, sources, known.published, len(found))
        return True

    def expect(self, call: Sequence) -> None:
        """Find anew how much of a waiting call's prompt need not be computed."""
        known, size = self._look_up(call), self.space.block_tokens
        self.state.waiting.expect(call, known.blocks * size, len(known.sources) * size)

    def _look_up(self, call: Sequence) -> Known:
        """What there is of the call's beginning, where copying is sooner than computing; of a
        model with recurrent layers only as far as there is a state to continue from."""
        limit = matchable_blocks(call.length, self.space.block_tokens)
        found, published = self.space.find(call, limit)
        sources = self.state.restorable(self._host, call, len(found), limit)
        known = Known(found, published, sources)
        if self.space.slots is None:
            return known
        blocks = known.blocks
        while blocks and not self._has_state(call, blocks):
            blocks -= 1
        return known.first(blocks)

    def _has_state(self, call: Sequence, blocks: int) -> bool:
        on_device = self.space.state_at(call, blocks) is not None
        return on_device or self._host.state_at(call, blocks) is not None

    def _reserve(self) -> int:
        """What those already here still need, and a block each for decode to grow into."""
        return sum(
            max(1, self.space.blocks_for(other.length) - len(other.blocks))
            for other in self.state.resident.values()
        )

    # --- what comes back from the host ---------------------------------------------------------

    def resume_saved(self) -> None:
        """Make saved calls resident, the oldest first, as long as they have blocks again."""
        size = self.space.block_tokens
        for call in sorted(self.state.saved.values(), key=lambda call: call.order):
            found, published = self.space.find(call, call.computed // size)
            sources = call.saved[len(found) :]
            if not self.space.acquire(call, found, len(sources), call.computed, 0):
                break
            if not self.space.acquire_slots(call, 0):
                self.space.release(call)
                break
            call.marked = call.computed // size
            del self.state.saved[call.call.call_id]
            self.state.resident[call.call.call_id] = call
            decoding = call.first_token is not None and call.pending == 1
            call.move(CallState.DECODE if decoding else CallState.PREFILL)
            self._tally.resumed += 1
            if published == len(call.blocks) and call.saved_slot is None:
                self._host.forget(call)
            else:
                self._restoring.resumes = True
                self._receive(call, sources, published, len(found))

    def _receive(
        self, call: Sequence, sources: list[HostBlock], published: int, found: int
    ) -> None:
        """Plan the copies into the call's blocks after those ``found``, and into its slot unless
        it continues from another."""
        state = self._state_source(call)
        if published == found and not sources and state is None:
            return
        call.published = published
        self._restoring.calls.append(call)
        size = self.space.block_tokens
        tokens = min(call.computed, (found + len(sources)) * size) - found * size
        self._host.registry.pin(sources)
        self._restoring.add(call, sources, found, tokens)
        if state is not None and call.slot is not None:
            self._host.registry.pin([state])
            self._restoring.add_slot(self.space.device_of(call.slot), state)
        self.space.expect(call, found, call.computed // size)

    def _state_source(self, call: Sequence) -> HostBlock | None:
        if call.slot is None or call.origin is not None:
            return None
        return call.saved_slot or self._host.state_at(call, call.marked)

    def take_restore(self) -> Restore | None:
        """The copies that must be made before anything else is computed."""
        waits = self._restoring.devices or self._restoring.slots
        return self._restoring.work() if waits else None

    def restored(self, failed: bool) -> tuple[Restoring, tuple[BlocksStored, ...]]:
        """The copies were made, or could not be: then the calls are computed instead."""
        batch, self._restoring = self._restoring, Restoring()
        self.space.arrived()
        for sources in (batch.sources, batch.slot_sources):
            self._host.registry.unpin(sources)
            self._host.registry.touch(sources)
        stored: list[BlocksStored] = []
        for call in batch.calls:
            # Without its recurrent state no beginning is of use.
            whole = bool(call.saved) or call.slot is not None
            self._host.forget(call)
            if not failed:
                stored.extend(self.space.publish(call))
                continue
            call.recompute = True
            if whole:
                self.preempt(call)
            else:
                self.space.truncate(call, call.published)
                call.computed = call.published * self.space.block_tokens
                if call.started is None:
                    call.restored_tokens = 0
        return batch, tuple(stored)

    # --- what goes to the host -----------------------------------------------------------------

    def checkpoint(self, calls: list[Sequence]) -> Checkpoint | None:
        """Begin to copy what the host lacks of calls that end now; the device keeps it meanwhile.
        Room that running calls may need to be saved is left alone."""
        others = [call for call in self.state.resident.values() if call not in calls]
        needed = sum(self._host.to_save(call) for call in others)
        spare = max(0, self._host.room(self.state.name) - needed)
        copying = self._host.checkpoint(calls, spare)
        if self.space.slots is not None:
            copying = copying or Copying()
            for call in calls:
                begun = call.cached_tokens // self.space.block_tokens
                self._host.touch_states(call, {begun, *self.space.states(call)})
            self._add_states({call: self.space.states(call) for call in calls}, needed, copying)
        if copying is None or not copying.blocks:
            return None
        self.space.pool.share(copying.device)
        return self._host.begin(copying)

    def _add_states(
        self, states: dict[Sequence, dict[int, int]], needed: int, copying: Copying
    ) -> None:
        """Copy these slots of states after so many blocks of the calls too, as far as the host
        lacks them and keeps room for ``needed`` blocks."""
        for call, slots in states.items():
            for blocks, slot in slots.items():
                block = self._host.reserve_state(call, blocks, needed)
                if block is not None:
                    assert self.space.slots is not None
                    self.space.slots.hold(slot)
                    copying.add_slot(self.space.device_of(slot), block)
                    copying.slots.append(slot)

    def copied(self, copying: Copying) -> None:
        """These copies have ended, or were not made."""
        self.space.pool.release(copying.device)
        for slot in copying.slots:
            assert self.space.slots is not None
            self.space.slots.release(slot)

    def leave(self) -> Checkpoint | None:
        """Ready every resident call for a switch: the oldest are saved while the host has room,
        the others will be recomputed. The blocks of the saved stay as they are. What they anchor
        on the device goes to the host now, for they will not find it when they end."""
        copying, anchors = Copying(), dict[Sequence, dict[int, int]]()
        for call in sorted(self.state.resident.values(), key=lambda call: call.order):
            slot = call.state_slot
            device = None if slot is None else self.space.device_of(slot)
            if not self._host.save(call, copying, device):
                self.preempt(call)
                continue
            call.move(CallState.SAVED)
            del self.state.resident[call.call.call_id]
            self.state.saved[call.call.call_id] = call
            anchors[call] = call.anchors
        # After all that is saved, as nobody waits for it.
        self._add_states(anchors, 0, copying)
        return self._host.begin(copying) if copying.blocks else None

    @property
    def idle(self) -> bool:
        """Whether there are blocks that ``give_up`` might let go of."""
        return self.space.pool.is_cached(self.space.pool.highest)

    def give_up(self, most: int, only_copied: bool) -> int:
        """Let go of up to ``most`` idle blocks, the highest first; ``only_copied``: of those alone
        that the host could give. How many."""
        name = self.state.name
        return self.space.give_up(
            most, (lambda k: self._host.has(name, k)) if only_copied else None
        )

    # --- who goes ------------------------------------------------------------------------------

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
        self.expect(call)
        self._tally.preempted += 1

    def _make_room(self, call: Sequence, tokens: int) -> bool:
        """Blocks for ``tokens`` positions of the call, taken from newer calls if need be; False
        when the call is itself the newest."""
        while not self.space.grow(call, tokens):
            newest = max(self.state.resident.values(), key=lambda other: other.order)
            if newest is call:
                return False
            self.preempt(newest)
        return True


def _turn(call: Sequence) -> tuple[int, int]:
    return call.turn
