"""Instances kept for calls that have waited too long, so that no other model's pass them.

Sessions that return with a lease pass a queue, and may keep an instance's rounds at their bound
for as long as they live. So that every model with waiting work is visited within a round's bound
all the same, the first of its calls that has waited so long is *overdue*: it is late by now in any
case, and the round need not stay within its bound for it. There is one such call a model and bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf

from alipes.gateway.routing.decision import Candidate, Why
from alipes.gateway.routing.instances import SECOND, InstanceState


class Reservations:
    """By model; made anew whenever the queue is gone through."""

    def __init__(self) -> None:
        self._kept: dict[str, frozenset[str]] = {}
        self._overdue: dict[str, int] = {}

    def clear(self) -> None:
        self._kept = {}

    def keep(
        self,
        model: str,
        candidates: Iterable[Candidate],
        instances: Mapping[str, InstanceState],
        waited: int,
    ) -> None:
        """Keep the instances that had no room for a call of the model, once it has waited
        (``waited`` in nanoseconds) for as long as a round there may last."""
        names = {
            candidate.instance
            for candidate in candidates
            if candidate.why.busy
            and candidate.why is not Why.RESERVED
            and waited > _bound(instances[candidate.instance])
        }
        if names:
            self._kept[model] = frozenset(names)

    def overdue(
        self,
        model: str,
        candidates: Iterable[Candidate],
        instances: Mapping[str, InstanceState],
        arrived: int,
        now: int,
    ) -> Candidate | None:
        """The cheapest of the instances that only the length of their rounds keeps from taking a
        call which ``arrived`` a bound ago or longer."""
        since = max(arrived, self._overdue.get(model, arrived))
        late = [
            candidate
            for candidate in candidates
            if candidate.why is Why.ROUND and now - since > _bound(instances[candidate.instance])
        ]
        best = min(late, key=lambda each: (each.total, each.instance), default=None)
        if best is not None:
            self._overdue[model] = now
        return best

    def against(self, model: str) -> frozenset[str]:
        """Instances kept for calls of other models."""
        others = (names for holder, names in self._kept.items() if holder != model)
        return frozenset().union(*others)


def _bound(instance: InstanceState) -> float:
    """Nanoseconds that a round there may last (Eq. 5); infinite where it has not told."""
    hello = instance.hello
    return inf if hello is None else hello.targets.round_bound * SECOND
