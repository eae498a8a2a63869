"""A scenario file: which sessions, on what hardware, under which configurations and loads."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from alipes.gateway.routing.decision import Policy
from alipes.gateway.strict import FieldError, convert, read_yaml, with_sizes
from alipes.instance.contract import Pool
from alipes.replay.pacing import NANOSECONDS, PacingSettings
from alipes.replay.reports.measures import NAMES
from alipes.replay.sim.entries import check_entries
from alipes.replay.sim.node import Fault, FaultKind

Amount = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
Positive = Annotated[float, msgspec.Meta(gt=0, le=1e9)]
Count = Annotated[int, msgspec.Meta(ge=1)]
Size = Annotated[int, msgspec.Meta(ge=0)]
NAME: Final = re.compile(r"[A-Za-z0-9_+-][A-Za-z0-9_+ .-]*")
"""Of a configuration or load: what a folder may be called too."""
_FILE: Final = (
    "`configurations` and `instances`",
    "give a scenario file; scenarios/ has some and docs/scenarios.md tells their form",
)


class TraceSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A synthetic workload by name (``recorded`` is the file that it is drawn from, if it is), or
    a ``file``; both are relative to the scenario's. Sessions whose model nobody serves get those
    in ``models``, in turn; ``repeat`` runs every session so many times under names of its own."""

    synth: str = ""
    file: str = ""
    recorded: str = ""
    seed: Size = 1
    sessions: Size = 0
    models: tuple[str, ...] = ()
    repeat: Count = 1


class InstanceSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``count`` equal instances that serve these models."""

    models: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    pool: Pool = Pool.COLD
    count: Count = 1


def named(instances: Sequence[InstanceSpec]) -> dict[str, InstanceSpec]:
    """Every instance by its name: i0, i1, and so on, in the order in which they are given."""
    numbers = itertools.count()
    return {f"i{next(numbers)}": spec for spec in instances for _ in range(spec.count)}


class FaultSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What befalls ``instance`` (i0, i1, ...) ``at`` so many seconds. One that is killed loses all
    that it has, and a new process is ready after ``seconds``, by default those that the hardware
    profile gives for loading weights; unless it ``returns``, there is none. One that hangs does
    nothing for ``seconds``, and then goes on."""

    instance: str
    at: Amount
    kind: FaultKind
    seconds: Amount | None = None
    returns: bool = True

    def planned(self, usual: float) -> Fault:
        """``usual`` is after how many seconds a new process is ready."""
        seconds = usual if self.seconds is None else self.seconds
        lasts = round(seconds * NANOSECONDS) if self.returns else None
        return Fault(round(self.at * NANOSECONDS), self.kind, lasts)


class Setup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything a configuration may change. ``staging`` brings the next model's weights to idle
    KV memory; with ``exchange`` those that leave stay there as long as there is room.
    ``prefill_turns`` lets short prompts in between the chunks of long ones. ``lease_seconds`` 0 is
    no leases; ``eviction_cost`` counts what KV a call pushes out; without ``faults`` none of the
    scenario's happen. Targets and sizes of 0, and None, are the hardware profile's own."""

    ttft: Amount = 0.0
    tpot: Amount = 0.0
    gamma: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.0
    session_prefill: bool = True
    host_kv: bool = True
    staging: bool = True
    prefill_turns: bool = True
    exchange: bool | None = None
    policy: Policy = "residency"
    lease_seconds: Amount = 1.0
    eviction_cost: bool = True
    replica_penalty: Amount = 0.1
    control_window: Positive = 10.0
    switch_share: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.1
    queue_depth: Count = 100_000
    queue_timeout: Positive = 86_400.0
    host_bytes: Size = 0
    prefill_chunk: Size = 0
    max_running: Size = 0
    block_tokens: Size = 0
    gateway_seconds: Amount = 0.0
    faults: bool = True


class Load(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How sessions come: see ``pacing.PacingSettings``."""

    concurrency: Size = 0
    rate: Amount = 0.0
    recorded: bool = False
    gap_cap: Amount | None = 10.0

    def settings(self, seed: int) -> PacingSettings:
        """Raises ValueError for what does not go together."""
        return PacingSettings(self.concurrency, self.rate, self.recorded, seed, self.gap_cap)


