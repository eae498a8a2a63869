"""Which models wait for longer than a round may last, so that their turn has come.

Sessions that return with a lease pass the queue, and so do calls of other models that still fit:
they may keep an instance's rounds at their bound, or its memory short, for as long as they live.
So that every model with waiting work is visited within a round's bound (Talaria Eq. 5) all the
same, a model of which no queued call has gone for that long is *late*: its next call goes, to be
late there rather than never, and need neither keep the round within its bound nor find free
blocks. Each call that goes gives the model another bound, and any number of models may be late.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from alipes.gateway.routing.decision import Candidate, LateModel
from alipes.gateway.routing.instances import SECOND, InstanceState
from alipes.gateway.routing.waiting import Queued, WaitingCalls
from alipes.instance.contract import Targets

USUAL = Targets().round_bound
"""Seconds; for models of whose instances none has told its targets yet."""


class Lateness:
    """Of the models that have calls in ``waiting``; ``serving`` has the instances of each."""

    def __init__(
        self, waiting: WaitingCalls, serving: Mapping[str, Sequence[InstanceState]]
    ) -> None:
        self._waiting = waiting
        self._serving = serving
        self._went: dict[str, int] = {}
        self._looked = -1

    def went(self, model: str, now: int) -> None:
        """A call of the model has left the queue for an instance."""
        self._went[model] = now

    def due(self, model: str) -> int:
        """When the model is late (ns)."""
        return self._since(model) + self._bound(model)

    def turns(self, now: int) -> list[str]:
        """The queue is gone through now: the models in the order in which they may choose, late
        ones by how long they have been so, the others by which has the call that came first."""
        self._looked = now
        heads = self._waiting.heads()

        def rank(queued: Queued) -> tuple[bool, int]:
            due = self.due(queued.call.model)
            return (now < due, due if due <= now else queued.arrived)

        return [queued.call.model for queued in sorted(heads, key=rank)]

    def next_due(self) -> int | None:
        """When to go through the queue again if nothing happens: what was late the last time can
        go only after an event."""
        dues = map(self.due, self._waiting.depths())
        return min((due for due in dues if due > self._looked), default=None)

    def status(
        self, candidates: Callable[[Queued, int], Sequence[Candidate]], now: int
    ) -> tuple[LateModel, ...]:
        """The models that are late, and why ``candidates`` keep them so."""
        return tuple(
            LateModel(
                model=queued.call.model,
                waiting=self._waiting.waits(queued.call.model),
                waited=(now - self._since(queued.call.model)) / SECOND,
                why={each.instance: each.why for each in candidates(queued, now)},
            )
            for queued in self._waiting.heads()
            if self.due(queued.call.model) <= now
        )

    def _since(self, model: str) -> int:
        came = self._waiting.oldest(model)
        return max(came, self._went.get(model, came))

    def _bound(self, model: str) -> int:
        hellos = [state.hello for state in self._serving[model]]
        bounds = [hello.targets.round_bound for hello in hellos if hello is not None]
        return int(min(bounds, default=USUAL) * SECOND)
