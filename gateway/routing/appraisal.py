"""What a call would cost on each instance that serves its model, and which may have it."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from alipes.gateway.routing.admission import misfit
from alipes.gateway.routing.cost import evaluate
from alipes.gateway.routing.decision import CallShape, Candidate, RouterSettings, Why
from alipes.gateway.routing.directory import BlockDirectory, Locality
from alipes.gateway.routing.instances import InstanceState
from alipes.gateway.routing.leases import Lease, LeaseTable
from alipes.gateway.routing.overlay import Charge
from alipes.gateway.routing.predict import MovingMeans, OutputLengths
from alipes.gateway.routing.profiles import CostProfiles
from alipes.gateway.routing.replica import (
    ArrivalRates,
    Demand,
    gain,
    memory_price,
    opening_cost,
)


class Appraiser:
    """All that predictions are made from besides the instances' own states: cost profiles, block
    directory, what leases hold, and what calls of each model are typically like."""

    def __init__(self, settings: RouterSettings, leases: LeaseTable) -> None:
        self.profiles = CostProfiles()
        self.directory = BlockDirectory()
        self._settings = settings
        self._leases = leases
        self._lengths = OutputLengths()
        self._units = MovingMeans(0.1)
        self._arrivals = ArrivalRates(settings.control_window)

    # --- what is learned ---

    def arrived(self, model: str, now: int) -> None:
        self._arrivals.arrived(model, now)

    def placed(self, call: CallShape, candidate: Candidate) -> None:
        """A continuation's predicted seconds are what a lease of its model will charge."""
        if call.known_tokens and candidate.why is not Why.NO_ESTIMATE:
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

    def candidate(
        self, instance: InstanceState, call: CallShape, reserved: bool, now: int
    ) -> Candidate:
        """The call as an unreserved one (Algorithm 1, lines 13 and 14)."""
        condition = instance.condition(self._settings, now)
        if condition is not Why.OK:
            return Candidate(instance.name, why=condition)
        report, hello = instance.reports.get(call.model), instance.hello
        if report is None or hello is None:
            return Candidate(instance.name, why=Why.DOWN)
        if misfit(report, hello.block_tokens, call.prompt_tokens, call.max_tokens):
            return Candidate(instance.name, why=Why.TOO_SMALL)
        if reserved:
            return Candidate(instance.name, why=Why.RESERVED)
        return self.cost(instance, call)

    def cost(self, instance: InstanceState, call: CallShape) -> Candidate:
        """Eq. 1; what is held for the call's own branch is not charged to it."""
        held = self._leases.charge(instance.name, call.branch)
        there = self._locality(call, instance)
        charge = self.charge(call, there.device_tokens, there.host_tokens)
        return evaluate(instance, charge, self.profiles.of(instance.name), held)

    def _locality(self, call: CallShape, instance: InstanceState) -> Locality:
        report, hello = instance.reports.get(call.model), instance.hello
        known = self.directory.blocks(instance.name)
        if call.path is None or report is None or hello is None or not known:
            return Locality(0, 0, call.prompt_tokens)
        keys = call.path.keys(report.kv_format)
        return self.directory.locality(instance.name, keys, call.prompt_tokens, hello.block_tokens)

    # --- Algorithm 1, line 3 ---

    def honours(self, lease: Lease, call: CallShape, instance: InstanceState) -> bool:
        """The instance is healthy, the same process as then, can hold the call, and has all
        blocks, on the device or the host, of what the prompt shares with the lease's prefix."""
        hello, report = instance.hello, instance.reports.get(call.model)
        if hello is None or report is None or not instance.healthy:
            return False
        if hello.incarnation != lease.incarnation or instance.snapshot is None:
            return False
        size = hello.block_tokens
        if misfit(report, size, call.prompt_tokens, call.max_tokens):
            return False
        shared = _shared_tokens(lease, call, report.kv_format, size)
        return 0 < shared <= self._locality(call, instance).present

    # --- Eq. 2 ---

    def without_gainless(
        self,
        call: CallShape,
        candidates: tuple[Candidate, ...],
        instances: dict[str, InstanceState],
        queued: int,
        now: int,
    ) -> tuple[Candidate, ...]:
        """The candidates, those marked that would be further replicas without gain.

        Where no instance that has the model has room, opening it elsewhere is no choice but the
        only way on: every instance with room stays, so that no call waits beside an idle one.
        """
        hosts = [c for c in candidates if c.admitted and not c.opens]
        if not hosts:
            return candidates
        burst = max(1, queued) + self._leases.live(call.model)
        rate = self._arrivals.per_second(call.model, now)
        demand = Demand(burst, rate, self._settings.control_window)
        return tuple(
            replace(c, admitted=False, why=Why.NO_GAIN)
            if c.admitted and c.opens and not self._gains(c, hosts, demand, instances, call.model)
            else c
            for c in candidates
        )

    def _gains(
        self,
        fresh: Candidate,
        hosts: Sequence[Candidate],
        demand: Demand,
        instances: dict[str, InstanceState],
        model: str,
    ) -> bool:
        instance = instances[fresh.instance]
        price = self._memory_price(instance)
        weights = instance.reports[model].weight_bytes
        cost = opening_cost(fresh.activation, price, weights, self._settings.replica_penalty)
        freest = min(hosts, key=lambda c: c.queue)
        return gain(demand, len(hosts), freest, fresh) > cost

    def _memory_price(self, instance: InstanceState) -> float:
        shown, hello = instance.snapshot, instance.hello
        if shown is None or hello is None or shown.active_model not in instance.reports:
            return 0.0
        displaced = instance.reports[shown.active_model]
        cost = self.profiles.of(instance.name).get(shown.active_model)
        if cost is None:
            return 0.0
        return memory_price(displaced, cost, shown.occupancy, hello.block_tokens)


def _shared_tokens(lease: Lease, call: CallShape, kv_format: str, block_tokens: int) -> int:
    """Tokens of whole blocks that the new prompt has in common with the lease's prefix: all of
    it where the prompt goes on from there; else what the branch had before, as far as known.
    The last token of a prompt is computed in any case."""
    if call.path is None:
        return 0
    keys, last = call.path.keys(kv_format), lease.prefix_tokens // block_tokens - 1
    extends = 0 <= last < len(keys) and keys[last] == lease.prefix
    common = lease.prefix_tokens if extends else min(call.known_tokens, lease.prefix_tokens)
    return min(common, call.prompt_tokens - 1) // block_tokens * block_tokens
