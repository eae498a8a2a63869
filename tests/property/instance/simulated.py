"""A trivial engine on a virtual clock, a driver for the scheduler, and what must always hold."""

from __future__ import annotations

import hashlib
from collections import abc, defaultdict, deque
from dataclasses import dataclass, field

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
    Pool,
    Started,
    Submit,
    Targets,
    chain_key,
    chain_root,
)
from alipes.instance.engine.protocol import EngineError, Row, Sampled, SwitchReport
from alipes.instance.scheduler import phases
from alipes.instance.scheduler.rounds import RoundScheduler
from alipes.instance.scheduler.sequence import CallState, Sequence
from alipes.instance.scheduler.slot import Slot
from alipes.instance.scheduler.work import Progress, Resume, Run, Switch, Work

BLOCK = 4
VOCABULARY = 50
ROOT = chain_root("test")


def token_after(history: abc.Sequence[int]) -> int:
    """What every model here says: a function of the context alone."""
    text = ",".join(str(int(token)) for token in history).encode()
    return hashlib.blake2b(text, digest_size=1).digest()[0] % VOCABULARY


def answer(prompt: abc.Sequence[int], max_tokens: int, stops: abc.Sequence[int]) -> list[int]:
    """The slow model: the ids that a call must draw, the stop id included."""
    history = list(prompt)
    while len(history) < len(prompt) + max_tokens:
        history.append(token_after(history))
        if history[-1] in stops:
            break
    return history[len(prompt) :]


def report(name: str, blocks: int, context: int = 400) -> ModelReport:
    return ModelReport(name, f"{name}:test", context, VOCABULARY, 1 << 20, 1000, blocks)


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
) -> Submit:
    ids = np.asarray(prompt, dtype="<i4").tobytes()
    call_id = number.to_bytes(16, "big")
    return Submit(call_id, model, ROOT, ids, max_tokens, stop_ids=stops, priority=priority)


@dataclass
class Costs:
    """Seconds; ``Estimate``'s forms."""

    base: float = 0.01
    token: float = 0.002
    step: float = 0.02
    call: float = 0.001
    switch: float = 0.1
    copy: float = 0.001


