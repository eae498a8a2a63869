"""The switches of an instance: the one under way, and what the next one would find."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from alipes.instance.contract import Staging
from alipes.instance.engine.protocol import Staged, SwitchReport
from alipes.instance.scheduler.model import ModelState
from alipes.instance.scheduler.slot import NANOSECONDS
from alipes.instance.scheduler.tally import Tally
from alipes.instance.scheduler.work import Linger, Restore, Work


@dataclass(slots=True)
class Turn:
    """A switch from its beginning (ns) to the first iteration after it; ``other`` seconds of that
    have been told of weights and of prompts."""

    began: int
    other: float = 0.0


class Switches:
    """Tells every model's profile what its switches took and are going to find."""

    def __init__(self, models: Mapping[str, ModelState], tally: Tally) -> None:
        self.staged = Staged()
        self._models = models
        self._tally = tally
        self._turn: Turn | None = None

    def begin(self, now: int) -> None:
        """The last iteration of the model that leaves has ended."""
        self._turn = Turn(now)

    def done(self, state: ModelState, report: SwitchReport, saving: float) -> None:
        """The model is active; calls were saved in ``saving`` seconds before."""
        costs = state.profile.switch
        self._tally.switched(report, saving, costs.weights_seconds)
        costs.observe(report)
        self.meanwhile(report.seconds)

    def meanwhile(self, seconds: float) -> None:
        """So much went into something that is told elsewhere."""
        if self._turn is not None:
            self._turn.other += seconds

    def followed_by(self, work: Work, state: ModelState, now: int) -> None:
        """Work in a slot begins: with the first iteration a switch is over."""
        turn = self._turn
        if turn is None or isinstance(work, Restore):
            return
        if not isinstance(work, Linger):
            seconds = (now - turn.began) / NANOSECONDS
            state.profile.switch.turned(max(0.0, seconds - turn.other))
            self._tally.turn_seconds += seconds
        self._turn = None

    def find(self, staged: Staged, active: str) -> None:
        """What switches would find on the device now; predictions go by it."""
        self.staged = staged
        for state in self._models.values():
            if state.name == active:
                state.profile.switch.staged(None)
            else:
                state.profile.switch.staged(staged.covered.get(state.name, 0), staged.slack_bytes)

    def state(self) -> Staging:
        """For the gateway."""
        return Staging(self.staged.target, dict(self.staged.covered), self.staged.slack_bytes)
