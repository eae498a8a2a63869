"""The round budget of Talaria Eq. 3-5.

Eq. 4 asks for ``d_m * (T_TPOT - t_m) >= R - d_m * t_m``, that is ``d_m >= R / T_TPOT``: every
model decodes once for each T_TPOT that the round lasts. With X the time for prefill and
switches a round therefore exists only if ``sum(t_m) < T_TPOT``, and then
``R >= X / (1 - sum(t_m) / T_TPOT)``; Eq. 5 holds it under ``gamma * T_TTFT``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from alipes.instance.contract import Targets


@dataclass(frozen=True, slots=True)
class Demand:
    """What one model asks of a round, in seconds: ``decode_step`` for one iteration of its batch
    (0 if it will not decode), ``prefill`` for all that waits, ``chunk`` for the least of it that a
    slot must do, ``switch`` to make it active."""

    model: str
    decode_step: float
    prefill: float
    chunk: float
    switch: float


@dataclass(frozen=True, slots=True)
class Share:
    """One model's slot: seconds for P, protected decode iterations, and the slot's whole length
    without the switch into it."""

    prefill: float
    protected: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Plan:
    """A round of ``length`` seconds; ``at_risk`` names the model to blame when no round meets
    the bounds and the token cadence had to be relaxed."""

    length: float
    shares: dict[str, Share]
    at_risk: str | None = None


def plan_round(demands: Sequence[Demand], targets: Targets, switch_share: float) -> Plan:
    """Divide a round among ``demands``. Prefill gets what it asks for where the bounds allow,
    else its part of what protected decode leaves, a chunk at least; the round is lengthened, up
    to its bound, until switches take no more than ``switch_share`` of it, and decode has what is
    left over."""
    bound = targets.round_bound
    switches = sum(d.switch for d in demands)
    steps = [d.decode_step for d in demands]
    wanted = sum(d.prefill for d in demands)
    least = sum(d.chunk for d in demands)

    # The longest round that needs no more iterations than it has whole cadences.
    longest = min(bound, max(math.floor(bound / targets.tpot), 1) * targets.tpot)
    amortised = min(longest, switches / switch_share)
    length = shortest_round(wanted + switches, steps, targets.tpot, bound, amortised)
    if length is not None:
        protected = _iterations(length, targets.tpot)
        prefill = [d.prefill for d in demands]
        return _plan(demands, length, length - switches, prefill, protected)

    length = longest
    protected = _iterations(length, targets.tpot)
    room = length - switches - protected * sum(steps)
    if room >= least:
        part = (room - least) / (wanted - least) if wanted > least else 0.0
        prefill = [d.chunk + part * (d.prefill - d.chunk) for d in demands]
        return _plan(demands, length, length - switches, prefill, protected)

    relaxed = max(0.0, bound - switches - least) / max(sum(steps), 1e-12)
    protected = min(protected, max(1, math.floor(relaxed + 1e-9)))
    inside = least + protected * sum(steps)
    chunks = [d.chunk for d in demands]
    return _plan(demands, switches + inside, inside, chunks, protected, _blame(demands))


def within(share: Share, demand: Demand, seconds: float, due: int) -> Share:
    """The share cut to ``seconds``, which is what the last slots of the other models leave of
    the bound, with ``due`` iterations at least. Protected decode and a chunk are never cut."""
    protected = max(share.protected, due)
    decode = protected * demand.decode_step
    prefill = min(share.prefill, max(demand.chunk, seconds - decode))
    return Share(prefill, protected, max(prefill + decode, min(share.seconds, seconds)))


def shortest_round(
    other: float, steps: Sequence[float], tpot: float, bound: float, length: float = 0.0
) -> float | None:
    """Length of the shortest round, from ``length`` to ``bound``, that holds ``other`` seconds of
    prefill and switches and the iterations it then owes to every model; None if there is none."""
    while True:
        needed = other + _iterations(length, tpot) * sum(steps)
        if needed > bound:
            return None
        if needed <= length:
            return length
        length = needed


def _iterations(length: float, tpot: float) -> int:
    return max(1, math.ceil(length / tpot - 1e-9))


def _plan(
    demands: Sequence[Demand],
    length: float,
    inside: float,
    prefill: Sequence[float],
    protected: int,
    at_risk: str | None = None,
) -> Plan:
    """A plan of ``inside`` seconds for the slots."""
    steps = sum(d.decode_step for d in demands)
    spare = max(0.0, inside - sum(prefill) - protected * steps)
    shares = {}
    for demand, seconds in zip(demands, prefill, strict=True):
        # In proportion to the step time: every model gets as many further iterations.
        extra = spare * demand.decode_step / steps if steps else 0.0
        owed = protected if demand.decode_step else 0
        whole = seconds + owed * demand.decode_step + extra
        shares[demand.model] = Share(seconds, owed, whole)
    return Plan(length, shares, at_risk)


def _blame(demands: Sequence[Demand]) -> str:
    """The model without which the rest would come nearest to a round within the bounds."""
    return max(demands, key=lambda d: (d.decode_step, d.switch + d.chunk)).model
