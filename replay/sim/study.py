"""All cases of a scenario."""

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
from alipes.replay.sim.sensitivity import Variant, variants
from alipes.replay.sim.simulate import Workload, workload
from alipes.replay.sim.workers import Job, run_all
from alipes.replay.traces.form import Session


@dataclass(slots=True)
class Study:
    """``of`` is how many sessions there are, of which the workload may have some. ``processes``
    run cases side by side. ``seconds`` has the wall time of every case so far, those of variants
    left out, and ``elapsed`` is that of all together."""

    scenario: Scenario
    hardware: Hardware
    workload: Workload
    cases: tuple[Case, ...]
    of: int
    processes: int = 1
    seconds: dict[str, float] = field(default_factory=dict)
    elapsed: float = 0.0

    @property
    def whole(self) -> bool:
        """Whether all sessions run; claims and published numbers are of all."""
        return len(self.workload.sessions) == self.of

    def runs(self, waiting: Callable[[str], None]) -> Iterator[Run]:
        """Every case; ``waiting`` gets the label of the one that comes next."""
        jobs = [self._job(case, case.label, self.hardware) for case in self.cases]
        begin = perf_counter()
        for case, done in zip(self.cases, run_all(jobs, self.processes, waiting), strict=True):
            self.seconds[case.label] = done.seconds
            self.elapsed = perf_counter() - begin
            yield done.run

    def variants(self, waiting: Callable[[str], None]) -> Iterator[tuple[Variant, Run]]:
        """The varied cases under every variant of the hardware's numbers."""
        varied = [
            (variant, self._job(case, f"{case.label}, {variant.label}", hardware))
            for variant, hardware in variants(self.hardware, self._models)
            for case in self.varied
        ]
        jobs = [job for _, job in varied]
        for (variant, _), done in zip(varied, run_all(jobs, self.processes, waiting), strict=True):
            yield variant, done.run

    def _job(self, case: Case, label: str, hardware: Hardware) -> Job:
        return Job(label, self.scenario, hardware, self.workload, case)

    @property
    def varied(self) -> list[Case]:
        """Of the cases those that the scenario's ``sensitivity`` names."""
        return [case for case in self.cases if case.configuration in self.scenario.sensitivity]

    def check_variants(self) -> None:
        """Raises ``FieldError`` where there is none."""
        names = self.scenario.sensitivity
        if not names:
            problem = "the scenario has no `sensitivity`; list the configurations to vary there"
        elif not self.varied:
            problem = f"the scenario's `sensitivity` is {', '.join(names)}; name one in --only"
        elif next(variants(self.hardware, self._models), None) is None:
            problem = f"no number of {self.hardware.name} has `low` or `high`; add ranges to it"
        else:
            return
        raise FieldError("--sensitivity", problem)

    @property
    def _models(self) -> set[str]:
        return {model for instance in self.scenario.instances for model in instance.models}


def prepare(
    scenario: Scenario,
    folder: Path,
    only: Sequence[str] = (),
    seed: int | None = None,
    at_most: int | None = None,
) -> Study:
    """``only`` names configurations; ``at_most`` sessions are run, see ``spread``. Raises
    ``FieldError`` for a configuration that there is not, and what reading the hardware and the
    trace raises."""
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
    found = workload(scenario, hardware, folder)
    some = spread(found.sessions, at_most or len(found.sessions))
    if scenario.warmup >= len(some):
        problem = f"leaves none of {len(some)} sessions to count; make it less"
        raise FieldError("warmup", problem)
    sessions = Workload(found.source, some)
    return Study(scenario, hardware, sessions, chosen, len(found.sessions))


def spread(sessions: Sequence[Session], count: int) -> tuple[Session, ...]:
    """``count`` sessions, or all where there are fewer, in their order: as many of each model as is
    its share, from the whole length of the trace."""
    models = list(dict.fromkeys(session.model for session in sessions))
    places = sorted(range(len(sessions)), key=lambda place: models.index(sessions[place].model))
    count = min(count, len(sessions))
    # The middle of each of ``count`` equal parts.
    middles = [(2 * part + 1) * len(sessions) // (2 * count) for part in range(count)]
    return tuple(sessions[place] for place in sorted(places[middle] for middle in middles))