@dataclass
class SimulatedEngine:
    """Computes nothing, but knows for every position of every block which context it is the
    state of, and refuses rows whose blocks are anything else. ``now`` is the virtual clock."""

    costs: Costs = field(default_factory=Costs)
    now: int = 0
    active: str = ""
    content: dict[tuple[int, int], tuple[int, ...]] = field(default_factory=dict)
    saved: dict[bytes, list[tuple[int, ...]]] = field(default_factory=dict)

    def spend(self, seconds: float) -> None:
        self.now += int(seconds * 1e9)

    def activate(self, model: str) -> SwitchReport:
        self.active = model
        self.content.clear()
        self.spend(self.costs.switch)
        return SwitchReport(self.costs.switch, 0, addresses_kept=True)

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
        for position, token in enumerate(row.tokens, row.start):
            context = (*context, int(token))
            self.content[row.blocks[position // BLOCK], position % BLOCK] = context
        if row.draw is None:
            return None
        if context != tuple(int(token) for token in row.draw.history):
            raise EngineError("the blocks are not the state of the history")
        drawn = token_after(context) if row.draw.forced is None else row.draw.forced
        return Sampled(row.call_id, drawn)

    def _state(self, blocks: abc.Sequence[int], end: int) -> tuple[int, ...]:
        """The context that the first ``end`` positions hold, checked at every one of them."""
        context: tuple[int, ...] = ()
        for position in range(end):
            here = self.content[blocks[position // BLOCK], position % BLOCK]
            assert here[:-1] == context, f"position {position} belongs to another context"
            context = here
        return context

    def save(self, call_id: bytes, blocks: abc.Sequence[int], tokens: int) -> None:
        self._state(blocks, tokens)
        assert call_id not in self.saved
        self.saved[call_id] = [self.content[blocks[p // BLOCK], p % BLOCK] for p in range(tokens)]
        self.spend(self.costs.copy)

    def load(self, call_id: bytes, blocks: abc.Sequence[int]) -> None:
        for position, context in enumerate(self.saved.pop(call_id)):
            self.content[blocks[position // BLOCK], position % BLOCK] = context
        self.spend(self.costs.copy)

    def discard(self, call_id: bytes) -> None:
        self.saved.pop(call_id, None)


class Driver:
    """Executes the scheduler's work on a ``SimulatedEngine`` and checks what it sees."""

    def __init__(self, settings: InstanceSettings, reports: tuple[ModelReport, ...]) -> None:
        self.engine = SimulatedEngine()
        self.settings = settings
        self.scheduler = RoundScheduler(settings, reports)
        self.live: dict[bytes, Submit] = {}
        self.tokens: dict[bytes, list[int]] = defaultdict(list)
        self.token_times: dict[bytes, list[int]] = defaultdict(list)
        self.started: dict[bytes, Started] = {}
        self.finished: dict[bytes, Finished] = {}
        self.failed: dict[bytes, Failed] = {}
        self.stored: dict[str, set[bytes]] = defaultdict(set)
        self.works: list[Work] = []
        self._since: dict[str, list[str]] = {}
        self._parents: dict[bytes, bytes] = {}
        self._slot: object = None
        self._open: Slot | None = None
        self._iterations = 0
        # Of each model's last three slots: when they opened, and the troubles counted by then.
        self.openings: dict[str, deque[tuple[int, int]]] = defaultdict(lambda: deque(maxlen=3))

    # --- inputs ---

    def submit(self, call: Submit) -> Failed | None:
        failed = self.scheduler.submit(call, self.engine.now)
        if failed is None:
            self.live[call.call_id] = call
            self._know_chain(call)
            self._since.setdefault(call.model, [])
        return failed

    def _know_chain(self, call: Submit) -> None:
        """Which block follows which in all that the call will ever compute."""
        prompt = np.frombuffer(call.tokens, dtype="<i4").tolist()
        whole = np.array(prompt + answer(prompt, call.max_tokens, call.stop_ids), np.int32)
        key = call.root
        for begin in range(0, len(whole) - BLOCK + 1, BLOCK):
            parent, key = key, chain_key(key, whole[begin : begin + BLOCK])
            self._parents[key] = parent

    def cancel(self, call_id: bytes) -> None:
        assert self.scheduler.cancel(call_id, self.engine.now) == (call_id in self.live)
        self.engine.discard(call_id)
        self.live.pop(call_id, None)
        self._forget_idle()

    # --- one piece of work ---

    def turn(self, steps: int = 1_000_000) -> Work | None:
        """Execute the next work, of a run at most ``steps`` iterations."""
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
            case Resume():
                begin = self.engine.now
                for call in work.calls:
                    self.engine.load(call.call_id, call.blocks)
                seconds = (self.engine.now - begin) / 1e9
                self._take(self.scheduler.resumed(work, seconds, self.engine.now), "")
        self.check_blocks()
        return work

    def drain(self, limit: int = 3_000) -> None:
        for _ in range(limit):
            if self.turn() is None:
                return
        raise AssertionError(f"{len(self.live)} calls unfinished after {limit} pieces of work")

    def _switch(self, work: Switch) -> None:
        begin = self.engine.now
        for call in work.save:
            self.engine.save(call.call_id, call.blocks, call.tokens)
        seconds = (self.engine.now - begin) / 1e9
        switch = self.engine.activate(work.model)
        self._take(self.scheduler.switched(work, switch, seconds, self.engine.now), work.model)
        self._watch([])

    def _run(self, run: Run, steps: int) -> None:
        self._visit(run)
        for started in run.started:
            assert started.call_id not in self.started
            self.started[started.call_id] = started
        for _ in range(min(run.max_steps, steps)):
            begin = self.engine.now
            sampled = self.engine.step(self.scheduler.rows(run))
            seconds = (self.engine.now - begin) / 1e9
            progress = self.scheduler.stepped(run, sampled, seconds, self.engine.now)
            self._iterations += run.phase in phases.DECODE
            self._take(progress, run.model)
            if progress.over:
                break

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
        self._forget_idle()

    def _forget_idle(self) -> None:
        """A model whose calls have all gone waits for nothing."""
        busy = {call.model for call in self.live.values()}
        self._since = {name: seen for name, seen in self._since.items() if name in busy}

    # --- what must hold ---

    def _removed(self, event: BlocksRemoved) -> None:
        assert event.keys
        assert self.stored[event.model].issuperset(event.keys)
        self.stored[event.model].difference_update(event.keys)

    def _stored(self, event: BlocksStored) -> None:
        known = self.stored[event.model]
        assert event.keys
        assert known.isdisjoint(event.keys)
        assert [self._parents[key] for key in event.keys] == [event.parent, *event.keys[:-1]]
        known.update(event.keys)

    def _drawn(self, drawn: Drawn) -> None:
        self.tokens[drawn.call_id].append(drawn.token)
        self.token_times[drawn.call_id].append(self.engine.now)

    def _finished(self, event: Finished) -> None:
        call = self.live.pop(event.call_id)
        prompt = np.frombuffer(call.tokens, dtype="<i4").tolist()
        expected = answer(prompt, call.max_tokens, call.stop_ids)
        said = self.tokens[event.call_id]
        if event.reason is FinishReason.STOP:
            assert event.stop_id == expected[-1]
            said = [*said, event.stop_id]
        assert said == expected
        assert event.completion_tokens == len(expected)
        assert event.prompt_tokens == len(prompt)
        assert event.cached_tokens == self.started[event.call_id].cached_tokens < len(prompt)
        self.finished[event.call_id] = event

    def _visit(self, run: Run) -> None:
        """No model gets two slots while another waits for one."""
        slot = self.scheduler._slot
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
        slot = self.scheduler._slot
        if slot is self._open:
            return
        if self._open is not None:
            self._check_paid(self._open, decoding)
        if slot is not None:
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
        active = self.scheduler._active
        occupancy = self.scheduler.snapshot(self.engine.now).occupancy
        assert occupancy.free + occupancy.cached + occupancy.held == occupancy.total
        if active is None:
            return
        held = {b for call in active.state.resident.values() for b in call.blocks}
        assert occupancy.held == len(held)
        assert occupancy.cached <= len(self.stored[active.state.name])
        for call in active.state.resident.values():
            assert call.state in (CallState.PREFILL, CallState.DECODE)
            assert len(set(call.blocks)) == len(call.blocks)
        for name, state in self.scheduler._calls.models.items():
            assert name == active.state.name or not state.resident
        saved = {c for s in self.scheduler._calls.models.values() for c in s.saved}
        assert saved == set(self.engine.saved)
        assert occupancy.host_used <= occupancy.host_total

    def check_idle(self) -> None:
        assert not self.live
        assert self.scheduler.idle
        snapshot = self.scheduler.snapshot(self.engine.now)
        assert snapshot.counters.live_calls == 0
        assert snapshot.occupancy.held == snapshot.occupancy.host_used == 0
        assert not self.engine.saved
        for load in snapshot.loads.values():
            assert load == type(load)()
