"""Prometheus metrics of the gateway: a registry of its own, every label from a bounded set."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from alipes.gateway.calls.call import Call
from alipes.gateway.calls.events import CallEvent, Moved
from alipes.gateway.routing.decision import LateModel, Placement, RouterStatus
from alipes.gateway.telemetry.facts import FactGauges
from alipes.gateway.telemetry.labels import BoundedLabel
from alipes.gateway.telemetry.observer import FleetEvent, LinkLost, StateTold
from alipes.gateway.telemetry.record import CallRecord
from alipes.instance.contract import Hello, Snapshot

_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320)
_REASONS_KEPT: Final = 32


class Metrics:
    """All metrics; ``models`` and ``instances`` are the names that may become labels."""

    content_type: Final = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(self, models: Iterable[str], instances: Iterable[str]) -> None:
        self.registry = CollectorRegistry()
        self._model = BoundedLabel(models)
        self._instance = BoundedLabel(instances)
        self._reason = BoundedLabel(learn=_REASONS_KEPT)
        self._calls = Counter(
            "alipes_calls", "Client calls by outcome.", ["route", "model", "status"],
            registry=self.registry,
        )  # fmt: skip
        self._tokens = Counter(
            "alipes_tokens", "Tokens by kind: prompt, cached, completion.", ["model", "kind"],
            registry=self.registry,
        )  # fmt: skip
        self._disconnects = Counter(
            "alipes_disconnects", "Calls whose client left before the end.", ["model"],
            registry=self.registry,
        )  # fmt: skip
        self._ttft = self._histogram("alipes_ttft_seconds", "Receipt to first token.")
        self._queue = self._histogram("alipes_queue_seconds", "Receipt to start of prefill.")
        self._total = self._histogram("alipes_call_seconds", "Receipt to last token.")
        self._placements = Counter(
            "alipes_placements", "Placements by reason.", ["instance", "reason"],
            registry=self.registry,
        )  # fmt: skip
        self._replacements = Counter(
            "alipes_replacements", "Calls placed again, by the instance they left.", ["instance"],
            registry=self.registry,
        )  # fmt: skip
        self._resumed = Counter(
            "alipes_resumed_streams",
            "Those of them that had drawn tokens, by the instance they left.", ["instance"],
            registry=self.registry,
        )  # fmt: skip
        self._late = Gauge(
            "alipes_late_seconds",
            "How long models had no queued call placed, beyond a round's bound, and why.",
            ["model", "instance", "why"], registry=self.registry,
        )  # fmt: skip
        self._live = Gauge("alipes_live_calls", "Calls now open.", registry=self.registry)
        self._up = self._gauge("alipes_instance_up", "1 while the instance is connected.")
        self._fleet = InstanceGauges(self.registry)
        self._told: dict[str, Snapshot] = {}
        self._facts = FactGauges(self.registry)
        self._routing = RoutingGauges(self.registry)

    def _histogram(self, name: str, text: str) -> Histogram:
        return Histogram(name, text, ["model"], buckets=_SECONDS, registry=self.registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(name, text, ["instance"], registry=self.registry)

    def call(self, record: CallRecord) -> None:
        """Count a finished call of any outcome."""
        model = self._model(record.model)
        self._calls.labels(record.route, model, str(record.status)).inc()
        if record.disconnected:
            self._disconnects.labels(model).inc()
        for kind, count in (
            ("prompt", record.prompt_tokens),
            ("cached", record.cached_tokens),
            ("completion", record.completion_tokens),
        ):
            if count:
                self._tokens.labels(model, kind).inc(count)
        for histogram, reading in (
            (self._ttft, record.first_token),
            (self._queue, record.begun),
            (self._total, record.finished if record.first_token else 0),
        ):
            seconds = record.seconds_until(reading)
            if seconds is not None:
                histogram.labels(model).observe(seconds)

    def of_call(self, call: Call, event: CallEvent, now: int) -> None:
        """Count placements, and those that came to nothing."""
        if isinstance(event, Placement):
            reason = self._reason(event.reason)
            self._placements.labels(self._instance(event.instance), reason).inc()
        elif isinstance(event, Moved):
            instance = self._instance(event.instance)
            self._replacements.labels(instance).inc()
            if event.drawn:
                self._resumed.labels(instance).inc()

    def of_fleet(self, event: FleetEvent, now: int) -> None:
        """Show what instances tell: of their states, which are many, the last before a reading."""
        label = self._instance(event.name)
        match event:
            case StateTold(snapshot=snapshot):
                self._told[label] = snapshot
            case LinkLost():
                self._up.labels(label).set(0)
            case Hello():
                self._up.labels(label).set(1)
                self._facts.update(label, event, self._model)

    def live_calls(self, count: int) -> None:
        self._live.set(count)

    def routing(self, status: RouterStatus, sessions: int, branches: int) -> None:
        self._routing.update(status, sessions, branches)
        self._late.clear()
        for late in status.late:
            self._tell_late(late)

    def _tell_late(self, late: LateModel) -> None:
        for instance, why in late.why.items():
            labels = self._model(late.model), self._instance(instance), why
            self._late.labels(*labels).set(late.waited)

    def render(self) -> bytes:
        for label, snapshot in self._told.items():
            self._fleet.update(label, snapshot, self._model)
        self._told.clear()
        return generate_latest(self.registry)


class InstanceGauges:
    """What the latest snapshot of each instance says; totals are since its process started."""

    _COUNTERS: Final = (
        "live_calls", "finished", "cancelled", "failed", "preempted", "switches", "rounds",
        "resumed", "switch_seconds", "prefill_tokens", "cached_tokens", "decode_tokens",
        "sp_admitted", "sp_parked", "restores", "restored_tokens", "checkpointed_blocks",
        "host_evicted_blocks", "lingered_seconds", "declined_tokens", "torn_blocks",
        "turn_seconds", "yielded_blocks",
    )  # fmt: skip

    _PATHS: Final = ("h2d", "partial", "d2d", "remap")

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str, *labels: str) -> Gauge:
            names = ["instance", *labels]
            return Gauge(f"alipes_instance_{name}", text, names, registry=registry)

        self._totals = {
            name: gauge(name, f"Counter {name} of the instance since its start.")
            for name in self._COUNTERS
        }
        self._blocks = gauge("kv_blocks", "Device KV blocks by state.", "state")
        self._host = gauge("host_bytes", "Host bytes for KV by state.", "state")
        self._risk = gauge("deadline_risk", "Rounds whose bound could not be met.", "model")
        shortfall = "Waiting prefill that slots had no room for."
        self._shortfall = gauge("shortfall_seconds", shortfall, "model")
        self._load = gauge("calls", "Calls on the instance by state.", "model", "state")
        by_path = "Switches by where weights came from."
        self._switches = gauge("switches_by_path", by_path, "path")
        by_path = "Seconds of switches that weights took."
        self._path_seconds = gauge("switch_path_seconds", by_path, "path")
        predicted = "Seconds that they were predicted to take."
        self._predicted = gauge("predicted_switch_seconds", predicted, "path")
        self._switch_bytes = gauge("switch_bytes", "Bytes of weights by where they were.", "path")
        staged = "Weights on the device of models that are not active."
        self._staged = gauge("staged_bytes", staged, "model")
        self._slack = gauge("staging_slack_bytes", "Device bytes that staged weights could use.")
        activation = "Predicted seconds to make a model active."
        self._activation = gauge("activation_seconds", activation, "model")

    def update(self, instance: str, snapshot: Snapshot, model_label: BoundedLabel) -> None:
        self._update_weights(instance, snapshot, model_label)
        for name, gauge in self._totals.items():
            gauge.labels(instance).set(getattr(snapshot.counters, name))
        for state in ("free", "cached", "held"):
            self._blocks.labels(instance, state).set(getattr(snapshot.occupancy, state))
        for state in ("used", "held", "total"):
            value = getattr(snapshot.occupancy, f"host_{state}")
            self._host.labels(instance, state).set(value)
        for model, count in snapshot.counters.deadline_risk.items():
            self._risk.labels(instance, model_label(model)).set(count)
        for model, seconds in snapshot.counters.shortfall.items():
            self._shortfall.labels(instance, model_label(model)).set(seconds)
        for model, load in snapshot.loads.items():
            self._load.labels(instance, model_label(model), "waiting").set(load.waiting)
            self._load.labels(instance, model_label(model), "running").set(load.running)

    def _update_weights(self, instance: str, snapshot: Snapshot, model_label: BoundedLabel) -> None:
        counters, staging = snapshot.counters, snapshot.staging
        for path in self._PATHS:
            self._switches.labels(instance, path).set(counters.switch_paths.get(path, 0))
            self._path_seconds.labels(instance, path).set(counters.path_seconds.get(path, 0.0))
            self._predicted.labels(instance, path).set(counters.predicted_seconds.get(path, 0.0))
        for path in ("h2d", "d2d", "remap"):
            self._switch_bytes.labels(instance, path).set(counters.switch_bytes.get(path, 0))
        self._slack.labels(instance).set(staging.slack)
        for model, estimate in snapshot.estimates.items():
            label = model_label(model)
            self._staged.labels(instance, label).set(staging.covered.get(model, 0))
            self._activation.labels(instance, label).set(estimate.switch)


class RoutingGauges:
    """What the router and the session table have counted; totals are since the start."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._calls = Gauge(
            "alipes_routed_calls",
            "Calls placed, those that opened their model (avoidably: another instance had it "
            "active), returns of branches, and returns to the same instance.",
            ["kind"], registry=registry,
        )  # fmt: skip
        self._leases = Gauge(
            "alipes_leases", "Leases by outcome; live ones are held now.", ["outcome"],
            registry=registry,
        )  # fmt: skip
        self._sessions = Gauge("alipes_sessions", "Sessions known now.", registry=registry)
        self._branches = Gauge("alipes_branches", "Their branches.", registry=registry)

    def update(self, status: RouterStatus, sessions: int, branches: int) -> None:
        for name in status.counts.__struct_fields__:
            self._calls.labels(name).set(getattr(status.counts, name))
        for name in status.leases.__struct_fields__:
            self._leases.labels(name).set(getattr(status.leases, name))
        self._sessions.set(sessions)
        self._branches.set(branches)
