"""What KV a call pushes out of an instance, and what that costs those who come back for it.

An instance keeps the KV of calls that have finished as long as there is room: in blocks of the
device, which a switch voids, and in host memory, which outlives it. A call takes room in both.
What falls out of both will be computed again when its session returns, what the host still has will
be copied. Which tier lets go of KV for good goes by which keeps more of it, for both drop what was
used longest ago: the device's is then a part of the host's, or the other way round.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from alipes.gateway.routing.instances import InstanceState
from alipes.gateway.routing.overlay import Charge
from alipes.gateway.routing.predict import prefill_seconds, restore_seconds
from alipes.instance.contract import Estimate, Load, ModelReport, Occupancy, Pool


@dataclass(frozen=True, slots=True)
class TierRoom:
    """Tokens of the call's model that fit in one tier: ``free`` beside all that has been promised,
    and ``idle``, which KV of finished calls takes."""

    free: int
    idle: int

    def evicted(self, tokens: int) -> int:
        """Idle tokens that give way to so many new ones."""
        return min(max(0, tokens - self.free), self.idle)


@dataclass(frozen=True, slots=True)
class Eviction:
    """Of idle KV, ``lost`` tokens leave the instance and ``moved`` ones the device alone; ``room``
    tokens of the model fit there before anything has to go."""

    lost: int
    moved: int
    room: int

    def seconds(self, cost: Estimate, chunk: int, come_back: float) -> float:
        """What that costs if a share ``come_back`` of the calls that left KV is continued; every
        model's KV is taken to cost what the call's own does."""
        again = prefill_seconds(cost, self.lost, chunk) + restore_seconds(cost, self.moved)
        return come_back * again


NONE = Eviction(0, 0, 0)


def eviction(instance: InstanceState, charge: Charge, before: Mapping[str, Load]) -> Eviction:
    """What the call pushes out of an instance with a state and the loads ``before`` it."""
    hello, snapshot = instance.hello, instance.snapshot
    assert hello is not None
    assert snapshot is not None
    tokens = charge.prompt_tokens + charge.output_tokens
    host = _host(snapshot.occupancy, charge, before, instance.reports, hello.block_tokens)
    # What is on the device is taken to be on the host too: it goes there when a call ends.
    forgotten = host.evicted(tokens - charge.present_tokens)
    if hello.pool is Pool.COLD:
        return Eviction(forgotten, 0, host.free)
    device = TierRoom(0, 0)
    if charge.model == snapshot.active_model:
        device = _device(snapshot.occupancy, charge, before, hello.block_tokens)
    left = device.evicted(tokens - charge.device_tokens)
    room = host.free + device.free
    if host.idle < device.idle:
        return Eviction(left, 0, room)
    if host.idle > device.idle:
        return Eviction(forgotten, left, room)
    lost = min(forgotten, left)
    return Eviction(lost, left - lost, room)


def _device(
    occupancy: Occupancy, charge: Charge, before: Mapping[str, Load], block_tokens: int
) -> TierRoom:
    promised = _coming(before.get(charge.model, Load()))
    free = occupancy.free * block_tokens - promised
    idle = occupancy.cached * block_tokens - charge.device_tokens
    return _tier(free, idle)


def _host(
    occupancy: Occupancy,
    charge: Charge,
    before: Mapping[str, Load],
    reports: Mapping[str, ModelReport],
    block_tokens: int,
) -> TierRoom:
    """In tokens of the call's model, whatever the KV of others takes."""
    own = _token_bytes(reports[charge.model], block_tokens)
    promised = sum(
        _coming(load) * _token_bytes(reports[model], block_tokens)
        for model, load in before.items()
        if model in reports
    )
    free = (occupancy.host_total - occupancy.host_used - promised) / own
    idle = (occupancy.host_used - occupancy.host_held) / own - charge.present_tokens
    return _tier(int(free), int(idle))


def _tier(free: int, idle: int) -> TierRoom:
    """What is promised beyond what is free will have been taken from what is idle."""
    return TierRoom(max(0, free), max(0, idle + min(0, free)))


def _coming(load: Load) -> int:
    """Tokens of a model that are sure to be computed yet."""
    return load.waiting_tokens + load.remaining_tokens


def _token_bytes(report: ModelReport, block_tokens: int) -> float:
    """Of one token's KV on the host of each rank."""
    return (report.host_block_bytes or report.block_bytes) / block_tokens
