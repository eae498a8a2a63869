"""What one iteration of a run means for its calls."""

from __future__ import annotations

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
    """``short`` tells that a call has no block for its next position."""

    drawn: list[Drawn] = field(default_factory=list)
    ended: list[tuple[Sequence, FinishReason]] = field(default_factory=list)
    short: bool = False


def measure(
    run: Run, calls: list[Sequence], slot: Slot, profile: CostProfile, seconds: float
) -> None:
    """Charge the iteration to the slot and learn from it; ``calls`` are as they were before."""
    if run.phase in phases.DECODE:
        slot.paid += 1
        context = sum(call.length for call in calls)
        profile.decode.observe((1.0, len(calls), context), seconds)
        return
    slot.prefill_runs += 1
    slot.prefill_spent += seconds
    tokens = sum(run.chunks)
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
        if call.computed < call.length:
            continue
        result = next(results, None)
        if result is None or result.call_id != call.call.call_id:
            raise RuntimeError(f"the engine drew nothing for call {call.call.call_id.hex()}")
        reason = call.append(result.token, now)
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
