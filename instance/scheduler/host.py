"""KV on the host: what is copied there, what is still under way, who will come back for it."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from alipes.instance.contract import BlocksRemoved, BlocksStored, ModelReport, Occupancy, Tier
from alipes.instance.engine.protocol import CopyEnd, HostSlabs
from alipes.instance.memory.blocks import BlockPool
from alipes.instance.memory.changes import HostChange, HostStored
from alipes.instance.memory.registry import HostRegistry
from alipes.instance.memory.rows import HostBlock, still_here
from alipes.instance.scheduler.sequence import Sequence
from alipes.instance.scheduler.work import Checkpoint


@dataclass(slots=True)
class Copying:
    """Copies to the host that are under way; the ``device`` blocks and ``slots`` are held until
    they end."""

    sources: list[int] = field(default_factory=list)
    blocks: list[HostBlock] = field(default_factory=list)
    device: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)

    def add_slot(self, device: int, block: HostBlock) -> None:
        """A slot, as copies name it."""
        self.sources.append(device)
        self.blocks.append(block)

    def add(self, device: list[int], blocks: list[HostBlock], places: list[int]) -> None:
        """``device`` and host ``blocks`` of one path, of which those at ``places`` are copied."""
        self.sources += [device[place] for place in places]
        self.blocks += [blocks[place] for place in places]


class HostKv:
    """The registry as the scheduler uses it. Without ``shared``, host blocks belong to one saved
    call each and nothing is ever matched."""

    def __init__(
        self,
        host: HostSlabs,
        reports: tuple[ModelReport, ...],
        block_tokens: int,
        shared: bool,
    ) -> None:
        self.slab_bytes = host.slab_bytes
        self.registry = HostRegistry(host.count)
        self.checkpointed = 0
        self.torn = 0
        self._shared = shared
        self._block_tokens = block_tokens
        self._slabs = {r.name: r.block_slabs(host.slab_bytes) for r in reports}
        self._slot_slabs = {r.name: -(-r.slot_bytes // host.slab_bytes) for r in reports}
        self._revision = {report.name: report.kv_format for report in reports}
        self._models: dict[str, list[str]] = defaultdict(list)
        for report in reports:
            self._models[report.kv_format].append(report.name)
        self._tickets = itertools.count(1)
        self._copying: dict[int, Copying] = {}

    @property
    def copying(self) -> bool:
        return bool(self._copying)

    @property
    def tokens_copying(self) -> int:
        blocks = sum(len(copying.blocks) for copying in self._copying.values())
        return blocks * self._block_tokens

    def room(self, model: str) -> int:
        """Blocks of ``model`` that could be reserved now."""
        return (self.registry.total - self.registry.held) // self._slabs[model]

    def occupancy(self, pool: BlockPool | None) -> Occupancy:
        """Device blocks of the active model, none without one, and host bytes."""
        slabs = (self.registry.used, self.registry.total, self.registry.held)
        host = [count * self.slab_bytes for count in slabs]
        if pool is None:
            return Occupancy(0, 0, 0, 0, *host)
        return Occupancy(pool.total, pool.free, pool.cached, pool.held, *host)

    def to_save(self, call: Sequence) -> int:
        """The room in blocks that saving the call takes at most, its recurrent state included."""
        model = call.call.model
        state = -(-self._slot_slabs[model] // self._slabs[model])
        return -(-call.length // self._block_tokens) + state

    def find(self, call: Sequence, first: int, last: int) -> list[HostBlock]:
        """The longest row of the call's blocks from ``first``, before ``last``, that the host
        can give."""
        if not self._shared or call.recompute:
            return []
        begun = call.on_host[first:last]
        del begun[still_here(begun, published=True) :]
        path = call.path(last, self._block_tokens, first + len(begun))
        found = begun + self.registry.match(self._revision[call.call.model], path)
        if first <= len(call.on_host):
            call.on_host[first:] = found
        return found

    def has(self, model: str, key: bytes) -> bool:
        """Whether the host can give this block."""
        block = self.registry.find(self._revision[model], key) if self._shared else None
        return block is not None and block.complete

    def state_at(self, call: Sequence, blocks: int) -> HostBlock | None:
        """The recurrent state after the call's first ``blocks`` blocks, if the host can give it."""
        if not self._shared or call.recompute or not blocks:
            return None
        key = call.extend_path(blocks, self._block_tokens)[blocks - 1]
        block = self.registry.find(self._state_revision(call), key)
        return block if block is not None and block.complete else None

    def _state_revision(self, call: Sequence) -> str:
        """Of a name that no model goes by, as nothing of it is told."""
        return f"{self._revision[call.call.model]}/state"

    # --- to the host ---------------------------------------------------------------------------

    def checkpoint(self, calls: Iterable[Sequence], spare: int) -> Copying | None:
        """Reserve room for what the host lacks of the calls' full computed blocks, ``spare`` new
        blocks at most; None when there is nothing to copy. To be begun with ``begin``."""
        copying = Copying()
        if not self._shared:
            return None
        for call in calls:
            full = call.computed // self._block_tokens
            keys = call.extend_path(full, self._block_tokens)[:full]
            if spare < full:
                keys = self._affordable(call.call.model, keys, spare)
            path, new = self._reserve(call, keys)
            spare = max(0, spare - len(new))
            copying.add(call.blocks, path, new)
            # All of the path, so that it comes back to the pool in its order.
            copying.device.extend(call.blocks[:full] if new else ())
        return copying if copying.blocks else None

    def touch_states(self, call: Sequence, places: Iterable[int]) -> None:
        """Those after so many blocks of the call were of use, as far as the host has them."""
        for blocks in filter(None, places) if self._shared else ():
            key = call.extend_path(blocks, self._block_tokens)[blocks - 1]
            there = self.registry.find(self._state_revision(call), key)
            self.registry.touch([there] if there is not None else [])

    def reserve_state(self, call: Sequence, blocks: int, spare: int) -> HostBlock | None:
        """Room for the recurrent state after the call's first ``blocks`` blocks; None where the
        host has it, or has no room besides ``spare`` blocks."""
        if not self._shared or not blocks:
            return None
        revision, keys = self._state_revision(call), call.extend_path(blocks, self._block_tokens)
        if self.registry.find(revision, keys[blocks - 1]) is not None:
            return None
        model = call.call.model
        slabs = self._slot_slabs[model]
        if self.registry.total - self.registry.held < slabs + spare * self._slabs[model]:
            return None
        return self.registry.reserve(revision, keys[blocks - 1], slabs)

    def save(self, call: Sequence, copying: Copying, slot: int | None = None) -> bool:
        """Reserve all that a running call needs to be resumed, its state in device ``slot`` too;
        False, with nothing changed, where there is no room for it."""
        if call.computed == 0:
            return False
        if slot is None:
            return self._save_blocks(call, copying)
        revision, slabs = self._state_revision(call), self._slot_slabs[call.call.model]
        state = self.registry.reserve(revision, None, slabs)
        if state is None:
            return False
        if not self._save_blocks(call, copying):
            self.registry.abort([state])
            return False
        self.registry.hold([state])
        call.saved_slot = state
        copying.add_slot(slot, state)
        return True

    def _save_blocks(self, call: Sequence, copying: Copying) -> bool:
        model = call.call.model
        full, rest = divmod(call.computed, self._block_tokens)
        keys = call.extend_path(full, self._block_tokens)[:full] if self._shared else []
        private = full - len(keys) + (rest > 0)
        saved = self.registry.hold_path(
            self._revision[model],
            call.call.root,
            keys,
            private,
            self._slabs[model],
            call.on_host,
        )
        if saved is None:
            return False
        call.saved, new = saved
        call.on_host = call.saved[: len(keys)]
        copying.add(call.blocks, call.saved, new)
        return True

    def begin(self, copying: Copying) -> Checkpoint:
        """Copies for the engine to begin now; their end is told to ``ended`` or ``failed``."""
        ticket = next(self._tickets)
        self._copying[ticket] = copying
        return Checkpoint(ticket, tuple(copying.sources), tuple(copying.blocks))

    def ended(self, end: CopyEnd) -> Copying:
        """Publish what is intact of a copy that has ended; nobody may refer to the rest any
        more."""
        copying = self._copying.pop(end.ticket)
        intact, torn = _divided(copying, end)
        self.registry.commit(intact)
        self.registry.abort(torn)
        self.checkpointed += sum(1 for block in intact if block.key is not None)
        self.torn += len(torn)
        return copying

    def lost(self, end: CopyEnd, calls: Iterable[Sequence]) -> list[Sequence]:
        """Those of the saved ``calls`` that refer to blocks of this copy which are not intact."""
        _, torn = _divided(self._copying[end.ticket], end)
        blocks = set(map(id, torn))
        return [
            call
            for call in calls
            if blocks and any(id(block) in blocks for block in (*call.saved, call.saved_slot))
        ]

    def forget(self, call: Sequence) -> None:
        """The call will not come back for its host blocks (again)."""
        self.registry.drop(call.saved)
        call.saved = []
        if call.saved_slot is not None:
            self.registry.drop([call.saved_slot])
            call.saved_slot = None

    def _reserve(self, call: Sequence, keys: list[bytes]) -> tuple[list[HostBlock], list[int]]:
        model = call.call.model
        return self.registry.reserve_path(
            self._revision[model], call.call.root, keys, self._slabs[model], call.on_host
        )

    def _affordable(self, model: str, keys: list[bytes], spare: int) -> list[bytes]:
        """The beginning of a path of which the host lacks no more than ``spare`` blocks."""
        missing = self.registry.missing(self._revision[model], keys)
        return keys[: missing[spare]] if spare < len(missing) else keys

    # --- what there is to tell -----------------------------------------------------------------

    def take_events(self) -> tuple[tuple[BlocksRemoved, ...], tuple[BlocksStored, ...]]:
        """What was evicted and published since this was last asked. Whoever publishes or evicts
        asks at once, so that no key is in both."""
        return self._events(self.registry.take_changes())

    def known(self) -> tuple[BlocksStored, ...]:
        """All that can be matched now."""
        return self._events(self.registry.known())[1]

    def _events(
        self, changes: Iterable[HostChange]
    ) -> tuple[tuple[BlocksRemoved, ...], tuple[BlocksStored, ...]]:
        removed: list[BlocksRemoved] = []
        stored: list[BlocksStored] = []
        for change in changes:
            for model in self._models[change.revision]:
                if isinstance(change, HostStored):
                    stored.append(BlocksStored(model, Tier.HOST, change.parent, change.keys))
                else:
                    removed.append(BlocksRemoved(model, Tier.HOST, change.keys))
        return tuple(removed), tuple(stored)


def _divided(copying: Copying, end: CopyEnd) -> tuple[list[HostBlock], list[HostBlock]]:
    """The blocks that are intact, and the others."""
    intact = len(copying.blocks) if end.intact is None else end.intact
    return copying.blocks[:intact], copying.blocks[intact:]
