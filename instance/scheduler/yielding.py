"""Idle KV of the active model gives way to weights of the next one.

When the next model becomes active, all device blocks are void: a cached block is worth what a
return before then would save, and one that came back and waits to come in is certain. A copy on
the host can be restored; a block without one is given up only where nobody is to be expected for
it. Rows are given up from the highest one down, a portion at a time, so that no more go than the
writer can fill.
"""

from __future__ import annotations

from typing import Final

from alipes.instance.engine.protocol import Staged
from alipes.instance.scheduler.active import ActiveModel
from alipes.instance.scheduler.model import ModelState
from alipes.instance.scheduler.sequence import Sequence
from alipes.instance.scheduler.slot import Slot

PORTIONS: Final = 16
"""Of what is missing of the weights, so much of room at a time."""


def give_way(
    active: ActiveModel, following: ModelState, staged: Staged, slot: Slot, now: int
) -> int:
    """Let go of idle blocks where the time that loading weights of ``following`` into their place
    saves is more than restoring them is likely to take; how many."""
    if not active.idle:
        return 0
    missing = following.report.weight_bytes - staged.covered.get(following.name, 0)
    portion = -(-missing // PORTIONS)
    if staged.target != following.name or staged.slack_bytes >= portion:
        return 0
    report, profile = active.state.report, active.state.profile
    blocks = -(-portion // report.block_bytes)
    room = min(blocks * report.block_bytes, missing)
    saved = room * following.profile.switch.byte_seconds
    chance = _chance(active.state, slot, now)
    tokens = blocks * active.state.settings.block_tokens
    if saved <= chance * profile.restore_seconds(1, tokens):
        return 0
    return active.give_up(blocks, only_copied=chance > 0)


def _chance(state: ModelState, slot: Slot, now: int) -> float:
    """That idle blocks are wanted while the slot is open."""
    coming = (slot.ordinary is None or slot.joins(call) for call in state.waiting if _counts(call))
    return 1.0 if any(coming) else state.returns.chance(now, slot.seconds_until_limit(now))


def _counts(call: Sequence) -> bool:
    """Whether the call is expected to find device blocks."""
    return call.known > call.known_host
