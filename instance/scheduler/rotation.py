"""Whose turn it is, and how long a round is.

Of the models with work, the one whose last slot is oldest is next: so no model gets two slots
while another waits for one, which is what a round promises.
"""

from __future__ import annotations

import itertools
import math

from alipes.instance.contract import InstanceSettings
from alipes.instance.scheduler.budget import Plan, plan_round, within
from alipes.instance.scheduler.model import ModelState
from alipes.instance.scheduler.returns import best_wait
from alipes.instance.scheduler.slot import NANOSECONDS, Slot
from alipes.instance.scheduler.tally import Tally


class Rotation:
    """The present round: which models have had their slot in it, and its plan."""

    def __init__(self, settings: InstanceSettings, tally: Tally) -> None:
        self.plan = Plan(0.0, {})
        self._settings = settings
        self._tally = tally
        self._served: set[str] = set()
        self._turns = itertools.count(1)
        self._at_risk = False

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
            self._at_risk = False
        return min(ready, key=lambda state: state.turn)

    def following(self, state: ModelState | None, ready: list[ModelState]) -> str | None:
        """The model to be served after ``state``."""
        others = [other for other in ready if other is not state]
        return min(others, key=lambda other: other.turn).name if others else None

    def open(self, state: ModelState, ready: list[ModelState], now: int) -> Slot:
        """Begin the model's slot with its share of the round."""
        waited = (now - state.since) / NANOSECONDS if state.decoding else 0.0
        slot = Slot(
            state.name,
            now,
            due=math.ceil(waited / self._settings.targets.tpot),
            sessions=self._settings.session_prefill and len(self._settings.models) > 1,
        )
        self._served.add(state.name)
        state.turn = next(self._turns)
        state.since = now
        self.replan(slot, state, ready)
        return slot

    def replan(self, slot: Slot, state: ModelState, ready: list[ModelState]) -> None:
        """Plan a round of the models that are ready, and give the open slot its share of it,
        counted from its opening. Decode has no limit while nothing else waits, or what waits
        cannot begin."""
        if not state.has_work:
            return
        settings = self._settings
        alone = len(ready) == 1
        demands = {
            other.name: other.demand(alone, slot if other is state else None) for other in ready
        }
        self.plan = plan_round(tuple(demands.values()), settings.targets, settings.switch_share)
        share, own = self.plan.shares[slot.model], demands[slot.model]
        due = slot.due
        if self.plan.at_risk is not None:
            # Bringing calls back takes no more of a slot than what they are brought back for: where
            # that alone exceeds the bound they would else draw a token each time.
            redeemed = own.decode_step > 0 and not alone
            due = math.ceil(slot.returned / own.decode_step) if redeemed else 0
        left = self._left(slot, state, ready)
        share = within(share, own, left, due)
        overrun = own.chunk + share.protected * own.decode_step > left
        self._watch(self.plan.at_risk or (slot.model if overrun else None))
        pending = not slot.stuck and state.prefill_pending()
        slot.grant(share, pending or not alone, left)

    def _left(self, slot: Slot, state: ModelState, ready: list[ModelState]) -> float:
        """Seconds that the slot may last so that the model to be served next is revisited, after
        a switch, within the bound of Eq. 5. A round may begin with any model: what counts for
        one is the slots of the others since its own."""
        others = [other for other in ready if other is not state]
        if not others:
            return math.inf
        following = min(others, key=lambda other: other.turn)
        bound = self._settings.targets.round_bound
        passed = (slot.opened - following.since) / NANOSECONDS
        return bound - passed - following.profile.activation

    def linger(
        self, slot: Slot, state: ModelState, ready: list[ModelState], now: int
    ) -> int | None:
        """Until when (ns) the open slot, which has nothing to decode, should wait for sessions
        that finished a call in it: what their return now saves, the time until the model's next
        slot, against that time for every call that waits meanwhile. None: not at all."""
        others = [other for other in ready if other is not state]
        if not others or not slot.sessions:
            return None
        plan = plan_round(
            tuple(other.demand(False, None) for other in others),
            self._settings.targets,
            self._settings.switch_share,
        )
        away = sum(other.profile.activation + plan.shares[other.name].seconds for other in others)
        gains = state.returns.gains(slot.opened, now, away + state.profile.activation)
        if not gains:
            return None
        waiting = len(state.waiting) + sum(len(o.waiting) + len(o.saved) for o in others)
        end = slot.opened + self._left(slot, state, ready) * NANOSECONDS
        if slot.limit is not None:
            end = min(end, slot.limit)
        wait = best_wait(gains, waiting, (end - now) / NANOSECONDS)
        return now + math.ceil(wait * NANOSECONDS) if wait > 0 else None

    def _watch(self, at_risk: str | None) -> None:
        """Count a round that cannot keep the bounds, once."""
        if at_risk is not None and not self._at_risk:
            self._at_risk = True
            self._tally.deadline_risk[at_risk] += 1

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