class Published(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a paper reports, by configuration (and ``/load`` where there are several)."""

    source: str
    values: dict[str, dict[str, float]]


class Comparison(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """That a figure of one configuration, over that of another, is at most so much; ``source``
    says who says so. Both are named as in ``Case.label``."""

    name: str
    figure: str
    of: str
    to: str
    at_most: Amount
    source: str


class Scenario(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``configurations`` are what each changes in ``setup``; ``best_of`` names those of which only
    the best by median session completion is shown beside the others. ``assumptions`` are what no
    source gives; ``sensitivity`` names the configurations that are run under every variant of the
    hardware's numbers, ``faults`` what befalls instances under all of them that do not leave it
    out."""

    name: str
    about: str
    hardware: str
    trace: TraceSpec
    instances: Annotated[tuple[InstanceSpec, ...], msgspec.Meta(min_length=1)]
    configurations: dict[str, dict[str, Any]]
    setup: Setup = Setup()
    faults: tuple[FaultSpec, ...] = ()
    loads: dict[str, Load] = msgspec.field(default_factory=lambda: {"": Load()})
    seed: Size = 1
    warmup: Size = 0
    assumptions: tuple[str, ...] = ()
    best_of: dict[str, tuple[str, ...]] = {}
    sensitivity: tuple[str, ...] = ()
    published: Published | None = None
    claims: tuple[Comparison, ...] = ()


@dataclass(frozen=True, slots=True)
class Case:
    """One run of a scenario."""

    configuration: str
    load: str
    setup: Setup
    pacing: Load

    @property
    def label(self) -> str:
        return f"{self.load}.{self.configuration}" if self.load else self.configuration


def load_scenario(path: Path) -> Scenario:
    """Raises ``FieldError``: one line that names the field and the remedy."""
    try:
        raw = with_sizes(read_yaml(path, *_FILE), "")
        _check_entries(raw)
        scenario = convert(raw, Scenario, "")
        _check(scenario)
    except FieldError as error:
        raise FieldError(str(path), str(error)) from None
    return scenario


def _check_entries(raw: dict[str, Any]) -> None:
    for field, kind in (
        ("loads", Load),
        ("configurations", Setup),
        ("best_of", tuple[str, ...]),
    ):
        check_entries(raw.get(field), kind, field)
    published = raw.get("published")
    values = published.get("values") if isinstance(published, dict) else None
    for label, figures in values.items() if isinstance(values, dict) else ():
        check_entries(figures, float, f"published.values.{label}")
    check_entries(values, dict[str, float], "published.values")


def cases(scenario: Scenario) -> Iterator[Case]:
    """Every configuration under every load."""
    for load, pacing in scenario.loads.items():
        for name in scenario.configurations:
            yield Case(name, load, _setup(scenario, name), pacing)


def _setup(scenario: Scenario, name: str) -> Setup:
    changes = scenario.configurations[name]
    return convert(msgspec.to_builtins(scenario.setup) | changes, Setup, "setup")


def _check(scenario: Scenario) -> None:
    if bool(scenario.trace.synth) == bool(scenario.trace.file):
        raise FieldError("trace", "give exactly one of `synth` and `file`")
    if not scenario.configurations:
        raise FieldError("configurations", "is empty; name at least one, such as `all-on: {}`")
    _check_loads(scenario)
    _check_instances(scenario)
    for name in scenario.configurations:
        _check_name(f"configurations.{name}", name)
        _setup(scenario, name)
    named = {name for group in scenario.best_of.values() for name in group}
    for name in (*scenario.sensitivity, *sorted(named)):
        if name not in scenario.configurations:
            known = ", ".join(scenario.configurations)
            raise FieldError("", f"{name!r} is no configuration; known: {known}")
    _check_figures(scenario)


def _check_loads(scenario: Scenario) -> None:
    if not scenario.loads:
        raise FieldError("loads", "is empty; leave it out, or name one, such as `all: {}`")
    for name, load in scenario.loads.items():
        if name or len(scenario.loads) > 1:
            _check_name(f"loads.{name}", name)
        try:
            load.settings(scenario.seed)
        except ValueError as error:
            raise FieldError(f"loads.{name}", str(error)) from None


def _check_name(field: str, name: str) -> None:
    if not NAME.fullmatch(name):
        raise FieldError(field, f"{name!r} is to name a folder; use letters, digits and - _ + .")


def _check_instances(scenario: Scenario) -> None:
    served = {model for instance in scenario.instances for model in instance.models}
    for place, instance in enumerate(scenario.instances):
        field = f"instances[{place}]"
        if len(set(instance.models)) < len(instance.models):
            raise FieldError(f"{field}.models", "names a model twice; name each once")
        if instance.pool == Pool.HOT and len(instance.models) > 1:
            raise FieldError(field, "a hot instance serves exactly one model; make it cold")
    names = named(scenario.instances)
    for place, fault in enumerate(scenario.faults):
        if fault.instance not in names:
            known = ", ".join(names)
            raise FieldError(
                f"faults[{place}].instance", f"{fault.instance!r} is not there; there are {known}"
            )
        if fault.kind is FaultKind.HANG and fault.seconds is None and fault.returns:
            raise FieldError(
                f"faults[{place}].seconds", "say for how long it hangs, or `returns: false`"
            )
    for model in scenario.trace.models:
        if model not in served:
            known = ", ".join(sorted(served))
            raise FieldError("trace.models", f"no instance serves {model}; served: {known}")


def _check_figures(scenario: Scenario) -> None:
    """What is published or claimed is of runs and figures that there are."""
    labels = [case.label for case in cases(scenario)]
    if twice := [label for label in labels if labels.count(label) > 1]:
        raise FieldError("loads", f"two runs would be called {twice[0]}; rename one")
    # A claim may also be held against the best of a group.
    groups = [f"{load}.{n}" if load else n for load in scenario.loads for n in scenario.best_of]
    published = scenario.published.values if scenario.published else {}
    told = [(f"published.values.{label}", label, set(of)) for label, of in published.items()]
    for place, claim in enumerate(scenario.claims):
        told += [(f"claims[{place}]", label, {claim.figure}) for label in (claim.of, claim.to)]
    for field, label, figures in told:
        known = labels + groups * field.startswith("claims")
        if label not in known:
            raise FieldError(field, f"{label!r} is no run; there are {', '.join(known)}")
        if unknown := sorted(figures - NAMES.keys()):
            raise FieldError(field, f"no figure is called {unknown[0]}; see the docs of reports")
