"""A trivial engine on a virtual clock, a driver for the scheduler, and what must always hold."""

from __future__ import annotations

import hashlib
from collections import Counter, abc, defaultdict, deque
from dataclasses import astuple, dataclass, field
from typing import Any

import msgspec
import numpy as np

from alipes.instance.contract import (
    BlocksRemoved,
    BlocksStored,
    Drawn,
    Failed,
    Finished,
    FinishReason,
    InstanceSettings,
    ModelReport,
    ModelSettings,
    Occupancy,
    Pool,
    Started,
    Submit,
    Targets,
    Tier,
    chain_key,
    chain_root,
)
from alipes.instance.engine.protocol import (
    BlockCopy,
    CopyEnd,
    EngineError,
    HostSlabs,
    Row,
    Sampled,
    Staged,
    SwitchReport,
)
from alipes.instance.scheduler import phases
from alipes.instance.scheduler.active import ActiveModel
from alipes.instance.scheduler.queue import WaitingQueue
from alipes.instance.scheduler.rounds import RoundScheduler
from alipes.instance.scheduler.sequence import CallState, Sequence
from alipes.instance.scheduler.slot import Slot
from alipes.instance.scheduler.work import (
    Checkpoint,
    Linger,
    Progress,
    Restore,
    Run,
    Switch,
    Work,
)

BLOCK = 4
VOCABULARY = 50
SLAB = 500
ROOT = chain_root("test")


def token_after(history: abc.Sequence[int]) -> int:
    """What every model here says: a function of the context alone."""
    text = ",".join(str(int(token)) for token in history).encode()
    return hashlib.blake2b(text, digest_size=1).digest()[0] % VOCABULARY


def answer(
    prompt: abc.Sequence[int],
    max_tokens: int,
    stops: abc.Sequence[int],
    forced: abc.Sequence[int] = (),
) -> list[int]:
    """The slow model: the ids that a call must draw, the stop id included."""
    history = list(prompt)
    while (drawn := len(history) - len(prompt)) < max_tokens:
        history.append(forced[drawn] if drawn < len(forced) else token_after(history))
        if history[-1] in stops:
            break
    return history[len(prompt) :]


def ids_of(tokens: bytes) -> list[int]:
    ids: list[int] = np.frombuffer(tokens, dtype="<i4").tolist()
    return ids


def parts_of(call: Submit) -> tuple[list[int], list[int]]:
    """The prompt, and all that is drawn after it by whichever attempt."""
    tokens = ids_of(call.tokens)
    prompt = tokens[: len(tokens) - call.resumed]
    return prompt, answer(prompt, call.max_tokens, call.stop_ids, ids_of(call.forced))


def resume(call: Submit, drawn: abc.Sequence[int], **more: Any) -> Submit:
    """The same call, to be gone on with after ``drawn`` more tokens."""
    tokens = call.tokens + np.asarray(drawn, dtype="<i4").tobytes()
    return msgspec.structs.replace(call, tokens=tokens, resumed=call.resumed + len(drawn), **more)


def report(
    name: str, blocks: int, context: int = 400, slabs: int = 2, slots: int = 0
) -> ModelReport:
    size = 3 * SLAB if slots else 0
    return ModelReport(
        name, f"{name}:test", context, VOCABULARY, 1 << 20, slabs * SLAB, blocks, size, slots
    )


def settings_of(names: abc.Sequence[str], **changes: object) -> InstanceSettings:
    fields: dict[str, object] = {
        "name": "i",
        "pool": Pool.COLD if len(names) > 1 else Pool.HOT,
        "models": tuple(ModelSettings(name, "") for name in names),
        "targets": Targets(ttft=4.0, tpot=0.2, gamma=0.8),
        "endpoint": "",
        "block_tokens": BLOCK,
        "prefill_chunk": 16,
        "max_running": 4,
        "host_bytes": 40_000,
    }
    return InstanceSettings(**(fields | changes))  # type: ignore[arg-type]


