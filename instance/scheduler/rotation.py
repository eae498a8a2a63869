"""Whose turn it is, and how long a round is.

Of the models with work, the one whose last slot is oldest is next: so no model gets two slots
while another waits for one, which is what a round promises.
"""

from __future__ import annotations

import itertools

from alipes.instance.contract import InstanceSettings
from alipes.instance.scheduler.budget import Plan, plan_round
from alipes.instance.scheduler.model import ModelState
from alipes.instance.scheduler.slot import NANOSECONDS, Slot
from alipes.instance.scheduler.tally import Tally


class Rotation:
    """The present round: which models had their slot in it, and its plan."""

    def __init__(self, settings: InstanceSettings, tally: Tally) -> None:
        self.plan = Plan(0.0, {})
        self._settings = settings
        self._tally = tally
        self._served: set[str] = set()
        self._turns = itertools.count(1)

    @property
    def alone(self) -> bool:
        """Only one model has work: there is nothing to be fair to."""
        return len(self.plan.shares) <= 1

    def choose(self, ready: list[ModelState]) -> ModelState | None:
        """The model to serve next. A round ends when all that are ready have had a slot."""
        if not ready:
            return None
        if all(state.name in self._served for state in ready):
            self._served.clear()
        if not self._served:
            self._tally.rounds += 1
        return min(ready, key=lambda state: state.turn)

    def open(self, state: ModelState, ready: list[ModelState], now: int) -> Slot:
        """Begin the model's slot with its share of a round of those that are ready."""
        self._plan(ready, None)
        if not self._served and self.plan.at_risk is not None:
            self._tally.deadline_risk[self.plan.at_risk] += 1
        self._served.add(state.name)
        state.turn = next(self._turns)
        slot = Slot(state.name, now, self.plan.shares[state.name], limit=None)
        self.grant(slot, state)
        return slot

    def replan(self, slot: Slot, state: ModelState, ready: list[ModelState]) -> None:
        """Plan the round anew, now that costs, calls or models are others."""
        self._plan(ready, slot)
        self.grant(slot, state)

    def grant(self, slot: Slot, state: ModelState) -> None:
        """Give the open slot its share of the plan, counted from its opening. Decode has no
        limit while nothing else waits, or what waits cannot begin."""
        share = self.plan.shares.get(slot.model)
        if share is not None:
            pending = not slot.stuck and state.prefill_pending()
            slot.grant(share, bounded=pending or not self.alone)

    def _plan(self, ready: list[ModelState], slot: Slot | None) -> None:
        settings = self._settings
        alone = len(ready) == 1
        demands = []
        for state in ready:
            own = slot if slot is not None and slot.model == state.name else None
            demands.append(state.demand(settings.prefill_chunk, settings.max_running, alone, own))
        self.plan = plan_round(demands, settings.targets, settings.switch_share)

    def remaining(self, ready: list[ModelState], slot: Slot | None, now: int) -> float:
        """Predicted seconds until every model that is ready has had its slot."""
        seconds = 0.0
        for state in ready:
            share = self.plan.shares.get(state.name)
            if share is not None and state.name not in self._served:
                seconds += share.seconds + state.profile.activation
        if slot is not None and slot.limit is not None:
            seconds += max(0.0, (slot.limit - now) / NANOSECONDS)
        return seconds
