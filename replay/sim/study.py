"""All cases of a scenario, one after another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

from msgspec.structs import replace

from alipes.gateway.strict import FieldError
from alipes.replay.runs import Run
from alipes.replay.sim.hardware import Hardware, load_hardware, profiles
from alipes.replay.sim.scenario import Case, Scenario, cases
from alipes.replay.sim.sensitivity import variants
from alipes.replay.sim.simulate import Workload, simulate, workload


@dataclass(slots=True)
class Study:
    """``seconds`` has the wall time of every case so
    far, those of variants left out."""

    scenario: Scenario
    hardware: Hardware
    workload: Workload
    cases: tuple[Case, ...]
    seconds: dict[str, float] = field(default_factory=dict)

    def runs(self, begun: Callable[[str], None]) -> Iterator[Run]:
        """Every case; ``begun`` gets its label before it runs."""
        for case in self.cases:
            begun(case.label)
            begin = perf_counter()
            run = simulate(self.scenario, self.hardware, self.workload, case)
            self.seconds[case.label] = perf_counter() - begin
            yield run

    def variants(self, begun: Callable[[str], None]) -> Iterator[tuple[str, Run]]:
        """The cases that the scenario names, under every variant of the hardware's numbers."""
        models = {model for instance in self.scenario.instances for model in instance.models}
        chosen = [c for c in self.cases if c.configuration in self.scenario.sensitivity]
        for label, hardware in variants(self.hardware, models):
            for case in chosen:
                begun(f"{case.label}, {label}")
                yield label, simulate(self.scenario, hardware, self.workload, case)


def prepare(
    scenario: Scenario,
    folder: Path,
    only: Sequence[str] = (),
    seed: int | None = None,
    at_most: int | None = None,
) -> Study:
    """``only`` names configurations; ``at_most`` sessions are run. Raises ``FieldError`` for one
    that there is not, and what reading the hardware and the trace raises."""
    if seed is not None:
        trace = replace(scenario.trace, seed=seed)
        scenario = replace(scenario, seed=seed, trace=trace)
    unknown = [name for name in only if name not in scenario.configurations]
    if unknown:
        known = ", ".join(scenario.configurations)
        raise FieldError("--only", f"{unknown[0]!r} is no configuration; known: {known}")
    chosen = tuple(c for c in cases(scenario) if not only or c.configuration in only)
    named = scenario.hardware in profiles()
    hardware = load_hardware(scenario.hardware if named else folder / scenario.hardware)
    return Study(scenario, hardware, workload(scenario, hardware, folder, at_most), chosen)