def submission(
    number: int,
    model: str,
    prompt: abc.Sequence[int],
    max_tokens: int = 4,
    stops: tuple[int, ...] = (),
    priority: int = 0,
    **more: Any,
) -> Submit:
    ids = np.asarray(prompt, dtype="<i4").tobytes()
    call_id = number.to_bytes(16, "big")
    return Submit(call_id, model, ROOT, ids, max_tokens, stop_ids=stops, priority=priority, **more)


@dataclass
class Costs:
    """Seconds; ``Estimate``'s forms."""

    base: float = 0.01
    token: float = 0.002
    step: float = 0.02
    call: float = 0.001
    switch: float = 0.1
    copy: float = 0.001


Context = tuple[int, ...]


@dataclass(frozen=True)
class Copied:
    """What one block or slot held when it was copied; ``part`` of it lies in a slab."""

    model: str
    content: dict[int, Context]
    state: Context | None


@dataclass
class SimulatedEngine:
    """Computes nothing, but knows for every position of every block which context it is the
    state of, and refuses rows whose blocks are anything else. A copy to the host ends when it has
    been asked for ``delay`` times; the next ``refusals`` copies are refused, and of later ones
    only so many blocks are intact as ``tears`` has, from its end. ``now`` is the virtual
    clock. ``reports`` tells which models have slots: it knows of which context each is the state
    too."""

    costs: Costs = field(default_factory=Costs)
    delay: int = 2
    refusals: int = 0
    tears: list[int] = field(default_factory=list)
    now: int = 0
    active: str = ""
    content: dict[tuple[int, int], Context] = field(default_factory=dict)
    host: dict[int, tuple[Copied, int]] = field(default_factory=dict)
    copying: dict[int, tuple[tuple[BlockCopy, ...], int]] = field(default_factory=dict)
    reports: dict[str, ModelReport] = field(default_factory=dict)
    slots: dict[int, Context] = field(default_factory=dict)

    def spend(self, seconds: float) -> None:
        self.now += int(seconds * 1e9)

    def activate(self, model: str) -> SwitchReport:
        assert not self.copying
        self.active = model
        self.content.clear()
        self.slots.clear()
        self.spend(self.costs.switch)
        weights = self.reports[model].weight_bytes if model in self.reports else 1
        return SwitchReport(self.costs.switch, h2d_bytes=weights)

    def step(self, rows: abc.Sequence[Row]) -> tuple[Sampled, ...]:
        tokens = sum(len(row.tokens) for row in rows)
        if all(len(row.tokens) == 1 for row in rows):
            self.spend(self.costs.step + len(rows) * self.costs.call)
        else:
            self.spend(self.costs.base + tokens * self.costs.token)
        drawn = [self._compute(row) for row in rows]
        return tuple(sampled for sampled in drawn if sampled is not None)

    def _compute(self, row: Row) -> Sampled | None:
        context = self._state(row.blocks, row.start)
        self._recur(row, context)
        for position, token in enumerate(row.tokens, row.start):
            context = (*context, int(token))
            assert row.blocks[position // BLOCK] not in self._moving()
            self.content[row.blocks[position // BLOCK], position % BLOCK] = context
        if row.draw is None:
            return None
        if context != tuple(int(token) for token in row.draw.history):
            raise EngineError("the blocks are not the state of the history")
        drawn = token_after(context) if row.draw.forced is None else row.draw.forced
        return Sampled(row.call_id, drawn)

    def _recur(self, row: Row, context: Context) -> None:
        report = self.reports.get(self.active)
        assert (row.recurrence is not None) == bool(report and report.slots)
        if row.recurrence is None or report is None:
            return
        load, save, keep, kept = astuple(row.recurrence)
        assert (load is None) == (row.start == 0)
        assert load is None or self.slots[load] == context, "the slot is not the state"
        written = {save} if keep is None else {save, keep}
        assert all(0 <= slot < report.slots for slot in written)
        assert (keep is None) == (kept == 0)
        assert keep is None or (keep not in (save, load) and (row.start + kept) % BLOCK == 0)
        assert self._moving().isdisjoint(report.kv_blocks + slot for slot in written)
        tokens = tuple(map(int, row.tokens))
        self.slots[save] = context + tokens
        if keep is not None:
            self.slots[keep] = context + tokens[:kept]

    def _slot(self, device: int) -> int | None:
        report = self.reports.get(self.active)
        if report is None or device < report.kv_blocks:
            return None
        assert device < report.kv_blocks + report.slots
        return device - report.kv_blocks

    def _state(self, blocks: abc.Sequence[int], end: int) -> tuple[int, ...]:
        """The context that the first ``end`` positions hold, checked at every one of them."""
        context: tuple[int, ...] = ()
        for position in range(end):
            here = self.content[blocks[position // BLOCK], position % BLOCK]
            assert here[:-1] == context, f"position {position} belongs to another context"
            context = here
        return context

    def _moving(self) -> set[int]:
        return {copy.device for copies, _ in self.copying.values() for copy in copies}

    def _moving_slabs(self) -> set[int]:
        return {s for copies, _ in self.copying.values() for copy in copies for s in copy.slabs}

    def copy_out(self, ticket: int, copies: abc.Sequence[BlockCopy]) -> None:
        slabs = [slab for copy in copies for slab in copy.slabs]
        assert copies
        assert len(set(slabs)) == len(slabs)
        assert self._moving_slabs().isdisjoint(slabs)
        assert ticket > max(self.copying, default=0)
        self._refuse()
        for slab in slabs:
            self.host.pop(slab, None)
        self.copying[ticket] = (tuple(copies), self.delay)
        self.spend(self.costs.copy)

    def _refuse(self) -> None:
        if self.refusals:
            self.refusals -= 1
            raise EngineError("a copy is refused")

    def copied(self) -> tuple[CopyEnd, ...]:
        self.copying = {t: (copies, left - 1) for t, (copies, left) in self.copying.items()}
        return self._end({t for t, (_, left) in self.copying.items() if left <= 0})

    def drain(self) -> tuple[CopyEnd, ...]:
        return self._end(set(self.copying))

    def _end(self, tickets: set[int]) -> tuple[CopyEnd, ...]:
        ends = []
        for ticket in sorted(tickets):
            copies, _ = self.copying.pop(ticket)
            intact = self.tears.pop() if self.tears else len(copies)
            ends.append(CopyEnd(ticket, min(intact, len(copies))))
            for copy in copies[:intact]:
                held = {
                    p: self.content[copy.device, p]
                    for p in range(BLOCK)
                    if (copy.device, p) in self.content
                }
                slot = self._slot(copy.device)
                state = None if slot is None else self.slots[slot]
                whole = Copied(self.active, held, state)
                self.host.update((slab, (whole, part)) for part, slab in enumerate(copy.slabs))
        return tuple(ends)

    def copy_in(self, copies: abc.Sequence[BlockCopy]) -> None:
        assert self._moving().isdisjoint(copy.device for copy in copies)
        self._refuse()
        for copy in copies:
            whole, _ = self.host[copy.slabs[0]]
            assert whole.model == self.active
            assert [self.host[slab] for slab in copy.slabs] == [
                (whole, part) for part in range(len(copy.slabs))
            ]
            slot = self._slot(copy.device)
            assert (slot is None) == (whole.state is None)
            if slot is not None and whole.state is not None:
                self.slots[slot] = whole.state
                continue
            for position in range(BLOCK):
                self.content.pop((copy.device, position), None)
            self.content.update(((copy.device, p), held) for p, held in whole.content.items())
        self.spend(self.costs.copy)


class Driver:
    """Executes the scheduler's work on a ``SimulatedEngine`` and checks what it sees."""

    def __init__(self, settings: InstanceSettings, reports: tuple[ModelReport, ...]) -> None:
        self.engine = SimulatedEngine(reports={report.name: report for report in reports})
        self.settings = settings
        host = HostSlabs(SLAB, settings.host_bytes // SLAB)
        self.scheduler = RoundScheduler(settings, reports, host)
        self.live: dict[bytes, Submit] = {}
        self.submitted: dict[bytes, Submit] = {}
        self.tokens: dict[bytes, list[int]] = defaultdict(list)
        self.token_times: dict[bytes, list[int]] = defaultdict(list)
        self.started: dict[bytes, Started] = {}
        self.finished: dict[bytes, Finished] = {}
        self.failed: dict[bytes, Failed] = {}
        self.stored: dict[tuple[str, Tier], set[bytes]] = defaultdict(set)
        self.works: list[Work] = []
        self._since: dict[str, list[str]] = {}
        self._parents: dict[bytes, bytes] = {}
        self._slot: object = None
        self._ordinary: set[bytes] | None = None
        self._open: Slot | None = None
        self._iterations = 0
        # Of each model's last three slots: when they opened, and the troubles counted by then.
        self.openings: dict[str, deque[tuple[int, int]]] = defaultdict(lambda: deque(maxlen=3))

    @property
    def slot(self) -> Slot | None:
        serving = self.scheduler._serving
        return serving.slot if serving is not None else None

    # --- inputs ---

    def submit(self, call: Submit) -> Failed | None:
        failed = self.scheduler.submit(call, self.engine.now)
        if failed is None:
            self.live[call.call_id] = self.submitted[call.call_id] = call
            self._know_chain(call)
            self._since.setdefault(call.model, [])
        return failed

    def _know_chain(self, call: Submit) -> None:
        """Which block follows which in all that the call will ever compute."""
        prompt, drawn = parts_of(call)
        whole = np.array(prompt + drawn, np.int32)
        key = call.root
        for begin in range(0, len(whole) - BLOCK + 1, BLOCK):
            parent, key = key, chain_key(key, whole[begin : begin + BLOCK])
            self._parents[key] = parent

    def cancel(self, call_id: bytes) -> None:
        del self.live[call_id]
        progress = self.scheduler.cancel(call_id, self.engine.now)
        assert progress is not None
        self._take(progress, "")

    # --- one piece of work ---

    def turn(self, steps: int = 1_000_000) -> Work | None:
        """Execute the next work, of a run at most ``steps`` iterations; of a wait as many times
        10 ms."""
        self._report(self.engine.copied)
        decoding = self._decoding()
        work = self.scheduler.next(self.engine.now)
        self._watch(decoding)
        assert (work is None) == (not self.live) or isinstance(work, Switch)
        if work is None:
            return None
        self.works.append(work)
        match work:
            case Run():
                self._run(work, steps)
            case Switch():
                self._switch(work)
            case Restore():
                self._restore(work)
            case Linger():
                self._linger(work, steps)
        self.check_blocks()
        return work

    def stage(self, covered: int = 0, slack: int = 0) -> None:
        """What a stager says that has so much of the next model and so much room."""
        following = self.scheduler.upcoming()
        staged = Staged(following, {following: covered}, slack) if following else Staged()
        rows = self.scheduler.device_rows
        self._take(self.scheduler.staged(staged, self.engine.now), "")
        assert self.scheduler.device_rows <= rows

    def drain(self, limit: int = 3_000) -> None:
        for _ in range(limit):
            if self.turn() is None:
                return
        raise AssertionError(f"{len(self.live)} calls unfinished after {limit} pieces of work")

    def _switch(self, work: Switch) -> None:
        begin = self.engine.now
        self._begin(work.save)
        self._report(self.engine.drain)
        seconds = (self.engine.now - begin) / 1e9
        switch = self.engine.activate(work.model)
        self._take(self.scheduler.switched(work, switch, seconds, self.engine.now), work.model)
        self._watch([])

    def _restore(self, work: Restore) -> None:
        begin, failed = self.engine.now, False
        try:
            self.engine.copy_in(work.copies)
        except EngineError:
            failed = True
        seconds = (self.engine.now - begin) / 1e9
        self._take(self.scheduler.restored(work, seconds, self.engine.now, failed), "")

    def _linger(self, work: Linger, steps: int) -> None:
        """Only an empty slot waits, and only where others do too, within the slot's bounds."""
        slot = self.slot
        assert slot is not None
        if slot.stuck:
            assert self.engine.copying
            return
        assert self.settings.session_prefill
        assert not self._decoding()
        assert any(call.model != slot.model for call in self.live.values())
        assert work.until > self.engine.now
        assert slot.limit is None or work.until <= slot.limit + 1
        self.engine.now = min(work.until, self.engine.now + steps * 10_000_000)

    def _begin(self, checkpoint: Checkpoint | None) -> None:
        if checkpoint is None:
            return
        try:
            self.engine.copy_out(checkpoint.ticket, checkpoint.copies)
        except EngineError:
            self._take(self.scheduler.uncopied(checkpoint, self.engine.now), "")

    def _report(self, ended: abc.Callable[[], tuple[CopyEnd, ...]]) -> None:
        assert self.scheduler.copying == bool(self.engine.copying)
        tickets = ended()
        if tickets:
            self._take(self.scheduler.copied(tickets, self.engine.now), "")

    def _run(self, run: Run, steps: int) -> None:
        self._visit(run)
        for started in run.started:
            self._started(started, run)
        for _ in range(min(run.max_steps, steps)):
            begin = self.engine.now
            sampled = self.engine.step(self.scheduler.rows(run))
            seconds = (self.engine.now - begin) / 1e9
            progress = self.scheduler.stepped(run, sampled, seconds, self.engine.now)
            self._iterations += run.phase in phases.DECODE
            self._take(progress, run.model)
            if progress.over:
                break
            self._report(self.engine.copied)

    def _started(self, started: Started, run: Run) -> None:
        """Only a returning session comes in through SP: later than P, and with a prefix."""
        assert started.call_id not in self.started
        assert started.phase == run.phase
        assert 0 <= started.restored_tokens <= started.cached_tokens
        self.started[started.call_id] = started
        if run.phase == "SP":
            assert self.settings.session_prefill
            assert len(self.settings.models) > 1
            assert self.live[started.call_id].continuation
            assert self._ordinary is not None
            assert started.call_id not in self._ordinary
            assert started.cached_tokens > 0
        else:
            assert run.phase == "P"
        if not self.settings.host_kv:
            assert started.restored_tokens == 0

    def _take(self, progress: Progress, model: str) -> None:
        for removed in progress.removed:
            self._removed(removed)
        for stored in progress.stored:
            self._stored(stored)
        for drawn in progress.drawn:
            self._drawn(drawn)
        for finished in progress.finished:
            self._finished(finished)
        for failed in progress.failed:
            self.failed[failed.call_id] = failed
            del self.live[failed.call_id]
        self._begin(progress.checkpoint)
        self._forget_idle()

    def _forget_idle(self) -> None:
        """A model whose calls have all gone waits for nothing."""
        busy = {call.model for call in self.live.values()}
        self._since = {name: seen for name, seen in self._since.items() if name in busy}

    # --- what must hold ---

    def _removed(self, event: BlocksRemoved) -> None:
        assert event.keys
        known = self.stored[event.model, event.tier]
        assert known.issuperset(event.keys)
        known.difference_update(event.keys)

    def _stored(self, event: BlocksStored) -> None:
        known = self.stored[event.model, event.tier]
        assert event.keys
        assert known.isdisjoint(event.keys)
        assert [self._parents[key] for key in event.keys] == [event.parent, *event.keys[:-1]]
        known.update(event.keys)

    def _drawn(self, drawn: Drawn) -> None:
        self.tokens[drawn.call_id].append(drawn.token)
        self.token_times[drawn.call_id].append(self.engine.now)

    def _finished(self, event: Finished) -> None:
        call = self.live.pop(event.call_id)
        prompt, expected = parts_of(call)
        said = [*expected[: call.resumed], *self.tokens[event.call_id]]
        if event.reason is FinishReason.STOP:
            assert event.stop_id == expected[-1]
            said = [*said, event.stop_id]
        assert said == expected
        assert event.completion_tokens == len(expected)
        assert event.prompt_tokens == len(prompt)
        cached = self.started[event.call_id].cached_tokens
        assert event.cached_tokens == cached < len(prompt) + call.resumed
        assert event.restored_tokens == self.started[event.call_id].restored_tokens
        assert (event.prefix, event.prefix_tokens) == self._handle(call, [*prompt, *expected[:-1]])
        self.finished[event.call_id] = event

    def _handle(self, call: Submit, computed: list[int]) -> tuple[bytes, int]:
        key, full = b"", len(computed) // BLOCK
        for begin in range(0, full * BLOCK, BLOCK):
            key = chain_key(key or call.root, np.array(computed[begin : begin + BLOCK], np.int32))
        return key, full * BLOCK

    def _visit(self, run: Run) -> None:
        """No model gets two slots while another waits for one."""
        slot = self.slot
        if slot is self._slot:
            return
        self._slot = slot
        self._since.pop(run.model, None)
        busy = {call.model for call in self.live.values()}
        for name in busy - {run.model}:
            seen = self._since.setdefault(name, [])
            assert run.model not in seen, f"{run.model} had two slots while {name} waited"
            seen.append(run.model)

    def _watch(self, decoding: list[Sequence]) -> None:
        """Note when slots open and close; ``decoding`` are the calls that did until now."""
        slot = self.slot
        if self._ordinary is None and self.scheduler._phase not in ("P", "idle", "switch"):
            self._ordinary = set(self.live)
        if slot is self._open:
            return
        if self._open is not None:
            self._check_paid(self._open, decoding)
        if slot is not None:
            self._ordinary = None
            self._iterations = 0
            self.openings[slot.model].append((self.engine.now, self._troubles()))
        self._open = slot

    def _check_paid(self, slot: Slot, decoding: list[Sequence]) -> None:
        """A slot that closes owes nothing to calls that could still decode. One that decoded
        before the model's last slot too has had, by the driver's own count, an iteration for
        each T_TPOT since that slot opened, unless the scheduler told of trouble."""
        alive = [c for c in decoding if c.state in (CallState.DECODE, CallState.SAVED)]
        assert slot.owed == 0 or not alive
        if len(self.openings[slot.model]) < 3:
            return
        (_, troubles), (before, _), (opened, _) = self.openings[slot.model]
        through = [c for c in alive if self.token_times[c.call.call_id][0] <= before]
        if through and troubles == self._troubles():
            due = (opened - before) / 1e9 / self.settings.targets.tpot
            assert self._iterations >= due - 1e-9

    def _troubles(self) -> int:
        tally = self.scheduler._tally
        return sum(tally.deadline_risk.values()) + tally.preempted

    def _decoding(self) -> list[Sequence]:
        active = self.scheduler._active
        return active.state.residents(CallState.DECODE) if active is not None else []

    def check_blocks(self) -> None:
        active, host = self.scheduler._active, self.scheduler._host
        models = self.scheduler._calls.models
        occupancy = self.scheduler.snapshot(self.engine.now).occupancy
        assert occupancy.free + occupancy.cached + occupancy.held == occupancy.total
        self._check_host(occupancy)
        if active is None:
            return
        held = {b for call in active.state.resident.values() for b in call.blocks}
        held |= {block for copying in host._copying.values() for block in copying.device}
        assert occupancy.held == len(held)
        name = active.state.name
        assert occupancy.cached <= len(self.stored[name, Tier.DEVICE])
        for other in models:
            assert other == name or not self.stored[other, Tier.DEVICE]
        for call in active.state.resident.values():
            assert call.state in (CallState.PREFILL, CallState.DECODE)
            assert len(set(call.blocks)) == len(call.blocks)
            assert not call.saved
        self._check_slots(active)
        for other, state in models.items():
            assert other == name or not state.resident
            self._check_queue(state.waiting)
        known = {(e.model, e.tier, key) for e in self.scheduler.known() for key in e.keys}
        told = {(m, tier, key) for (m, tier), keys in self.stored.items() for key in keys}
        assert known == told
        assert all(self._parents[e.keys[0]] == e.parent for e in self.scheduler.known())

    def _check_slots(self, active: ActiveModel) -> None:
        """Every slot is free, kept under a name, or held by those that say so."""
        pool, host = active.space.slots, self.scheduler._host
        calls = active.state.resident.values()
        assert (pool is None) == (not active.state.report.slots)
        if pool is None:
            assert all(call.slot is call.origin is call.mark is None for call in calls)
            return
        own = (s for c in calls for s in (c.slot, c.origin, c.mark, *c.anchors.values()))
        held = Counter(s for s in own if s is not None)
        held.update(s for copying in host._copying.values() for s in copying.slots)
        assert pool.held == len(held)
        assert all(pool.references(slot) == count for slot, count in held.items())
        assert pool.free + pool.kept + pool.held == pool.total
        for call in calls:
            assert call.slot is not None
            assert held[call.slot] == 1
            assert call.mark is None or held[call.mark] == 1
            assert len(call.anchors) <= 2
            assert all(
                active.space.state_at(call, blocks) == slot for blocks, slot in call.anchors.items()
            )

    def _check_queue(self, waiting: WaitingQueue) -> None:
        assert waiting.context == sum(call.length for call in waiting)
        assert waiting.tokens == sum(call.length - call.known for call in waiting)
        assert waiting.restore_tokens == sum(call.known_host for call in waiting)
        assert waiting.restores == sum(call.known_host > 0 for call in waiting)
        assert all(call.known_host <= call.known < call.length for call in waiting)

    def _check_host(self, occupancy: Occupancy) -> None:
        """Every slab is free, published, in a copy, or a saved call's."""
        registry = self.scheduler._host.registry
        saved = [c for s in self.scheduler._calls.models.values() for c in s.saved.values()]
        states = [call.saved_slot for call in saved if call.saved_slot is not None]
        references = Counter(id(block) for call in saved for block in call.saved)
        references.update(map(id, states))
        copying = {t: c.blocks for t, c in self.scheduler._host._copying.items()}
        assert set(copying) == set(self.engine.copying)
        blocks = {id(b): b for known in registry._keyed.values() for b in known.values()}
        blocks |= {id(b): b for b in (*states, *(b for call in saved for b in call.saved))}
        blocks |= {id(b): b for moving in copying.values() for b in moving}
        moving = {id(b) for blocks in copying.values() for b in blocks}
        slabs = [slab for block in blocks.values() for slab in block.slabs]
        assert len(set(slabs)) == len(slabs) == registry.used
        for block in blocks.values():
            assert block.references == references[id(block)]
            assert block.pins == (id(block) in moving)
            assert block.complete == (id(block) not in moving)
            if block.key is not None:
                assert self.settings.host_kv
        held = sum(len(b.slabs) for b in blocks.values() if b.pins or b.references)
        assert registry.held == held
        assert (occupancy.host_used, occupancy.host_held) == (len(slabs) * SLAB, held * SLAB)
        assert occupancy.host_used <= occupancy.host_total
        for block in blocks.values():
            assert block.slabs
            if block.complete:
                assert all(slab in self.engine.host for slab in block.slabs)

    def check_idle(self) -> None:
        assert not self.live
        assert self.scheduler.idle
        self._report(self.engine.drain)
        self.check_blocks()
        snapshot = self.scheduler.snapshot(self.engine.now)
        assert snapshot.counters.live_calls == 0
        assert snapshot.occupancy.held == snapshot.occupancy.host_held == 0
        active = self.scheduler._active
        assert active is None or active.space.slots is None or active.space.slots.held == 0
        for load in snapshot.loads.values():
            assert load == type(load)()
