"""Whether a model is worth a further replica: Talaria Eq. 2.

    gain(m, j) > T_swap(m, j) + mu_j * dW_m + nu

All in seconds. ``gain`` is the waiting, summed over the calls of a control window, that the
replica is predicted to save, and what the call at hand saves where its KV is nearer; ``T_swap``
the measured switch; ``mu_j`` what a GiB displaced on the instance costs to bring back; ``dW_m``
the model's weights in GiB; ``nu`` the penalty for every replica.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import exp

from msgspec import structs

from alipes.gateway.routing.decision import Candidate, RouterSettings, Why
from alipes.gateway.routing.instances import SECOND, InstanceState
from alipes.gateway.routing.predict import TYPICAL, MovingMeans
from alipes.gateway.routing.profiles import CostProfiles
from alipes.instance.contract import Estimate, ModelReport, Occupancy

GIB = 1 << 30


class ArrivalRates:
    """Observed calls per second of each model: a count that decays over the control window."""

    def __init__(self, window: float) -> None:
        self.configure(window)
        self._counts: dict[str, tuple[float, int]] = {}

    def configure(self, window: float) -> None:
        """The control window in seconds; what has been counted decays over it from its last
        call on."""
        self._window = window * SECOND

    def arrived(self, model: str, now: int) -> None:
        self._counts[model] = (self._decayed(model, now) + 1, now)

    def per_second(self, model: str, now: int) -> float:
        return self._decayed(model, now) / self._window * SECOND

    def _decayed(self, model: str, now: int) -> float:
        count, then = self._counts.get(model, (0.0, now))
        return count * exp((then - now) / self._window)


@dataclass(frozen=True, slots=True)
class Demand:
    """Calls of a model in the control window of ``window`` seconds: ``burst`` of them at once
    (this one, or those queued here), then ``rate`` a second. Each keeps an instance busy for
    ``service`` seconds."""

    burst: float
    rate: float
    service: float
    window: float


def waiting(queue: float, demand: Demand) -> float:
    """Waiting seconds, summed over the calls of the window, on one instance that is free after
    ``queue`` seconds: a fluid queue."""
    burst, rate, service = demand.burst, demand.rate, demand.service
    pairs = max(0.0, burst * (burst - 1) / 2)
    backlog, drain = queue + burst * service, 1 - rate * service
    busy = demand.window if drain <= 0 else min(demand.window, backlog / drain)
    return burst * queue + pairs * service + rate * (backlog * busy - drain * busy * busy / 2)


def gain(demand: Demand, hosts: int, host: Candidate, fresh: Candidate) -> float:
    """Seconds that a replica at ``fresh`` saves: of waiting, and of the call's own prefill and
    recovery. Calls are shared evenly, at least one goes to the replica; every one of the
    ``hosts`` instances that have the model is taken to be as free as ``host``, the freest, so
    that the gain is not overrated. Sessions about to return go where their leases are: the
    seconds of those are in the candidates' queues."""
    moved = max(1.0, demand.burst / (hosts + 1))
    alone = replace(demand, burst=demand.burst / hosts, rate=demand.rate / hosts)
    rate = demand.rate / (hosts + 1)
    relieved = replace(demand, burst=(demand.burst - moved) / hosts, rate=rate)
    saved = hosts * (waiting(host.queue, alone) - waiting(host.queue, relieved))
    saved -= waiting(fresh.queue, replace(demand, burst=moved, rate=rate))
    return saved + (host.prefill + host.recovery) - (fresh.prefill + fresh.recovery)


def memory_price(
    displaced: ModelReport, cost: Estimate, occupancy: Occupancy, block_tokens: int
) -> float:
    """mu_j in seconds per GiB: restoring the KV of the ``displaced`` active model from the host,
    by the part of the device pool that is in use."""
    if not occupancy.total:
        return 0.0
    per_byte = cost.restore_token * block_tokens / displaced.block_bytes
    return per_byte * GIB * (1 - occupancy.free / occupancy.total)


class Replicas:
    """Keeps calls from opening a model where that gains nothing."""

    def __init__(self, settings: RouterSettings, profiles: CostProfiles) -> None:
        self._settings = settings
        self._profiles = profiles
        self._arrivals = ArrivalRates(settings.control_window)
        self._services = MovingMeans(TYPICAL)

    def configure(self, settings: RouterSettings) -> None:
        """What has been observed stays."""
        self._settings = settings
        self._arrivals.configure(settings.control_window)

    def arrived(self, model: str, now: int) -> None:
        self._arrivals.arrived(model, now)

    def placed(self, model: str, chosen: Candidate) -> None:
        """Calls yet to come are taken to cost what those before did."""
        self._services.observe(model, chosen.prefill + chosen.recovery)

    def screen(
        self,
        model: str,
        candidates: tuple[Candidate, ...],
        instances: Mapping[str, InstanceState],
        burst: int,
        now: int,
    ) -> tuple[Candidate, ...]:
        """The candidates, those marked that would be further replicas without gain; ``burst``
        calls of the model are to be placed now.

        Where no instance that has the model has room, opening it elsewhere is the only way on:
        then every instance with room stays, so that no call waits beside an idle one.
        """
        hosts = [c for c in candidates if c.admitted and not c.opens]
        if not hosts:
            return candidates
        rate, service = self._arrivals.per_second(model, now), self._services.of(model) or 0.0
        demand = Demand(burst, rate, service, self._settings.control_window)
        freest = min(hosts, key=lambda c: c.queue)
        return tuple(
            structs.replace(c, admitted=False, why=Why.NO_GAIN)
            if c.admitted
            and c.opens
            and gain(demand, len(hosts), freest, c) <= self._cost(instances[c.instance], model, c)
            else c
            for c in candidates
        )

    def _cost(self, instance: InstanceState, model: str, candidate: Candidate) -> float:
        """The right side of Eq. 2."""
        weights = instance.reports[model].weight_bytes / GIB
        displaced = self._price(instance) * weights
        return candidate.activation + displaced + self._settings.replica_penalty

    def _price(self, instance: InstanceState) -> float:
        shown, hello = instance.snapshot, instance.hello
        if shown is None or hello is None:
            return 0.0
        displaced = instance.reports.get(shown.active_model)
        cost = self._profiles.of(instance.name).get(shown.active_model)
        if displaced is None or cost is None:
            return 0.0
        return memory_price(displaced, cost, shown.occupancy, hello.block_tokens)
