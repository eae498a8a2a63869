"""What one iteration of a run means for its calls."""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field

from alipes.instance.contract import Drawn, Finished, FinishReason
from alipes.instance.engine.protocol import Sampled
from alipes.instance.scheduler import phases
from alipes.instance.scheduler.profile import CostProfile
from alipes.instance.scheduler.sequence import CallState, Sequence
from alipes.instance.scheduler.slot import NANOSECONDS, Slot
from alipes.instance.scheduler.space import KvSpace
from alipes.instance.scheduler.work import Run


@dataclass(slots=True)
class Outcome:
    """``short`` tells that a call has no block for its next position; ``tokens`` counts what was
    drawn, stop ids included."""

    tokens: int = 0
    drawn: list[Drawn] = field(default_factory=list)
    ended: list[tuple[Sequence, FinishReason]] = field(default_factory=list)
    short: bool = False


@dataclass(frozen=True, slots=True)
class Horizon:
    """A decode run goes on for ``steps`` iterations at most, and no further than the first that
    ends at or after ``limit`` (ns) once ``owed`` have been made."""

    steps: int
    owed: int
    limit: int | None


def measure(
    run: Run,
    calls: list[Sequence],
    slot: Slot,
    profile: CostProfile,
    seconds: float,
    steps: int = 1,
) -> None:
    """Charge ``steps`` iterations, which took ``seconds`` in all, to the slot and learn from
    them; ``calls`` are as they were before."""
    if run.phase in phases.DECODE:
        slot.paid += steps
        context = sum(call.length for call in calls) + len(calls) * (steps - 1) / 2
        profile.decode.observe((1.0, len(calls), context), seconds / steps, steps)
        return
    slot.prefill_runs += 1
    slot.prefill_spent += seconds
    tokens = sum(run.chunks)
    drawn_before = (call.first_token is not None for call in calls)
    again = sum(n for n, drawn in zip(run.chunks, drawn_before, strict=True) if drawn)
    slot.returned += seconds * again / tokens
    positions = sum(n * (call.computed + n) for call, n in zip(calls, run.chunks, strict=True))
    profile.prefill.observe((1.0, tokens, positions), seconds)
    for call in calls:
        call.prefill_seconds += seconds


def take(
    run: Run, calls: list[Sequence], sampled: tuple[Sampled, ...], space: KvSpace, now: int
) -> Outcome:
    """Move the calls on by what was computed and drawn."""
    outcome = Outcome()
    results = iter(sampled)
    for call, tokens in zip(calls, run.chunks, strict=True):
        call.computed += tokens
        space.moved_on(call, tokens)
        if call.computed < call.length:
            continue
        result = next(results, None)
        if result is None or result.call_id != call.call.call_id:
            raise RuntimeError(f"the engine drew nothing for call {call.call.call_id.hex()}")
        reason = call.append(result.token, now)
        outcome.tokens += 1
        if reason is not FinishReason.STOP:
            drawn = Drawn(result.call_id, result.token, result.logprob, result.top)
            outcome.drawn.append(drawn)
        if reason is not None:
            outcome.ended.append((call, reason))
            continue
        if call.state is CallState.PREFILL:
            call.move(CallState.DECODE)
        if not space.grow(call, call.length):
            outcome.short = True
    return outcome


def horizon(run: Run, calls: list[Sequence], slot: Slot, space: KvSpace) -> Horizon:
    """How far the decode run may go before something must be decided."""
    steps = min(run.max_steps, *(call.remaining for call in calls))
    available = space.pool.available
    held = sum(len(call.blocks) for call in calls)

    def fits(count: int) -> bool:
        return sum(space.blocks_for(call.length + count) for call in calls) - held <= available

    if not fits(steps):
        # The first iteration after which a call has no block for its next position.
        steps = 1 + bisect.bisect_left(range(1, steps), True, key=lambda n: not fits(n))
    return Horizon(steps, slot.owed, slot.limit)


def advance(calls: list[Sequence], steps: int, space: KvSpace, now: int) -> Outcome:
    """Move decoding calls on by ``steps`` tokens each, which are forced."""
    outcome = Outcome(tokens=steps * len(calls))
    for call in calls:
        begin = call.generated
        drawn = call.forced[begin : begin + steps]
        if len(drawn) < steps or call.pending != 1 or call.stops:
            raise ValueError(
                f"call {call.call.call_id.hex()} cannot go {steps} tokens on at once:"
                f" {len(drawn)} of them are forced, and it may stop at {len(call.stops)} ids"
            )
        call.history[call.length : call.length + steps] = drawn
        call.length += steps
        call.computed += steps
        if not space.grow(call, call.computed):
            raise ValueError(f"{steps} iterations are more than the device has blocks for")
    # Only when all have what they computed: the block for a next position may be the last one.
    for call in calls:
        if call.remaining == 0:
            outcome.ended.append((call, FinishReason.LENGTH))
        elif not space.grow(call, call.length):
            outcome.short = True
    return outcome


def finished(call: Sequence, reason: FinishReason, now: int, block_tokens: int) -> Finished:
    """The last message of a call that has just drawn its last token."""
    full = call.computed // block_tokens
    started = call.started if call.started is not None else now
    first = call.first_token if call.first_token is not None else now
    return Finished(
        call_id=call.call.call_id,
        reason=reason,
        stop_id=int(call.history[call.length - 1]) if reason is FinishReason.STOP else None,
        prompt_tokens=call.prompt_tokens,
        cached_tokens=call.cached_tokens,
        completion_tokens=call.generated,
        queued=(started - call.arrived) / NANOSECONDS,
        prefill=call.prefill_seconds,
        decode=(now - first) / NANOSECONDS,
        restored_tokens=call.restored_tokens,
        prefix=call.extend_path(full, block_tokens)[full - 1] if full else b"",
        prefix_tokens=full * block_tokens,
    )
