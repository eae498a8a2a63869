"""Talaria Algorithm 1, lines 20 to 25: the cheapest of those that have room, and why."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from alipes.gateway.routing.decision import Candidate, Reason

CallsOn = Callable[[str], int]
"""Calls that are placed on an instance now."""


def least_cost(
    candidates: Sequence[Candidate], calls_on: CallsOn, occupied: Collection[str]
) -> Candidate | None:
    """The admitted candidate of least cost. Of equals those go first that need not push another
    model out, as its sessions come back: ``occupied`` names the instances that have a model
    active. Then the calls there count, then the room for KV, then the name."""
    admitted = [candidate for candidate in candidates if candidate.admitted]

    def rank(each: Candidate) -> tuple[float, bool, int, int, str]:
        name = each.instance
        return each.total, each.opens and name in occupied, calls_on(name), -each.room, name

    return min(admitted, key=rank, default=None)


def fewest_calls(candidates: Sequence[Candidate], calls_on: CallsOn) -> Candidate | None:
    """The admitted candidate with the fewest calls, then by name."""
    admitted = [candidate for candidate in candidates if candidate.admitted]
    return min(admitted, key=lambda c: (calls_on(c.instance), c.instance), default=None)


def reason(best: Candidate, candidates: Sequence[Candidate], active: Collection[str]) -> Reason:
    """Why ``best`` was chosen; ``active`` names the instances that have the model active."""
    rivals = [candidate for candidate in candidates if candidate is not best]
    if not rivals:
        return Reason.ONLY
    if any(rival.why.busy and 0 < rival.total < best.total for rival in rivals):
        return Reason.SPILL
    if best.instance not in active:
        return Reason.SWITCH
    shared = any(rival.admitted and rival.instance in active for rival in rivals)
    return Reason.LEAST_COST if shared else Reason.ACTIVE


def waits_for(candidates: Sequence[Candidate]) -> Reason:
    busy = any(candidate.why.busy for candidate in candidates)
    return Reason.BUSY if busy else Reason.NO_INSTANCE
