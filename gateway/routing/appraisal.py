"""What a call would cost on each instance that serves its model, and which may have it."""

from __future__ import annotations

from alipes.gateway.routing.admission import misfit
from alipes.gateway.routing.cost import evaluate
from alipes.gateway.routing.decision import CallShape, Candidate, RouterSettings, Why
from alipes.gateway.routing.directory import BlockDirectory, Locality
from alipes.gateway.routing.instances import InstanceState
from alipes.gateway.routing.leases import LeaseTable
from alipes.gateway.routing.overlay import Charge
from alipes.gateway.routing.predict import TYPICAL, MovingMeans, OutputLengths
from alipes.gateway.routing.profiles import CostProfiles
from alipes.gateway.routing.tally import Tally


class Appraiser:
    """All that predictions are made from besides the instances' own states: cost profiles, block
    directory, what leases hold, how many calls are continued, and what calls of each model are
    typically like."""

    def __init__(self, settings: RouterSettings, leases: LeaseTable, tally: Tally) -> None:
        self.profiles = CostProfiles()
        self.directory = BlockDirectory()
        self._settings = settings
        self._leases = leases
        self._tally = tally
        self._lengths = OutputLengths()
        self._units = MovingMeans(TYPICAL)

    def configure(self, settings: RouterSettings) -> None:
        """What has been learned stays."""
        self._settings = settings

    # --- what is learned ---

    def placed(self, call: CallShape, candidate: Candidate) -> None:
        """A continuation's predicted seconds are what a lease of its model will charge."""
        if call.known_tokens:
            self._units.observe(call.model, candidate.prefill + candidate.recovery)

    def finished(self, model: str, completion_tokens: int) -> None:
        self._lengths.finished(model, completion_tokens)

    def admission_unit(self, model: str) -> float:
        """Seconds that one returning continuation keeps an instance busy (DESIGN 6); none until
        the first has been seen."""
        return self._units.of(model) or 0.0

    # --- one instance ---

    def charge(self, call: CallShape, device_tokens: int, host_tokens: int) -> Charge:
        """What the call adds to an instance that has so much of its prompt."""
        output = self._lengths.predicted(call.model, call.max_tokens)
        known = min(call.known_tokens, call.prompt_tokens)
        return Charge(call.model, call.prompt_tokens, output, device_tokens, host_tokens, known)

    def candidate(self, instance: InstanceState, call: CallShape, now: int) -> Candidate:
        """The call as an unreserved one (Algorithm 1, lines 13 and 14)."""
        condition = instance.condition(self._settings, now)
        if condition is not Why.OK:
            return Candidate(instance.name, why=condition)
        report, hello = instance.reports.get(call.model), instance.hello
        if report is None or hello is None:
            return Candidate(instance.name, why=Why.DOWN)
        if misfit(report, hello.block_tokens, call.prompt_tokens, call.max_tokens):
            return Candidate(instance.name, why=Why.TOO_SMALL)
        return self.cost(instance, call)

    def cost(self, instance: InstanceState, call: CallShape) -> Candidate:
        """Eq. 1; what is held for the call's own branch is not charged to it."""
        held = self._leases.charge(instance.name, call.branch)
        there = self.locality(call, instance)
        charge = self.charge(call, there.device_tokens, there.host_tokens)
        costs, returning = self.profiles.of(instance.name), self._leases.models(instance.name)
        come_back = self._tally.come_back if self._settings.eviction_cost else 0.0
        return evaluate(instance, charge, costs, held, returning, come_back)

    def locality(self, call: CallShape, instance: InstanceState) -> Locality:
        """What the instance has of the prompt."""
        report, hello = instance.reports.get(call.model), instance.hello
        known = self.directory.knows(instance.name)
        if call.path is None or report is None or hello is None or not known:
            return Locality(0, 0, call.prompt_tokens)
        keys = call.path.keys(report.kv_format)
        return self.directory.locality(instance.name, keys, call.prompt_tokens, hello.block_tokens)
