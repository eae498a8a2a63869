"""Instances kept for calls that have waited too long, so that no other model's pass them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from alipes.gateway.routing.decision import Candidate, Why
from alipes.gateway.routing.instances import SECOND, InstanceState


class Reservations:
    """By model; made anew whenever the queue is gone through."""

    def __init__(self) -> None:
        self._kept: dict[str, frozenset[str]] = {}

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
        names = set()
        for candidate in candidates:
            hello = instances[candidate.instance].hello
            if hello is None or not candidate.why.busy or candidate.why is Why.RESERVED:
                continue
            if waited > hello.targets.gamma * hello.targets.ttft * SECOND:
                names.add(candidate.instance)
        if names:
            self._kept[model] = frozenset(names)

    def against(self, model: str) -> frozenset[str]:
        """Instances kept for calls of other models."""
        others = (names for holder, names in self._kept.items() if holder != model)
        return frozenset().union(*others)
