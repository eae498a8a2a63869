"""A scenario file: which sessions, on what hardware, under which configurations and loads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec

from alipes.gateway.routing.decision import Policy
from alipes.gateway.strict import FieldError, convert, parse_size, read_yaml
from alipes.instance.contract import Pool

Positive = Annotated[float, msgspec.Meta(gt=0)]
Count = Annotated[int, msgspec.Meta(ge=1)]


class TraceSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A synthetic workload by name (``recorded`` is the file that it is drawn from, if it is), or
    a ``file``; both are relative to the scenario's. Sessions whose model nobody serves get those
    in ``models``, in turn; ``repeat`` runs every session so many times under names of its own."""

    synth: str = ""
    file: str = ""
    recorded: str = ""
    seed: int = 1
    sessions: int = 0
    models: tuple[str, ...] = ()
    repeat: Count = 1


class InstanceSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``count`` equal instances that serve these models."""

    models: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    pool: Pool = Pool.COLD
    count: Count = 1


class Setup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything a configuration may change. ``staging`` keeps the next model's weights in idle
    KV memory; ``lease_seconds`` 0 is no leases. Targets and sizes of 0 are the hardware profile's
    own."""

    ttft: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    tpot: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    gamma: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.0
    session_prefill: bool = True
    host_kv: bool = True
    staging: bool = True
    policy: Policy = "residency"
    lease_seconds: Annotated[float, msgspec.Meta(ge=0)] = 1.0
    replica_penalty: Annotated[float, msgspec.Meta(ge=0)] = 0.1
    control_window: Positive = 10.0
    switch_share: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.1
    queue_depth: Count = 100_000
    queue_timeout: Positive = 86_400.0
    host_bytes: int = 0
    prefill_chunk: int = 0
    max_running: int = 0
    block_tokens: int = 0
    gateway_seconds: Annotated[float, msgspec.Meta(ge=0)] = 0.0


class Load(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How sessions come: see ``pacing.PacingSettings``."""

    concurrency: Annotated[int, msgspec.Meta(ge=0)] = 0
    rate: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    recorded: bool = False
    gap_cap: float | None = 10.0


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
    at_most: float
    source: str


class Scenario(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``configurations`` are what each changes in ``setup``; ``best_of`` names those of which only
    the best by median session completion is shown beside the others. ``assumptions`` are what no
    source gives; ``sensitivity`` names the configurations that are run under every variant of the
    hardware's numbers."""

    name: str
    about: str
    hardware: str
    trace: TraceSpec
    instances: Annotated[tuple[InstanceSpec, ...], msgspec.Meta(min_length=1)]
    configurations: dict[str, dict[str, Any]]
    setup: Setup = Setup()
    loads: dict[str, Load] = msgspec.field(default_factory=lambda: {"": Load()})
    seed: int = 1
    warmup: Annotated[int, msgspec.Meta(ge=0)] = 0
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
        raw = _sized(read_yaml(path), "")
        scenario = convert(raw, Scenario, "")
        _check(scenario)
    except FieldError as error:
        raise FieldError(str(path), str(error)) from None
    return scenario


def cases(scenario: Scenario) -> Iterator[Case]:
    """Every configuration under every load."""
    for load, pacing in scenario.loads.items():
        for name in scenario.configurations:
            yield Case(name, load, _setup(scenario, name), pacing)


def _setup(scenario: Scenario, name: str) -> Setup:
    changes = scenario.configurations[name]
    convert(changes, Setup, f"configurations.{name}")
    return convert(msgspec.to_builtins(scenario.setup) | changes, Setup, "setup")


def _check(scenario: Scenario) -> None:
    if bool(scenario.trace.synth) == bool(scenario.trace.file):
        raise FieldError("trace", "give exactly one of `synth` and `file`")
    if not scenario.configurations:
        raise FieldError("configurations", "is empty; name at least one, such as `all-on: {}`")
    for name in scenario.configurations:
        _setup(scenario, name)
    named = {name for group in scenario.best_of.values() for name in group}
    for name in (*scenario.sensitivity, *named):
        if name not in scenario.configurations:
            known = ", ".join(scenario.configurations)
            raise FieldError("", f"{name!r} is no configuration; known: {known}")


def _sized(value: Any, field: str) -> Any:
    """Sizes may be written with a unit where the name ends in ``_bytes``."""
    if not isinstance(value, dict):
        return value
    return {
        key: parse_size(inner, f"{field}.{key}".lstrip("."))
        if str(key).endswith("_bytes")
        else _sized(inner, f"{field}.{key}")
        for key, inner in value.items()
    }
